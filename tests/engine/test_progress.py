"""Progress: the part of a run that changes, and which score is the best."""

import math

from paceline.core.metrics import ExactSum, Scores, Sums
from paceline.engine.progress import Progress


def scores(loss, **others):
    return Scores(by_name={"loss": loss} | others, samples=4)


def test_progress_survives_a_checkpoint():
    progress = Progress(step=7, epoch_score=Sums(parts={"loss": (ExactSum.of(1.5, bits=24),)}, samples=3))
    progress.judge(scores(1.0, top1=0.5))
    assert Progress.from_dict(progress.as_dict()) == progress


def test_progress_of_earlier_versions_is_read():
    score = {"loss_units": 1 << 24, "nonfinite": 0.0, "correct1": 2, "correct5": 3, "samples": 4}
    old = {"step": 3, "epoch_score": score, "interval_score": score, "best": score, "best_step": 3, "num_stale": 0}
    assert Progress.from_dict(old).best == scores(0.25, top1=0.5, top5=0.75)


def test_with_an_equal_score_the_lower_loss_is_better():
    progress = Progress()
    assert progress.judge(scores(4.0, top1=0.5), "top1", "higher")
    assert progress.judge(scores(3.0, top1=0.5), "top1", "higher")
    assert not progress.judge(scores(3.5, top1=0.5), "top1", "higher")
    assert progress.num_stale == 1


def test_a_lower_error_is_better_and_nan_never_becomes_best():
    progress = Progress()
    assert progress.judge(scores(1.0, error=2.0), "error", "lower")
    assert not progress.judge(scores(0.5, error=math.nan), "error", "lower")
    assert progress.judge(scores(1.0, error=1.0), "error", "lower")
    assert progress.judge(scores(0.9)), "without a metric the loss decides"
