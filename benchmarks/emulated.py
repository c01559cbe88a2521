"""A model whose layers take a fixed time and hardly any CPU, as on an accelerator: what the lab predicts and measures.

Twelve megabytes of gradients: the last layer holds half of them, so that they travel while the others compute.
"""

import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

WIDTH = 512
NUM_LAYERS = 6
SECONDS_FORWARD, SECONDS_BACKWARD = 0.010, 0.025


class Pause(torch.autograd.Function):
    """Passes on what it gets, after a while."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        time.sleep(SECONDS_FORWARD)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        time.sleep(SECONDS_BACKWARD)
        return grads[0]


class Layer(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, values: Tensor) -> Tensor:
        return Pause.apply(self.linear(values))  # pyright: ignore[reportReturnType]


class Emulated(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.layers = nn.Sequential(*(Layer(WIDTH, WIDTH) for _ in range(NUM_LAYERS)), Layer(WIDTH, 6 * WIDTH))

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images.flatten(1))[:, : self.num_classes]


def build(num_classes: int) -> nn.Module:
    return Emulated(num_classes)


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(640, 2, 16, 16, generator=generator), torch.arange(640) % 10)
