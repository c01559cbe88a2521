"""Folders sealed with a manifest: any change is found, with the name of the tensor."""

import hashlib
import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from paceline.core.errors import CheckpointError
from paceline.records.manifest import read_manifest
from paceline.records.sealing import check_sealed, seal_folder
from paceline.records.tensor_hash import hash_text, sum_words


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "inner").mkdir()
    values = {
        "a": np.arange(12, dtype=np.float32).reshape(3, 4),
        "b": np.ones(3, dtype=np.int64),
        "c": np.zeros((0, 2)),
    }
    save_file(values, tmp_path / "inner" / "model.safetensors")
    (tmp_path / "config.json").write_text('{"layers": 3}')
    return tmp_path


def test_a_sealed_folder_is_intact(folder):
    sealed = seal_folder(folder)
    assert (sealed.num_files, sealed.num_tensors) == (2, 3)
    assert check_sealed(folder).problems == ()
    manifest = read_manifest(folder)
    assert manifest["files"]["config.json"]["sha256"] == hashlib.sha256(b'{"layers": 3}').hexdigest()
    data = np.arange(12, dtype=np.float32).view(np.uint8)
    expected = hash_text(sum_words(data, element_bytes=4, first=0))
    assert manifest["tensors"]["inner/model.safetensors"]["a"]["hash"] == expected


def test_a_flipped_bit_names_the_file_and_the_tensor(folder):
    seal_folder(folder)
    path = folder / "inner" / "model.safetensors"
    whole = path.read_bytes()
    at = whole.index(np.float32(11).tobytes())
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
    assert check_sealed(folder).problems == (
        "inner/model.safetensors has changed since it was written (its sha256 differs): a",
    )
    path.write_bytes(whole[:-1])
    assert check_sealed(folder).problems == ("inner/model.safetensors is cut short or has grown",)
    path.unlink()
    assert check_sealed(folder).problems == ("inner/model.safetensors is missing",)


def test_a_changed_manifest_and_other_files_are_told(folder):
    seal_folder(folder)
    (folder / "notes.txt").write_text("new")
    found = check_sealed(folder)
    assert (found.problems, found.extra) == ((), ("notes.txt",))
    (folder / "manifest.json").write_text(json.dumps(read_manifest(folder)))
    assert "manifest.json or manifest.sha256 has changed" in check_sealed(folder).problems[0]


def test_a_folder_is_sealed_once_unless_asked(folder):
    seal_folder(folder)
    with pytest.raises(CheckpointError, match="has a manifest already") as caught:
        seal_folder(folder)
    assert caught.value.hint == f"to check it: paceline check {folder}; --replace writes a new manifest"
    (folder / "config.json").write_text("{}")
    seal_folder(folder, replace=True)
    assert check_sealed(folder).problems == ()


def test_what_cannot_be_sealed_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="is not a folder"):
        seal_folder(tmp_path / "missing")
    with pytest.raises(CheckpointError, match="has no files to seal"):
        seal_folder(tmp_path)
    for content in (b"\xff" * 20, b"", b"\x02" + b"\0" * 7 + b"[]"):
        (tmp_path / "x.safetensors").write_bytes(content)
        with pytest.raises(CheckpointError, match="is not a safetensors file, or is damaged"):
            seal_folder(tmp_path)
