"""The run folder: numbered without collisions, found the way people name it."""

import multiprocessing
import re

import pytest

from paceline.core.config import Config
from paceline.core.errors import RunError
from paceline.records.folder import RunFolder, create_run, find_run, list_runs_below

pytestmark = pytest.mark.usefixtures("elsewhere")


def make_many(runs_dir, number, barrier, names):
    """Make run folders at the same moments as the other process."""
    for _ in range(number):
        barrier.wait(60)
        names.put(create_run(Config(name="race", runs_dir=runs_dir)).path.name)


def test_runs_that_start_at_the_same_moment_get_different_folders(tmp_path):
    context = multiprocessing.get_context("spawn")
    barrier, names = context.Barrier(2), context.Queue()
    others = [context.Process(target=make_many, args=(tmp_path, 50, barrier, names)) for _ in range(2)]
    for other in others:
        other.start()
    made = [names.get(timeout=60) for _ in range(100)]
    for other in others:
        other.join(60)
    assert sorted(made) == [f"{number:03d}" for number in range(1, 101)]


@pytest.fixture
def make(tmp_path):
    """Return a function that makes a run in tmp_path/runs."""

    def make_run(name, number=None):
        folder = create_run(Config(name=name, runs_dir=tmp_path / "runs"))
        if number is not None:
            folder = RunFolder(folder.path.rename(folder.path.with_name(number)))
        folder.config.write_text("")
        return folder

    return make_run


def test_numbering_continues_after_the_highest_number(make):
    assert [make("a").path.name for _ in range(3)] == ["001", "002", "003"]
    make("a", "007")
    assert make("a").path.name == "008"
    assert make("b").path.name == "001"


def test_a_new_folder_has_its_inner_folders_and_is_no_run_before_it_has_settings(tmp_path):
    folder = create_run(Config(name="a", runs_dir=tmp_path))
    assert sorted(path.name for path in folder.path.iterdir()) == ["checkpoints", "ranks"]
    assert not folder.is_run
    folder.config.write_text("")
    assert folder.is_run
    assert folder.name == "a/001"


def test_a_run_is_found_by_folder_by_name_and_by_number(make, tmp_path, monkeypatch):
    first, second = make("demo"), make("demo")
    runs = tmp_path / "runs"
    assert find_run(first.path, runs) == first
    assert find_run(runs / "demo", runs) == second
    assert find_run(RunFolder(runs / "demo").path.relative_to(runs), runs) == second
    assert find_run(first.path.relative_to(runs), runs) == first
    monkeypatch.chdir(tmp_path)
    assert find_run(first.path.relative_to(tmp_path), runs).path.resolve() == first.path


def test_the_newest_of_a_thousand_runs_is_found(make, tmp_path):
    make("demo", "999")
    newest = make("demo", "1000")
    assert find_run(tmp_path / "runs" / "demo", tmp_path / "runs") == newest


def test_a_misspelt_run_gets_the_nearest_name(make, tmp_path):
    make("digits-mlp")
    with pytest.raises(RunError, match=r"^there is no run digits-mpl(?m:$)") as caught:
        find_run(RunFolder(tmp_path / "digits-mpl").path.relative_to(tmp_path), tmp_path / "runs")
    assert caught.value.hint == "did you mean digits-mlp? (known: digits-mlp)"


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunError, match=rf"^{re.escape(str(tmp_path))} is not a run: it has no config.toml(?m:$)"):
        find_run(tmp_path, tmp_path / "runs")
    with pytest.raises(RunError, match=r"nowhere does not exist(?m:$)"):
        find_run(tmp_path / "nowhere", tmp_path / "runs")


def test_a_file_in_place_of_the_runs_folder_is_explained(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(RunError, match=r"^cannot create a run folder in .*/runs/a: Not a directory(?m:$)") as caught:
        create_run(Config(name="a", runs_dir=tmp_path / "runs"))
    assert caught.value.hint == "choose another folder with --runs-dir"
    assert list_runs_below(tmp_path / "runs") == []
