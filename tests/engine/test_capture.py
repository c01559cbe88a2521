"""Checkpoints move between memory layouts."""

import copy

import pytest
import torch
from torch import nn

from paceline.core.config import Config
from paceline.core.world import World
from paceline.engine.capture import capture_optimizer, restore_optimizer
from paceline.engine.optimizer import build_optimizer
from paceline.parallel.team import Team


def step(model: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor) -> None:
    model(images).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_restored_optimizer_state_has_the_memory_layout_of_its_parameter(name):
    """A fused optimizer reads both in the order of memory: with different layouts it would mix up weights."""
    torch.manual_seed(0)
    images = torch.randn(4, 3, 6, 6)
    model = nn.Conv2d(3, 5, 3).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    optimizer = build_optimizer(Config(optimizer=name), model)
    step(model, optimizer, images)
    saved = {
        parameter: {key: value.clone(memory_format=torch.contiguous_format) for key, value in memory.items()}
        for parameter, memory in capture_optimizer(optimizer, model).items()
    }
    again = copy.deepcopy(model)
    restored = build_optimizer(Config(optimizer=name), again)
    restore_optimizer(restored, again, saved, Team(World(), torch.device("cpu")))
    assert all(
        value.stride() == parameter.stride()
        for parameter, memory in restored.state.items()
        for value in memory.values()
        if value.dim()
    )
    for each in ((model, optimizer), (again, restored)):
        step(*each, images)
    assert torch.equal(model.weight, again.weight)
