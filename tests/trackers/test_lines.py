"""Records as lines: the same words on the terminal and in log.txt."""

from dataclasses import replace

import pytest

from paceline.records.entries import EpochRecord, EvalRecord, Note, Pulse, StepRecord
from paceline.trackers.lines import as_line
from tests.trackers.sample_records import EPOCH, RUN, SCORE, STEP, VALID


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        (Note(text="hello"), "hello"),
        (Note(text="careful", level="warning"), "warning: careful"),
        (STEP, "step 15/100  loss 0.5000  acc 75.00%  lr 0.05  100 ms/step  1,280 samples/s  run: 8.50s left"),
        (
            EPOCH,
            "epoch 2/10  train loss 0.5000  acc 75.00%  |  valid loss 0.5000  acc 90.00%  top-5 100.00%"
            "  |  12,346 samples/s, 0.10s  *",
        ),
        (
            EpochRecord(step=20, epoch=2, train=SCORE, valid=None, is_best=False, samples_per_s=3.14159, seconds=1.0),
            "epoch 2/10  train loss 0.5000  acc 75.00%  |  3.14 samples/s, 6m 47s",
        ),
        (
            replace(EPOCH, valid=None, num_unreadable=3),
            "epoch 2/10  train loss 0.5000  acc 75.00%  |  12,346 samples/s, 0.10s  |  3 images unreadable  *",
        ),
        (
            replace(EPOCH, valid=None, num_unreadable=0),
            "epoch 2/10  train loss 0.5000  acc 75.00%  |  12,346 samples/s, 0.10s  *",
        ),
        (
            EvalRecord(step=15, epoch=2, split="valid", score=VALID, is_best=True, seconds=1.0, split_samples=100),
            "valid at step 15: loss 0.5000  acc 90.00%  top-5 100.00%  over 100 samples  *",
        ),
        (
            EvalRecord(step=100, epoch=10, split="test", score=VALID, is_best=False, seconds=1.0, split_samples=100),
            "test at step 100 (best checkpoint): loss 0.5000  acc 90.00%  top-5 100.00%  over 100 samples",
        ),
        (
            EvalRecord(step=2, epoch=1, split="test", score=VALID, is_best=False, seconds=1.0, split_samples=15_000),
            "test at step 2 (best checkpoint): loss 0.5000  acc 90.00%  top-5 100.00%  over 100 of 15,000 samples",
        ),
        (Pulse(step=1, epoch=1, score=SCORE, samples_per_s=1.0), None),
    ],
)
def test_every_record_has_its_line(entry, line):
    assert as_line(entry, RUN) == line


def test_a_step_that_ends_an_epoch_leaves_the_line_to_the_epoch():
    ends = StepRecord(step=20, epoch=2, score=SCORE, lr=0.05, samples_per_s=1280.0, seconds=1.0)
    assert as_line(ends, RUN) is None
