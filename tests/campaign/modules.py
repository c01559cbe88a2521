"""Random modules and their data, as a setting names them: `modules.py:module_7_42` is case 42 of seed 7."""

import random
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tests.campaign.parts import PARTS, REFUSED, WIDTH, Part

NUM_SAMPLES, NUM_CLASSES = 140, 4


def parts_of(seed: int, number: int) -> list[type[Part]]:
    """Return the parts of a module, in order."""
    chance = random.Random(f"module {seed}/{number}")
    parts = chance.choices(PARTS, k=chance.randint(2, 5))
    if chance.random() < 0.1:
        parts.insert(chance.randint(0, len(parts)), chance.choice(REFUSED))
    return parts


class Module(nn.Module):
    """A first and a last layer with some parts between them."""

    def __init__(self, parts: list[type[Part]]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, WIDTH), nn.Linear(WIDTH, NUM_CLASSES)
        self.parts = nn.ModuleList(part() for part in parts)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(images.flatten(1)))
        for part in self.parts:
            hidden = part(hidden)
        return self.last(hidden)


def __getattr__(name: str) -> Any:
    kind, *numbers = name.split("_")
    if kind != "module" or len(numbers) != 2:
        raise AttributeError(name)
    return lambda: Module(parts_of(*map(int, numbers)))


def samples() -> TensorDataset:
    """Return the training data: too few for more than a few steps per epoch."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(NUM_SAMPLES, 1, 4, 4, generator=generator)
    return TensorDataset(images, images.flatten(1)[:, :NUM_CLASSES].argmax(1))
