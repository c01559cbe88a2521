"""Where the time went, as metrics.jsonl tells it."""

import pytest

from paceline.records.folder import RunFolder
from paceline.records.phases import STEP_PHASES
from paceline.records.reader import read_metrics


def test_phases_cover_the_interval_and_starting_up_does_not_slow_the_first_one(small_run):
    folder = RunFolder(small_run(log_every=4).folder)
    steps = [record for record in read_metrics(folder) if record["kind"] == "step"]
    for record in steps:
        assert sum(record["phases"].values()) == pytest.approx(record["seconds"], abs=1e-4)
        training = sum(record["phases"][phase] for phase in STEP_PHASES)
        assert record["images_per_s"] == pytest.approx(record["images"] / training, rel=0.01)
    assert [record["phases"]["start"] > 0 for record in steps] == [True] + [False] * (len(steps) - 1)
