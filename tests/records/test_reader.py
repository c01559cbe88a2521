"""Reading run folders back: states that are true, records of a run that crashed, the list of all runs."""

import json
import os
import signal
import subprocess
import sys

import pytest
from cyclopts import App

from paceline.core.config import Config
from paceline.core.errors import RunError
from paceline.core.load import write_config
from paceline.core.world import World
from paceline.records.entries import State
from paceline.records.folder import RunFolder, create_run
from paceline.records.reader import read_metrics, run_state, summarise
from paceline.records.run_index import list_runs
from paceline.records.writer import write_rank

LIVING_RANK = """
import sys, time
from pathlib import Path
from paceline.core.world import World
from paceline.records.entries import State
from paceline.records.writer import write_rank
write_rank(Path(sys.argv[1]), World(), State.TRAINING, step=5)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    """Return a run that was started and has written nothing yet."""
    config = Config(name="a", runs_dir=tmp_path)
    folder = create_run(config)
    write_config(config.resolved(), folder.config)
    return folder


@pytest.fixture
def rank_process(folder):
    """Return a real process that says it trains."""
    words = [sys.executable, "-c", LIVING_RANK, str(folder.rank(0))]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_a_rank_whose_process_died_is_lost(folder, rank_process):
    assert run_state(folder) == "TRAINING"
    rank_process.send_signal(signal.SIGKILL)
    rank_process.wait(60)
    assert run_state(folder) == "LOST"


def test_a_rank_that_died_and_was_not_waited_for_is_lost(folder, rank_process, wait_until):
    """In a container without an init process nobody collects the dead: they stay as zombies."""
    os.kill(rank_process.pid, signal.SIGKILL)
    wait_until(lambda: run_state(folder) == "LOST", "the zombie to count as dead")


def test_a_process_that_got_the_number_of_a_dead_rank_does_not_count(folder):
    write_rank(folder.rank(0), World(), State.TRAINING, step=5)
    assert run_state(folder) == "TRAINING"
    line = json.loads(folder.rank(0).read_text())
    folder.rank(0).write_text(json.dumps(line | {"pid_start": "another-boot-1"}))
    assert run_state(folder) == "LOST"
    del line["pid_start"]  # as earlier versions wrote it
    folder.rank(0).write_text(json.dumps(line | {"time": 1e9}))
    assert run_state(folder) == "LOST"


def test_a_rank_on_another_host_is_believed_while_it_gives_signs_of_life(folder):
    write_rank(folder.rank(0), World(host="elsewhere", pid=2**22 + 1), State.TRAINING, step=5)
    assert run_state(folder) == "TRAINING"
    line = json.loads(folder.rank(0).read_text())
    folder.rank(0).write_text(json.dumps(line | {"time": line["time"] - 3600}))
    assert run_state(folder) == "LOST", "so that a run whose host died can go on elsewhere"


@pytest.mark.parametrize("state", [State.FINISHED, State.STOPPED, State.FAILED])
def test_a_final_state_needs_no_process(folder, state):
    write_rank(folder.rank(0), World(pid=2**22 + 1), state, step=5)
    assert run_state(folder) == state


def test_a_run_without_a_state_file_is_lost(folder):
    assert run_state(folder) == "LOST"


STEP = {"kind": "step", "step": 3, "epoch": 1, "loss": 1.0}
EPOCH = {
    "kind": "epoch", "step": 5, "epoch": 1, "samples_per_s": 10.0, "is_best": True,
    "valid_loss": 0.5, "valid_top1": 0.75, "valid_top5": 1.0, "valid_samples": 4,
}  # fmt: skip


def test_a_last_line_that_was_cut_off_is_left_out(folder):
    whole = [json.dumps(STEP), json.dumps(EPOCH)]
    folder.metrics.write_text("\n".join(whole) + "\n")
    assert list(read_metrics(folder)) == [STEP, EPOCH]
    for cut in range(1, len(whole[1])):
        folder.metrics.write_text(whole[0] + "\n" + whole[1][:cut])
        assert list(read_metrics(folder)) == [STEP]


def test_a_run_without_records_has_none(folder):
    assert list(read_metrics(folder)) == []


def test_a_summary_holds_the_last_of_everything(folder):
    better = EPOCH | {"step": 10, "epoch": 2, "valid_top1": 1.0}
    worse = EPOCH | {"step": 15, "epoch": 3, "valid_top1": 0.25, "is_best": False}
    test = {"kind": "eval", "split": "test", "step": 15, "epoch": 3, "is_best": False,
            "loss": 0.1, "top1": 0.5, "top5": 1.0, "samples": 9}  # fmt: skip
    folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in (EPOCH, better, worse, test)))
    write_rank(folder.rank(0), World(), State.FINISHED, step=15)
    summary = summarise(folder)
    assert (summary.epochs, summary.step, summary.state) == (3, 15, "FINISHED")
    assert summary.best == {"loss": 0.5, "top1": 1.0, "top5": 1.0, "samples": 4, "split_samples": 4, "epoch": 2}
    assert summary.test == {"loss": 0.1, "top1": 0.5, "top5": 1.0, "samples": 9, "split_samples": 9, "epoch": 3}


def test_a_summary_of_a_run_that_has_done_nothing_is_empty(folder):
    summary = summarise(folder)
    assert (summary.epochs, summary.step, summary.state, summary.best, summary.test) == (0, 0, "LOST", None, None)


def test_a_folder_that_is_no_run_has_no_summary(tmp_path):
    with pytest.raises(RunError, match=r"is not a run: it has no config.toml(?m:$)"):
        summarise(RunFolder(tmp_path))


def test_runs_are_listed_by_start_and_those_that_cannot_be_read_are_left_out(tmp_path):
    folders = [create_run(Config(name=name, runs_dir=tmp_path)) for name in ("b", "a", "c")]
    for number, folder in enumerate(folders):
        write_config(Config(name=folder.path.parent.name), folder.config)
        folder.environment.write_text(json.dumps([{"time": 100.0 + number}, {"time": 0.0}]))
    assert [run.folder.name for run in list_runs(tmp_path)] == ["b/001", "a/001", "c/001"]
    folders[1].config.write_text("nonsense")
    (tmp_path / "file").write_text("")
    assert [run.folder.name for run in list_runs(tmp_path)] == ["b/001", "c/001"]
    assert list_runs(tmp_path / "nowhere") == []


def test_listing_runs_builds_no_command_line_for_each(tmp_path, monkeypatch):
    """To build one takes thirty times as long as to read the file."""
    for number in range(20):
        config = Config(name=f"r{number}", runs_dir=tmp_path)
        write_config(config.resolved(), create_run(config).config)
    built = []

    def build(*args, **kwargs):
        built.append(args)
        return App(*args, **kwargs)

    monkeypatch.setattr("paceline.core.load.App", build)
    assert len(list_runs(tmp_path)) == 20
    assert len(built) <= 1
