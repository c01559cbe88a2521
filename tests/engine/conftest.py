from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.core.config import Config
from paceline.engine.checkpoint import Checkpoints, load_checkpoint

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


@pytest.fixture
def quick(tmp_path: Path):
    """Return settings for a run of a second or two."""

    def make(**settings: Any) -> Config:
        usual = {"model": "mlp", "epochs": 2, "threads": 1, "runs_dir": tmp_path / "runs", "track": ()}
        return Config(**(usual | settings))

    return make


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def final_state(folder: Path) -> dict[str, Any]:
    """Return the last checkpoint of a run without what names the run itself."""
    state = load_checkpoint(Checkpoints(folder / "checkpoints", keep=1).named("last"))
    return {key: value for key, value in state.items() if key != "config"}


def differences(first: Any, second: Any, path: str = "") -> list[str]:
    """Return where two states differ, to the last bit."""
    if isinstance(first, torch.Tensor):
        same = first.dtype == second.dtype and first.shape == second.shape and torch.equal(first, second)
        return [] if same else [path]
    if isinstance(first, dict):
        if first.keys() != second.keys():
            return [f"{path}: {sorted(map(str, first.keys() ^ second.keys()))}"]
        return [found for key in first for found in differences(first[key], second[key], f"{path}/{key}")]
    if isinstance(first, list | tuple):
        pairs = enumerate(zip(first, second, strict=True))
        return [found for place, pair in pairs for found in differences(*pair, f"{path}/{place}")]
    return [] if first == second else [f"{path}: {first} != {second}"]
