"""Two runs side by side: settings that differ, and all results."""

from dataclasses import replace
from pathlib import Path

from paceline.core.config import Config
from paceline.records.compare_runs import Difference, compare_runs, results
from paceline.records.folder import RunFolder
from paceline.records.reader import RunSummary

SCORE = {"loss": 0.5, "top1": 0.75, "top5": 1.0, "samples": 100}
RUN = RunSummary(
    folder=RunFolder(Path("runs/a/001")), config=Config(), started=0.0, state="FINISHED", step=20, epochs=2, best=SCORE,
    test=SCORE | {"top1": 0.7}, samples_per_s=1000.0, detail="",
)  # fmt: skip


def test_settings_that_are_equal_are_left_out():
    other = replace(RUN, config=Config(lr=0.2, steps=100))
    assert compare_runs(RUN, other).settings == (
        Difference(name="steps", values=(None, 100)),
        Difference(name="lr", values=(None, 0.2)),
    )
    assert compare_runs(RUN, RUN).settings == ()


def test_all_results_stand_side_by_side():
    other = replace(RUN, state="STOPPED", test=None)
    found = {one.name: one.values for one in compare_runs(RUN, other).results}
    assert found["state"] == ("FINISHED", "STOPPED")
    assert found["best valid acc"] == (0.75, 0.75)
    assert found["test acc"] == (0.7, None), "a run that was stopped has none"
    assert list(found) == list(results(RUN))
