"""Records as lines: the same words on the terminal and in log.txt."""

import io
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.core.config import Config
from paceline.core.metrics import Score
from paceline.records.entries import EpochRecord, EvalRecord, Note, Pulse, StepRecord
from paceline.records.folder import RunFolder
from paceline.trackers.base import Guarded, RunInfo
from paceline.trackers.console import Live, Plain, console_for
from paceline.trackers.lines import as_line

RUN = RunInfo(folder=RunFolder(Path("runs/a/001")), config=Config(), total_steps=100, steps_per_epoch=10, first_step=0)
SCORE = Score(loss_sum=640.0, correct1=960, correct5=1280, images=1280)
VALID = Score(loss_sum=50.0, correct1=90, correct5=100, images=100)
STEP = StepRecord(step=15, epoch=2, score=SCORE, lr=0.05, images_per_s=1280.0, seconds=1.0)
EPOCH = EpochRecord(step=20, epoch=2, train=SCORE, valid=VALID, is_best=True, images_per_s=12345.6, seconds=1.0)


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        (Note(text="hello"), "hello"),
        (Note(text="careful", level="warning"), "warning: careful"),
        (STEP, "step 15/100  loss 0.5000  acc 75.00%  lr 0.05  1,280 images/s  8.50s left"),
        (
            EPOCH,
            "epoch 2/10  train loss 0.5000  acc 75.00%  |  valid loss 0.5000  acc 90.00%  top-5 100.00%"
            "  |  12,346 images/s  *",
        ),
        (
            EpochRecord(step=20, epoch=2, train=SCORE, valid=None, is_best=False, images_per_s=3.14159, seconds=1.0),
            "epoch 2/10  train loss 0.5000  acc 75.00%  |  3.14 images/s",
        ),
        (
            replace(EPOCH, valid=None, num_unreadable=3),
            "epoch 2/10  train loss 0.5000  acc 75.00%  |  12,346 images/s  |  3 images unreadable  *",
        ),
        (
            replace(EPOCH, valid=None, num_unreadable=0),
            "epoch 2/10  train loss 0.5000  acc 75.00%  |  12,346 images/s  *",
        ),
        (
            EvalRecord(step=15, epoch=2, split="valid", score=VALID, is_best=True, seconds=1.0, split_images=100),
            "valid at step 15: loss 0.5000  acc 90.00%  top-5 100.00%  over 100 images  *",
        ),
        (
            EvalRecord(step=100, epoch=10, split="test", score=VALID, is_best=False, seconds=1.0, split_images=100),
            "test at step 100 (best checkpoint): loss 0.5000  acc 90.00%  top-5 100.00%  over 100 images",
        ),
        (
            EvalRecord(step=2, epoch=1, split="test", score=VALID, is_best=False, seconds=1.0, split_images=15_000),
            "test at step 2 (best checkpoint): loss 0.5000  acc 90.00%  top-5 100.00%  over 100 of 15,000 images",
        ),
        (Pulse(step=1, epoch=1, score=SCORE, images_per_s=1.0), None),
    ],
)
def test_every_record_has_its_line(entry, line):
    assert as_line(entry, RUN) == line


def test_a_step_that_ends_an_epoch_leaves_the_line_to_the_epoch():
    ends = StepRecord(step=20, epoch=2, score=SCORE, lr=0.05, images_per_s=1280.0, seconds=1.0)
    assert as_line(ends, RUN) is None


def test_a_pipe_gets_plain_lines_at_once():
    stream = io.StringIO()
    console = console_for(stream)
    assert isinstance(console, Plain)
    console.open(RUN)
    console.record(EPOCH)
    assert stream.getvalue() == f"{as_line(EPOCH, RUN)}\n"


def test_a_terminal_gets_a_live_console():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    assert isinstance(console_for(Terminal()), Live)


class Failing:
    """A tracker that fails from a given call on."""

    name = "planted"

    def __init__(self, works_for):
        self.left = works_for
        self.calls = []

    def _call(self, name):
        self.calls.append(name)
        self.left -= 1
        if self.left < 0:
            raise ValueError("broken")

    def open(self, run):
        self._call("open")

    def record(self, entry):
        self._call("record")

    def close(self, result):
        self._call("close")


@pytest.mark.parametrize(("works_for", "num_warnings"), [(0, 1), (1, 1), (2, 1), (3, 1), (4, 0)])
def test_wherever_a_tracker_fails_it_is_reported_once_and_closed(works_for, num_warnings):
    warnings = []
    tracker = Failing(works_for)
    guarded = Guarded(tracker, warnings.append)
    guarded.open(RUN)
    guarded.record(EPOCH)
    guarded.record(EPOCH)
    guarded.close(None)
    assert warnings == ["planted is off for the rest of this run: ValueError: broken"] * num_warnings
    assert tracker.calls == [*["open", "record", "record"][: works_for + 1], "close"]
