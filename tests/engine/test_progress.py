"""Progress: the part of a run that changes, and which score is the best."""

from paceline.core.metrics import Score
from paceline.engine.progress import Progress


def test_progress_survives_a_checkpoint():
    progress = Progress(step=7, epoch_score=Score.of(1.5, samples=3))
    progress.judge(Score.of(1.0, correct1=2, samples=4))
    assert Progress.from_dict(progress.as_dict()) == progress


def test_with_equal_accuracy_the_lower_loss_is_better():
    progress = Progress()
    assert progress.judge(Score.of(4.0, correct1=2, samples=4))
    assert progress.judge(Score.of(3.0, correct1=2, samples=4))
    assert not progress.judge(Score.of(3.5, correct1=2, samples=4))
    assert progress.num_stale == 1
