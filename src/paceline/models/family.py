"""What a family of models offers the zoo: names, and how each is built for some images."""

from collections.abc import Callable, Mapping

from torch import nn

ImageShape = tuple[int, int, int]
"""Channels, height and width in pixels."""

Builder = Callable[[int, ImageShape], nn.Module]
"""Takes the number of classes and the shape of an image."""

Family = Mapping[str, Builder]
