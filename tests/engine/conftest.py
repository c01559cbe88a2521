"""What the tests of the engine share: a model that sends its own process a signal, and one thread."""

from pathlib import Path

import pytest
import torch

from paceline.core.world import World
from paceline.parallel.team import Team

PLUGIN = '''
import os, signal, torch
from paceline.models.zoo import build_model

class Signals(torch.nn.Module):
    """The small CNN (batch norm and dropout), which sends its own process a signal at a given training step."""

    def __init__(self, num_classes, image_shape):
        super().__init__()
        self.inner = build_model("cnn", num_classes=num_classes, image_shape=image_shape)
        self.steps = 0

    def forward(self, images):
        if self.training:
            self.steps += 1
            if self.steps == int(os.environ.get("TEST_SIGNAL_AT", 0)):
                os.kill(os.getpid(), int(os.environ["TEST_SIGNAL"]))
        return self.inner(images)

class OwnStream(Signals):
    """Draws noise from a stream of its own, which no checkpoint knows of."""

    def __init__(self, num_classes, image_shape):
        super().__init__(num_classes, image_shape)
        self.stream = torch.Generator().manual_seed(0)

    def forward(self, images):
        logits = super().forward(images)
        return logits + 0.1 * torch.randn(logits.shape, generator=self.stream) if self.training else logits
'''


@pytest.fixture
def plugin(tmp_path: Path) -> str:
    path = tmp_path / "signals.py"
    path.write_text(PLUGIN)
    return f"{path}:Signals"


@pytest.fixture(autouse=True)
def always_one_thread(one_thread):
    """Compute with one thread in every test of this folder."""


@pytest.fixture
def alone() -> Team:
    """Return the team of a lone rank."""
    return Team(World(), torch.device("cpu"))
