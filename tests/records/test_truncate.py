"""Records of lost steps are cut off a file from its end, with the same result as reading all of it."""

import json

import pytest

from paceline.records.truncate import BLOCK, drop_later


def step_of(record):
    return record.get("step", 0)


def closes(record):
    return record.get("split") != "test"


def dropped(path, step):
    drop_later(path, step, step_of=step_of, closes=closes)
    return [json.loads(line) for line in path.read_text().splitlines()]


def records(number, width=300):
    return [{"kind": "step", "step": step, "text": "x" * width} for step in range(1, number + 1)]


def write(path, found, rest=""):
    path.write_text("".join(json.dumps(record) + "\n" for record in found) + rest)
    return path


@pytest.mark.parametrize("step", [0, 1, 499, 500, 900, 1000, 2000])
@pytest.mark.parametrize("rest", ["", '{"kind": "st', '{"kind": "step", "step": 3}', "not json\n"])
def test_what_is_left_is_what_reading_the_whole_file_keeps(tmp_path, step, rest):
    found = records(1000)
    assert len(json.dumps(found)) > 4 * BLOCK
    path = write(tmp_path / "records", found, rest)
    assert dropped(path, step) == [record for record in found if record["step"] <= step]


def test_the_test_of_the_best_checkpoint_does_not_end_the_search(tmp_path):
    """A finished run that is resumed from an earlier checkpoint: its last line is of an earlier step."""
    test = {"kind": "eval", "split": "test", "step": 4}
    path = write(tmp_path / "records", [*records(9), test])
    assert [record["step"] for record in dropped(path, 6)] == [1, 2, 3, 4, 5, 6, 4]
    path = write(tmp_path / "records", [*records(9), test])
    assert [record["step"] for record in dropped(path, 3)] == [1, 2, 3]


def test_a_line_longer_than_a_block_is_found(tmp_path):
    found = records(4, width=3 * BLOCK)
    assert len(dropped(write(tmp_path / "records", found), 2)) == 2


def test_the_bytes_read_do_not_grow_with_the_file(tmp_path, monkeypatch):
    asked = []
    parse = json.loads
    monkeypatch.setattr("paceline.records.truncate.json.loads", lambda line: asked.append(line) or parse(line))
    for number in (1000, 100_000):
        path = write(tmp_path / "records", records(number, width=1))
        asked.clear()
        drop_later(path, number - 10, step_of=step_of, closes=closes)
        assert len(asked) == 11
        assert path.read_text().count("\n") == number - 10
