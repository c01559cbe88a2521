"""What a family of models provides to the zoo: names, and a builder for each."""

from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

import torch
from torch import nn

ImageShape = tuple[int, int, int]
"""Channels, height and width in pixels."""

Builder = Callable[[int, ImageShape], nn.Module]
"""Takes the number of classes and the shape of an image."""

Family = Mapping[str, Builder]


@runtime_checkable
class Preparable(Protocol):
    """A model, ours or the user's own, that is initialised from training images.

    `prepare` may set only parameters and buffers, so that checkpoints contain the result.
    """

    def prepare(self, images: torch.Tensor) -> None:
        """Initialise from normalised images (N×C×H×W, on the CPU): the same ones on every rank."""
        ...
