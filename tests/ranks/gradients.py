"""Gradients of a global batch inside the rank pool, as the loop computes them, and how far two are apart."""

from typing import Any

import torch
from torch import nn

from paceline.core.config import Config
from paceline.engine.clock import clock_for
from paceline.engine.job import build_job
from paceline.engine.loop import Training
from paceline.engine.progress import Progress
from paceline.engine.recorder import Recorder
from paceline.parallel.team import Team


def training_of(team: Team, settings: dict[str, Any]) -> Training:
    """Return the loop of a run before its first step."""
    job, progress, clock = build_job(Config(**settings), team), Progress(), clock_for(team, began=team.world.began)
    recorder = Recorder(job.plan, progress, team, scoring=job.scoring, clock=clock)
    return Training(job, progress, team, recorder, clock=clock)


def gradient(team: Team, settings: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return the gradient of the first global batch, as the loop computes it."""
    training = training_of(team, settings)
    training.gradients(*next(training.batches_of_epoch()))
    return gradients_of(training.job.model)


def gradients_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}


def largest_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(((one[name] - other[name]).abs().max() / other[name].abs().max()).item() for name in other)
