"""Runs with one cause planted in them, as a user's own model and data; `planted.py:model` and `planted.py:data`.

Computing is a pause here, so that two ranks on a busy machine take as long as two ranks on two machines.
"""

import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.core.config import Config
from paceline.data.catalog import open_data
from paceline.data.split import DataSet, Ids, ImageBatch, Split

FILE = Path(__file__)
PAUSE = 0.02
"""Seconds of a forward pass; a backward pass takes twice as long."""
SETTINGS = {
    "model": f"{FILE}:model", "data": f"{FILE}:data", "global_batch": 64, "steps": 24, "log_every": 6, "lr": 0.001,
    "eval_every": "1000 steps", "save_every": "8 steps", "track": "none", "device": "cpu",
}  # fmt: skip
CAUSE = "PLANTED_CAUSE"
SLOW_RANK = 1
SLOWER = 1.6
SECONDS_PER_SAMPLE = 0.002
SECONDS_PER_SYNC = 0.1


class Pause(torch.autograd.Function):
    """Stands for the computing of a device: takes its time and uses no core."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        time.sleep(seconds)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        time.sleep(2 * ctx.seconds)
        return gradients[0], None


class Paced(torch.nn.Module):
    """1.2 MB of gradients, and a pause in each pass."""

    def __init__(self, pixels: int, num_classes: int, seconds: float) -> None:
        super().__init__()
        self.first = torch.nn.Linear(pixels, 512)
        self.middle = torch.nn.Linear(512, 512)
        self.last = torch.nn.Linear(512, num_classes)
        self.seconds = seconds

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.first(images.flatten(1)).relu()
        if self.training:
            hidden = Pause.apply(hidden, self.seconds)
        return self.last(self.middle(hidden).relu())


class SlowTrain:
    """Training samples from a disk that takes its time."""

    def __init__(self, inner: Split) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def fetch(self, ids: Ids, epoch: int | None) -> ImageBatch:
        if epoch is not None:
            time.sleep(SECONDS_PER_SAMPLE * len(ids))
        return self.inner.fetch(ids, epoch)


def model(num_classes: int, image_shape: tuple[int, int, int]) -> torch.nn.Module:
    cause = os.environ.get(CAUSE)
    if cause == "checkpoint":
        make_disk_slow()
    slower = SLOWER if cause == "slow rank" and rank() == SLOW_RANK else 1.0
    pixels = image_shape[0] * image_shape[1] * image_shape[2]
    return Paced(pixels, num_classes, PAUSE * slower)


def data(data_dir: Path) -> DataSet:
    digits = open_data(Config(data="digits"))
    if os.environ.get(CAUSE) != "slow loader" or rank() != SLOW_RANK:
        return digits
    return DataSet(
        train=SlowTrain(digits.train), test=digits.test, classes=digits.classes, image_shape=digits.image_shape
    )


def rank() -> int:
    if torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return int(os.environ.get("RANK", "0"))


def make_disk_slow() -> None:
    sync = os.fsync

    def slow_sync(handle: int) -> None:
        time.sleep(SECONDS_PER_SYNC)
        sync(handle)

    os.fsync = slow_sync
