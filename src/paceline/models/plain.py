"""The networks without shortcuts: a perceptron with one hidden layer, and a small convolutional network."""

import math
from collections import OrderedDict

from torch import nn

from paceline.models.family import Family, ImageShape
from paceline.models.residual import conv3x3, draw_convolutions

HIDDEN = 128
DROPOUT = 0.25


def build_mlp(num_classes: int, image_shape: ImageShape) -> nn.Module:
    """Return pixels → 128 → classes, with ReLU."""
    return nn.Sequential(
        OrderedDict(
            flatten=nn.Flatten(),
            linear1=nn.Linear(math.prod(image_shape), HIDDEN),
            relu=nn.ReLU(),
            linear2=nn.Linear(HIDDEN, num_classes),
        )
    )


def build_cnn(num_classes: int, image_shape: ImageShape) -> nn.Module:
    """Return three convolutions with batch norm, a mean over the image, dropout and a classifier."""
    model = nn.Sequential(
        OrderedDict(
            layer1=_layer(image_shape[0], 16, stride=1),
            layer2=_layer(16, 32, stride=2),
            layer3=_layer(32, 64, stride=2),
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            dropout=nn.Dropout(DROPOUT),
            linear=nn.Linear(64, num_classes),
        )
    )
    draw_convolutions(model)
    return model


def _layer(num_in: int, num_out: int, *, stride: int) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(conv=conv3x3(num_in, num_out, stride), norm=nn.BatchNorm2d(num_out), relu=nn.ReLU())
    )


FAMILY: Family = {"mlp": build_mlp, "cnn": build_cnn}
