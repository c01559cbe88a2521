"""Text and token files as samples, and files that are no token ids."""

import json

import numpy as np
import pytest

from paceline.core.config import Config
from paceline.core.errors import DataError, SettingError
from paceline.data.catalog import open_data
from paceline.data.sources.text import ALICE


def write_tokens(path, tokens, dtype="uint16", vocab_size=1000):
    np.asarray(tokens, dtype).tofile(path)
    path.with_name(f"{path.name}.json").write_text(json.dumps({"dtype": dtype, "vocab_size": vocab_size}))
    return f"tokens:{path}"


def test_the_book_is_read_byte_by_byte():
    data = open_data(Config(data="alice", context=64))
    assert (data.task, data.facts) == ("language", {"vocab_size": 256, "context": 64})
    text = ALICE.read_bytes()
    assert bytes(data.train.fetch(np.array([0, 7]), 0)[1].tolist()) == text[7 * 64 : 8 * 64 + 1]
    assert bytes(data.test.fetch(np.array([0]), None)[0].tolist()) == text[round(len(text) * 0.9) :][:65]
    assert len(data.train) * 64 < round(len(text) * 0.9)


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_a_file_of_token_ids_is_cut_into_samples(tmp_path, dtype):
    data = open_data(Config(data=write_tokens(tmp_path / "ids.bin", np.arange(100), dtype), context=8))
    assert (len(data.train), len(data.test)) == (11, 1)
    assert data.train.fetch(np.array([10, 0]), 3).tolist() == [list(range(80, 89)), list(range(9))]
    assert data.test.fetch(np.array([0]), None).tolist() == [list(range(90, 99))]


def test_a_folder_may_have_a_file_to_test_on(tmp_path):
    for name, number in (("train", 40), ("val", 20)):
        np.arange(number, dtype="uint16").tofile(tmp_path / f"{name}.bin")
    (tmp_path / "meta.json").write_text('{"dtype": "uint16", "vocab_size": 50}')
    data = open_data(Config(data=f"tokens:{tmp_path}", context=4))
    assert (len(data.train), len(data.test)) == (9, 4)


def test_an_id_out_of_range_is_named(tmp_path):
    name = write_tokens(tmp_path / "ids.bin", [*range(50), 70, *range(49)], vocab_size=60)
    data = open_data(Config(data=name, context=8))
    data.train.fetch(np.arange(5), 0)
    with pytest.raises(DataError, match="token 50 is 70, but the vocabulary has 60"):
        data.train.fetch(np.arange(8), 0)


@pytest.mark.parametrize(
    ("content", "meta", "message"),
    [
        (b"", '{"dtype": "uint16", "vocab_size": 9}', "is empty"),
        (b"123", '{"dtype": "uint16", "vocab_size": 9}', "is truncated: 3 bytes are no whole number of uint16"),
        (b"1234", '{"dtype": "uint16", "vocab_size": 9}', "too few tokens"),
        (b"1234", None, "does not exist; it names the type"),
        (b"1234", "{}", "does not name dtype and vocab_size"),
        (b"1234", '{"dtype": "float32", "vocab_size": 9}', "makes no token ids"),
        (b"1234", '{"dtype": "uint16", "vocab_size": 0}', "makes no token ids"),
    ],
)
def test_files_that_are_no_token_ids_are_refused(tmp_path, content, meta, message):
    (tmp_path / "ids.bin").write_bytes(content)
    if meta is not None:
        (tmp_path / "ids.bin.json").write_text(meta)
    with pytest.raises(DataError, match=message) as caught:
        open_data(Config(data=f"tokens:{tmp_path / 'ids.bin'}"))
    assert caught.value.hint


@pytest.mark.parametrize("name", ["tokens:nowhere", "text:nowhere", "tokens:", "text", "alice:x"])
def test_a_path_that_leads_nowhere_is_refused(name):
    with pytest.raises(DataError):
        open_data(Config(data=name))


@pytest.mark.parametrize("settings", [{"image_size": 8}, {"augment": "flip"}, {"data": "digits", "context": 8}])
def test_settings_of_other_data_are_refused(settings):
    with pytest.raises(SettingError):
        open_data(Config(**({"data": "alice"} | settings)))
