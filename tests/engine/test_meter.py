"""The meter of a training step: loss and top-k counts, and the check for a finite loss."""

import math

import pytest
import torch

from paceline.core.errors import DivergedError
from paceline.core.metrics import Score
from paceline.engine.meter import Meter


def test_the_meter_counts_in_bulk_what_one_counts_by_hand():
    torch.manual_seed(0)
    meter = Meter(eager=True)
    loss_sum, top1, top5 = 0.0, 0, 0
    for size in (5, 3, 8):
        logits, labels = torch.randn(size, 7), torch.randint(0, 7, (size,))
        loss = torch.rand(())
        meter.add(loss, logits, labels)
        loss_sum += loss.item() * size
        ranked = logits.argsort(1, descending=True)
        top1 += int((ranked[:, 0] == labels).sum())
        top5 += int((ranked[:, :5] == labels[:, None]).any(1).sum())
    assert meter.take() == Score.of(loss_sum, correct1=top1, correct5=top5, samples=16)
    assert meter.take() == Score()


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_refused_before_it_is_used(loss):
    with pytest.raises(DivergedError, match="the loss became"):
        Meter(eager=True).add(torch.tensor(loss), torch.zeros(1, 2), torch.zeros(1, dtype=torch.long))
