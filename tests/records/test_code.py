"""The user's own code: copies in the run folder, and what has changed since a checkpoint."""

import pytest

from paceline.records.code import code_changes, hash_code, keep_code
from paceline.records.folder import RunFolder


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "my.py"
    path.write_text("first")
    return path


def test_every_version_is_kept_once(tmp_path, model):
    folder = RunFolder(tmp_path)
    files = {"my.py": model}
    keep_code(folder, files)
    model.write_text("second")
    keep_code(folder, files)
    keep_code(folder, files)
    copies = list((tmp_path / "code").iterdir())
    assert sorted(copy.read_text() for copy in copies) == ["first", "second"]
    assert all(copy.name.startswith("my-") and copy.suffix == ".py" for copy in copies)


def test_an_unchanged_file_is_not_mentioned(tmp_path, model):
    before = hash_code({str(model): model})
    assert code_changes(RunFolder(tmp_path), before, before) == []


def test_a_file_that_is_not_imported_is_read_from_disk(tmp_path, model):
    before = hash_code({str(model): model})
    assert code_changes(RunFolder(tmp_path), before, {}) == []
    model.write_text("second")
    (sentence,) = code_changes(RunFolder(tmp_path), before, {})
    assert sentence.startswith(f"{model} has changed: ")


def test_a_changed_file_is_named_with_the_command_that_compares(tmp_path, model):
    folder, files = RunFolder(tmp_path), {"my.py": model}
    keep_code(folder, files)
    before = hash_code(files)
    model.write_text("second")
    (sentence,) = code_changes(folder, before, hash_code(files))
    assert sentence.startswith("my.py has changed: ")
    copy, _, name = sentence.rpartition("diff ")[2].partition(" ")
    assert (tmp_path / copy).read_text() == "first"
    assert name == "my.py"


def test_a_missing_file_without_a_copy_has_nothing_to_compare(tmp_path, model):
    before = hash_code({str(model): model})
    model.unlink()
    (sentence,) = code_changes(RunFolder(tmp_path), before, {})
    assert sentence.startswith(f"{model} is missing: ")
    assert "diff" not in sentence
