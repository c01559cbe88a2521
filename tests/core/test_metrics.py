"""Scores: sums over samples, from which averages are computed."""

from paceline.core.metrics import Score


def test_scores_add_up_as_sums_so_that_every_sample_counts_once():
    """Averaging the averages of batches of 3 and 1 would give 0.5: a mistake of the seeds."""
    total = Score(loss_sum=3.0, correct1=0, correct5=3, samples=3) + Score(
        loss_sum=5.0, correct1=1, correct5=1, samples=1
    )
    assert total.as_dict() == {"loss": 2.0, "top1": 0.25, "top5": 1.0, "samples": 4}


def test_a_score_of_no_samples_is_zero_rather_than_an_error():
    assert Score().as_dict() == {"loss": 0.0, "top1": 0.0, "top5": 0.0, "samples": 0}
