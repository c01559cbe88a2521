"""The user's own code: copies in the run folder, and what has changed since a checkpoint."""

from dataclasses import replace

import pytest

from paceline.core.config import Config
from paceline.core.errors import RunError
from paceline.records.code import code_changes, hash_code, keep_code, refuse_code_inside
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


@pytest.mark.parametrize("setting", ["model", "data"])
def test_code_inside_a_run_folder_is_refused_and_other_code_is_not(elsewhere, setting):
    folder = RunFolder(elsewhere / "runs" / "a" / "001")
    folder.path.mkdir(parents=True)
    (elsewhere / "link.py").symlink_to(folder.path / "evil.py")
    for inside in ("runs/a/001/evil.py:build", "runs/a/../a/001/code/x.py:build", "link.py:build"):
        with pytest.raises(RunError, match="name code inside the folder") as refused:
            refuse_code_inside(folder, replace(Config(), **{setting: inside}))
        assert "--trust" in (refused.value.hint or "")
    for outside in ("my.py:build", "runs/a/002/my.py:build", "digits"):
        refuse_code_inside(folder, replace(Config(), **{setting: outside}))
