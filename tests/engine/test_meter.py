"""The meter of a training step: losses, metrics in bulk or at once, and the check for a finite loss."""

import math

import pytest
import torch

from paceline.core.errors import DivergedError, TaskError
from paceline.core.metrics import Sums
from paceline.engine.meter import Meter
from paceline.engine.scoring import Scoring
from paceline.tasks.classification import Classification
from paceline.tasks.regression import Regression
from paceline.tasks.segmentation import Segmentation
from paceline.tasks.task import Metric


def add(meter, loss, outputs, targets, count=None):
    size = len(outputs)
    meter.add({"loss": torch.tensor(loss)}, outputs, targets, counts={"loss": count or size}, num_samples=size)


@pytest.mark.parametrize("eager", [True, False])
def test_the_meter_counts_in_bulk_what_one_counts_by_hand(eager):
    torch.manual_seed(0)
    scoring = Scoring(Classification())
    meter = Meter(scoring, eager=eager)
    loss_sum, top1, top5 = 0.0, 0, 0
    for size in (5, 3, 8):
        logits, labels = torch.randn(size, 7), torch.randint(0, 7, (size,))
        loss = torch.rand(()).item()
        add(meter, loss, logits, labels)
        loss_sum += loss * size
        ranked = logits.argsort(1, descending=True)
        top1 += int((ranked[:, 0] == labels).sum())
        top5 += int((ranked[:, :5] == labels[:, None]).any(1).sum())
    sums = meter.take()
    assert [part.number for part in sums.parts["accuracy"]] == [top1, top5, 16]
    assert scoring.scores(sums).loss == pytest.approx(loss_sum / 16, rel=1e-6)
    assert meter.take() == Sums()


def test_floats_do_not_depend_on_how_the_micro_batches_are_grouped():
    torch.manual_seed(0)
    pairs = [(torch.randn(4, 2), torch.randn(4, 2)) for _ in range(6)]
    totals = []
    for order in (pairs, pairs[::-1]):
        halves = []
        for some in (order[:2], order[2:]):
            meter = Meter(Scoring(Regression()), eager=True)
            for outputs, targets in some:
                add(meter, 0.1, outputs, targets, count=8)
            halves.append(meter.take())
        totals.append(halves[0] + halves[1])
    assert totals[0] == totals[1]


def test_the_mean_iou_comes_from_the_sum_of_matrices_and_not_from_a_mean_of_scores():
    task = Segmentation(num_classes=2)
    scoring, whole = Scoring(task), torch.zeros(2, 2, dtype=torch.long)
    meter = Meter(scoring, eager=True)
    for seed in range(3):
        torch.manual_seed(seed)
        logits, mask = torch.randn(2, 2, 3, 3), torch.randint(0, 2, (2, 3, 3))
        mask[0, 0, 0] = 255
        add(meter, 1.0, logits, mask, count=17)
        whole += torch.bincount((mask * 2 + logits.argmax(1))[mask != 255], minlength=4).view(2, 2)
    union = whole.sum(0) + whole.sum(1) - whole.diag()
    assert scoring.scores(meter.take()).mIoU == pytest.approx((whole.diag() / union).mean().item())


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_refused_before_it_is_used(loss):
    with pytest.raises(DivergedError, match="the loss became"):
        add(Meter(Scoring(Classification()), eager=True), loss, torch.zeros(1, 2), torch.zeros(1, dtype=torch.long))


def add_both(meter):
    for size in (2, 1):
        add(meter, 1.0, torch.zeros(size, 1), torch.zeros(size, 1))


def test_a_metric_that_fails_or_changes_is_named():
    def changing(outputs, _targets):
        return (outputs.sum(),) if len(outputs) > 1 else (1, 2)

    for sums, says in [(lambda *_: 1 / 0, "the sums of the metric mine raised ZeroDivisionError"),
                       (lambda *_: "x", "the sums of the metric mine are str"),
                       (changing, "the sums of mine changed")]:  # fmt: skip
        task = Regression()
        task.metrics = {"mine": Metric(sums=sums)}
        meter = Meter(Scoring(task), eager=True)
        with pytest.raises(TaskError, match=says):
            add_both(meter)
    task.metrics = {"mine": Metric(sums=lambda *_: (0, 0))}
    meter = Meter(Scoring(task), eager=True)
    add(meter, 1.0, torch.zeros(2, 1), torch.zeros(2, 1))
    assert math.isnan(Scoring(task).scores(meter.take()).mine), "recorded as it is"
