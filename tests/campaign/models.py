"""Models with and without batch norm and dropout, small enough for hundreds of runs."""

from torch import nn


def plain(num_classes, image_shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.GELU(), nn.LayerNorm(48), nn.Linear(48, num_classes))


def dropped(num_classes, image_shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Dropout(0.3), nn.Linear(48, num_classes))


def normed(num_classes, image_shape):
    inner = [nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2)]
    return nn.Sequential(*inner, nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 9, num_classes))
