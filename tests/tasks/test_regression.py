"""Regression: errors over the targets that are there."""

import math

import pytest
import torch

from paceline.core.errors import TaskError
from paceline.tasks.regression import Regression

NAN = math.nan


def error(outputs, targets) -> float:
    sums = Regression.metrics["error"].sums
    assert callable(sums)
    total, count = sums(torch.tensor(outputs), torch.tensor(targets))
    return float(total / count)


def test_targets_that_would_be_broadcast_are_refused():
    with pytest.raises(TaskError, match="returns 4×1 numbers for targets of 4") as caught:
        Regression().loss(torch.zeros(4, 1), torch.arange(4.0))
    assert caught.value.hint is not None
    assert "targets[:, None]" in caught.value.hint
    assert Regression().loss(torch.zeros(4, 1), torch.arange(4.0)[:, None]) == 14


def test_missing_targets_do_not_count():
    assert error([[1.0, 5.0]], [[3.0, NAN]]) == 2


def test_a_prediction_that_is_no_number_is_no_small_error():
    assert math.isnan(error([[NAN, 5.0]], [[3.0, 5.0]]))
