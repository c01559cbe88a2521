"""What one run of a benchmark measured. Whole benchmarks: tests/cli/test_bench_command."""

import pytest

from paceline.bench.rounds import measure
from paceline.core.errors import RunError


def step(number, *, samples=100, samples_per_s=50.0, loss=1.0):
    return {"kind": "step", "step": number, "samples": samples, "samples_per_s": samples_per_s, "loss": loss}


def test_the_first_steps_are_not_measured():
    records = [
        step(5, samples_per_s=1.0, loss=9.0),
        step(10),
        {"kind": "epoch", "step": 10},
        step(20, samples=300, samples_per_s=100.0, loss=0.5),
        {"kind": "eval", "split": "valid", "loss": 7.0, "top1": 0.1, "samples": 9},
        {"kind": "eval", "split": "test", "loss": 0.4, "top1": 0.8, "samples": 360},
    ]
    sample = measure(records, cut=5, variant=1, round_number=2, run="runs/x/001")
    assert sample.samples_per_s == pytest.approx(400 / 5), "2 s for 100 samples and 3 s for 300"
    assert sample.step_s == pytest.approx(5 / 15)
    assert sample.train_loss == pytest.approx((100 + 150) / 400)
    assert (sample.test_loss, sample.test_top1, sample.test_samples) == (0.4, 0.8, 360)
    assert (sample.variant, sample.round, sample.run) == (1, 2, "runs/x/001")


def test_a_run_that_ended_too_early_has_no_sample():
    with pytest.raises(RunError, match="runs/x/001 has no record after step 5"):
        measure([step(5)], cut=5, variant=0, round_number=0, run="runs/x/001")
