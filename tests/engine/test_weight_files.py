"""Safetensors files: every comparable type is read, and a bad file is refused in a sentence."""

import json
import struct

import pytest
import torch
from safetensors.torch import save_file

from paceline.core.errors import CheckpointError
from paceline.engine.tensor_files import TYPES
from paceline.engine.weight_files import read_file, read_weights


def file_bytes(header, body=b""):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def one_tensor(dtype, shape, end):
    return {"a": {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}}


@pytest.mark.parametrize("dtype", sorted(TYPES, key=str), ids=str)
def test_every_comparable_type_is_read(tmp_path, dtype):
    tensor = torch.tensor([0, 1, 1, 0]).to(dtype)
    save_file({"a": tensor, "empty": torch.empty(0, dtype=dtype)}, tmp_path / "x.safetensors")
    found = read_file(tmp_path / "x.safetensors")
    assert found["a"].dtype == dtype
    assert found["empty"].shape == (0,)
    assert torch.equal(found["a"].view(torch.uint8), tensor.view(torch.uint8)), "to the bit"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 20,
        struct.pack("<Q", 4) + b"abcd",
        file_bytes([]),
        file_bytes(one_tensor("X", [1], 4), b"0000"),
        file_bytes(one_tensor("F32", [9], 36), b"0000"),
        file_bytes(one_tensor("F32", [2], 4), b"0000"),
    ],
    ids=["empty", "junk", "no JSON", "no table", "unknown type", "cut short", "wrong size"],
)
def test_a_bad_file_is_refused(tmp_path, content):
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="is not a safetensors file, or is damaged"):
        read_file(path)


def test_a_packed_type_is_refused(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_bytes(one_tensor("F4", [2], 1), b"0"))
    with pytest.raises(CheckpointError, match="a has type float4_e2m1fn_x2, which cannot be compared"):
        read_file(path)


@pytest.mark.parametrize("held", [[torch.ones(2)], torch.ones(2), 5, None])
def test_a_file_without_names_is_refused(tmp_path, held):
    torch.save(held, tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match=f"holds a {type(held).__name__}, not weights by name"):
        read_weights(tmp_path / "x.pt")
    torch.save({"w": torch.ones(2)}, tmp_path / "x.pt")
    assert list(read_weights(tmp_path / "x.pt")) == ["w"]
