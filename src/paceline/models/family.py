"""What a family of models offers the zoo: names, and how each is built for some images."""

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
    """A model, ours or the user's own, that looks at training images before it is trained.

    What `prepare` sets must be parameters or buffers, so that checkpoints hold it.
    """

    def prepare(self, images: torch.Tensor) -> None:
        """Look at normalised images (N×C×H×W, on the CPU): the same ones on every rank."""
        ...
