"""Records of the loop's events: sums of an interval and of an epoch, speed, warnings."""

from pathlib import Path

import pytest
import torch

from paceline.core.batch_plan import BatchPlan
from paceline.core.config import Config
from paceline.core.errors import DivergedError
from paceline.core.metrics import Scores, Sums
from paceline.engine.clock import EVALUATE, UPDATE, Clock
from paceline.engine.meter import Meter
from paceline.engine.progress import Progress
from paceline.engine.recorder import Recorder
from paceline.engine.scoring import Scoring
from paceline.records.entries import EpochRecord, Note, Pulse, StepRecord
from paceline.records.folder import RunFolder
from paceline.tasks.classification import Classification
from paceline.trackers.base import RunInfo

PLAN = BatchPlan(num_samples=40, global_batch=4, accumulate=1, world_size=1, total_steps=20)
RUN = RunInfo(folder=RunFolder(Path("runs/x/001")), config=Config(), total_steps=20, steps_per_epoch=10, first_step=0)


class Kept:
    """A tracker that keeps everything, with when it was closed."""

    name = "kept"

    def __init__(self, closed=None):
        self.entries = []
        self.closed = [] if closed is None else closed

    def open(self, run):
        self.run = run

    def record(self, entry):
        self.entries.append(entry)

    def close(self, result):
        self.closed.append((self, result))

    def of(self, kind):
        return [entry for entry in self.entries if isinstance(entry, kind)]


@pytest.fixture
def progress():
    return Progress()


@pytest.fixture
def clock():
    return Clock(alone=True)


@pytest.fixture
def recorder(progress, clock, alone):
    return Recorder(PLAN, progress, alone, scoring=Scoring(Classification()), clock=clock)


@pytest.fixture
def kept(recorder):
    tracker = Kept()
    with recorder.attached([tracker], RUN):
        yield tracker


@pytest.fixture
def train(recorder, progress, clock):
    """Return a function that trains so many steps, as far as the recorder sees them."""

    def some_steps(steps, loss=1.0):
        for _ in range(steps):
            losses = {"loss": torch.tensor(loss)}
            recorder.meter.add(losses, torch.eye(4), torch.arange(4), counts={"loss": 4}, num_samples=4)
            progress.step += 1
            clock.end_phase(UPDATE)

    return some_steps


def test_a_step_record_covers_the_steps_since_the_one_before(recorder, train, kept):
    train(2, loss=1.0)
    recorder.step(lr=0.1)
    train(3, loss=2.0)
    recorder.step(lr=0.05)
    first, second = kept.of(StepRecord)
    assert (first.step, first.lr, first.score.loss, first.score.samples) == (2, 0.1, 1.0, 8)
    assert (second.step, second.lr, second.score.loss, second.score.samples) == (5, 0.05, 2.0, 12)
    assert second.epoch == 1


def test_an_epoch_record_covers_all_its_steps_and_the_next_starts_from_zero(recorder, progress, train, kept):
    for loss in (1.0, 3.0):
        train(5, loss)
        recorder.step(lr=0.1)
    recorder.end_epoch(Scores(by_name={"loss": 0.5}, samples=4), is_best=True, unreadable=None)
    (record,) = kept.of(EpochRecord)
    assert (record.step, record.epoch, record.train.loss, record.train.samples) == (10, 1, 2.0, 40)
    assert (record.valid.loss, record.is_best, record.num_unreadable) == (0.5, True, None)
    assert progress.epoch_score == Sums()
    train(1)
    assert recorder.epoch == 2


def test_evaluating_does_not_count_as_training(recorder, clock, train, kept):
    train(2)
    clock.end_phase(EVALUATE)
    recorder.step(lr=0.1)
    (record,) = kept.of(StepRecord)
    assert record.samples_per_s == 8 / sum(clock.totals()[: UPDATE + 1])
    assert record.seconds == pytest.approx(sum(clock.totals()))


def test_unreadable_images_are_named_once(recorder, train, kept):
    train(1)
    names = [f"{letter}.jpg" for letter in "abcdefg"]
    recorder.end_epoch(None, is_best=False, unreadable=names[:1])
    recorder.end_epoch(None, is_best=False, unreadable=names)
    one, more = (note.text for note in kept.of(Note))
    assert one == "1 image could not be decoded (using others of the same class instead): a.jpg"
    assert more.endswith(": b.jpg, c.jpg, d.jpg, e.jpg, f.jpg and 1 more")
    assert [record.num_unreadable for record in kept.of(EpochRecord)] == [1, 7]


def test_a_loss_that_is_not_finite_ends_the_run(recorder, train, kept):
    recorder.meter = Meter(Scoring(Classification()), eager=False)  # as on a GPU, where no step reads the loss
    train(1, loss=float("inf"))
    with pytest.raises(DivergedError, match="the loss became inf"):
        recorder.step(lr=0.1)
    assert kept.of(StepRecord) == []


def test_a_pulse_shows_the_interval_so_far_and_loses_nothing(recorder, train, kept):
    train(2)
    recorder.pulse()
    recorder.pulse()
    train(1)
    recorder.step(lr=0.1)
    assert [(pulse.step, pulse.score.samples) for pulse in kept.of(Pulse)] == [(2, 8)], "the second comes too soon"
    assert kept.of(StepRecord)[0].score.samples == 12


def test_the_console_which_is_first_closes_last(recorder):
    closed = []
    first, second = Kept(closed), Kept(closed)
    with recorder.attached([first, second], RUN):
        recorder.say("hello")
    assert closed == [(second, None), (first, None)]
    assert first.entries == second.entries == [Note(text="hello")]
