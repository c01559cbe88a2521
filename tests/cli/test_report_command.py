"""`paceline report`: from a real run folder to a file, and what is wrong with what is not one."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lab.environment import child_environment
from paceline.records.folder import RunFolder
from paceline.report.run_data import read_run_data
from tests.conftest import LONGEST


def test_a_real_run_becomes_a_page_in_its_folder(run, own_run):
    answer = run("report", "demo")
    page = Path("runs/demo/001/report.html")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith(f"{page}  (")
    text = page.read_text()
    assert "demo/001" in text
    for part in ("Where the time goes", "Learning curves", "mlp", "digits", "Learning rate"):
        assert part in text
    assert str(Path.cwd()) not in text
    before = text
    assert run("report", "runs/demo/001").code == 0
    assert page.read_text() == before, "the same bytes again"


def test_two_runs_become_one_page_under_the_names_that_they_are_given(run, train, own_run):
    assert train("--lr=0.01", "--name=slow").code == 0
    answer = run("report", "demo", "slow", "--label=fast learner", "--label=slow learner", "--out=both.html")
    assert answer.code == 0
    text = Path("both.html").read_text()
    for part in ("fast learner", "slow learner", "Side by side", "<td>lr</td>"):
        assert part in text


def test_a_benchmark_becomes_a_page(run, own_run, write):
    folder = Path("runs/bench-x/001")
    (folder / "runs" / "single").mkdir(parents=True)
    shutil.copytree(own_run.path, folder / "runs" / "single" / "001")
    variant = '{"mode": "single", "nodes": 1, "per_node": 1, "scaling": null, "global_batch": 128, "again": %d}'
    measurement = (
        '{"variant": %d, "round": 0, "samples_per_s": 100.0, "step_s": 0.1, "train_loss": 0.5, '
        '"run": "runs/single/001"}'
    )
    write(
        folder / "bench.json",
        '{"started": 0, "settings": {"model": "mlp", "data": "digits", "global_batch": 128}, "steps": 8, "cut": 2, '
        f'"repeats": 1, "variants": [{variant % 0}, {variant % 1}], '
        f'"measurements": [{measurement % 0}, {measurement % 1}]}}',
    )
    assert run("report", "bench-x").code == 0
    text = (folder / "report.html").read_text()
    assert "No winner: fewer than 4 repeats cannot tell speed from noise" in text
    assert "A step, run by run" in text
    answer = run("report", "bench-x", "demo")
    assert (answer.code, answer.message) == (2, "bench-x is a benchmark, which cannot be combined with runs")


def test_what_cannot_be_drawn_is_explained(run, own_run, write):
    assert run("report", "dmo").message == "there is no run dmo"
    answer = run("report", "demo", "--label=a", "--label=b")
    assert (answer.code, answer.message) == (2, "1 runs, but 2 labels")
    answer = run("report", "demo", "--out=nowhere/page.html")
    assert answer.message == "cannot write nowhere/page.html: No such file or directory"
    assert "--out" in answer.hint
    Path("runs/bench-x/001").mkdir(parents=True)
    write("runs/bench-x/001/bench.json", "{")
    assert "bench.json cannot be read" in run("report", "bench-x").message


def cells(page, name):
    """Return a row of the table of runs, without its name."""
    row = re.search(rf"<tr><td>{name}</td>(.*?)</tr>", Path(page).read_text(), re.DOTALL)
    assert row is not None
    return re.findall(r"<td[^>]*>(.*?)</td>", row[1])


def forget_devices(folder):
    """Make a folder one of those that say how many devices dp had in the words of its mode only."""
    environments = json.loads(folder.environment.read_text())
    assert [environment.pop("num_devices") for environment in environments]
    for environment in environments:
        environment["mode"] = re.sub(
            r"requested, (\d+ devices?) in one process", r"asked for, over \1 of one process", environment["mode"]
        )
    folder.environment.write_text(json.dumps(environments))
    facts, *records = folder.phases.read_text().splitlines()
    facts = json.loads(facts)
    del facts["num_devices"]
    folder.phases.write_text("\n".join([json.dumps(facts), *records]) + "\n")


@pytest.mark.slow
@pytest.mark.parametrize("knows_devices", [True, False], ids=["recorded", "older folder"])
def test_the_efficiency_of_every_mode_is_that_of_its_devices(run, three_modes, knows_devices):
    folders = [RunFolder(shutil.copytree(folder, Path("runs") / folder.parent.name / "001")) for folder in three_modes]
    if not knows_devices:
        for folder in folders:
            forget_devices(folder)
    runs = [read_run_data(folder, folder.name) for folder in folders]
    assert [run.num_devices for run in runs] == [1, 2, 2]
    assert run("report", "single", "ddp", "dp", "--out=page.html").code == 0
    assert cells("page.html", "world") == ["1 rank", "2 ranks", "2 devices of one process"]
    seconds = [run.sample_seconds or 0.0 for run in runs]
    speedups = [seconds[0] / own for own in seconds]
    shown = cells("page.html", "speed-up")
    assert [bool(re.search(r" \(\d.*–\d.*\)$", cell)) for cell in shown] == [False, True, True], "an interval each"
    assert [cell.partition(" (")[0] for cell in shown] == [f"{speedup:.2f}×" for speedup in speedups]
    expected = [f"{100 * speedup / devices:.0f}%" for speedup, devices in zip(speedups, (1, 2, 2), strict=True)]
    assert cells("page.html", "efficiency") == expected


@pytest.fixture(scope="module")
def three_modes(tmp_path_factory):
    """Return the folders of real runs: one process, two ranks, and one process with two devices."""
    where = tmp_path_factory.mktemp("modes")
    words = ["--model=mlp", "--epochs=6", "--threads=1", "--track=none", "--log-every=6"]
    modes = {"single": [], "ddp": ["--nproc=2"], "dp": ["--nproc=2"]}
    for mode, more in modes.items():
        command = [sys.executable, "-m", "paceline", "train", *words, f"--mode={mode}", f"--run={mode}", *more]
        subprocess.run(command, cwd=where, env=child_environment(), check=True, timeout=LONGEST, capture_output=True)
    return [where / "runs" / mode / "001" for mode in modes]
