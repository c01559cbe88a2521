"""Batches come out the same whether they are prepared one by one, in groups, here or by workers."""

import gc
import multiprocessing
import os
import signal
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest
import torch

from paceline.core.errors import DataError
from paceline.data.augment.pipeline import Augmentation
from paceline.data.augment.policy import parse_policy
from paceline.data.in_memory import InMemory
from paceline.data.loader import load_batches
from paceline.data.split import Ids, ImageBatch, Subset

RICH = "resized-crop,flip,rand-m9-mstd0.5-inc1,erase0.5,mixup0.4,cutmix1.0"
SIZES = (128, 128, 128, 100, 300, 1, 60)


def some_images(num=900, size=16, policy=RICH):
    rng = np.random.default_rng(0)
    return InMemory(
        torch.from_numpy(rng.integers(0, 256, (num, 3, size, size), dtype=np.uint8)),
        torch.from_numpy(rng.integers(0, 10, num)),
        mean=(0.5, 0.5, 0.5),
        std=(0.25, 0.25, 0.25),
        augmentation=None if policy is None else Augmentation(policy=parse_policy(policy), seed=3),
    )


def some_requests(epoch, num=900):
    """Return ragged batches of an epoch."""
    order = np.random.default_rng(0).permutation(num)
    return [(order[end - size : end], epoch) for size, end in zip(SIZES, np.cumsum(SIZES), strict=True)]


def assert_same(one: ImageBatch, other: ImageBatch):
    assert one.images.stride() == other.images.stride()
    assert torch.equal(one.images, other.images)
    assert torch.equal(one.labels, other.labels)
    assert (one.targets is None) == (other.targets is None)
    if one.targets is not None and other.targets is not None:
        assert torch.equal(one.targets, other.targets)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("held_out", "epoch"), [(False, 4), (True, 4), (True, None)])
def test_grouped_batches_equal_those_fetched_alone(workers, held_out, epoch):
    images = some_images()
    split = Subset(images, np.arange(0, 900)[::-1].copy()) if held_out else images
    requests = some_requests(epoch)
    assert split.group_size == 512
    batches = list(load_batches(split, requests, workers=workers, pin=False))
    assert len(batches) == len(requests)
    for batch, (ids, _) in zip(batches, requests, strict=True):
        assert_same(batch, split.fetch(ids, epoch))


def test_workers_without_a_batch_to_prepare_are_not_started():
    assert list(load_batches(some_images(num=4), [], workers=2, pin=False)) == []


def test_workers_are_forked_whatever_the_default_is():
    default = multiprocessing.get_start_method()
    multiprocessing.set_start_method("forkserver", force=True)
    try:
        batches = list(load_batches(some_images(num=4), [(np.arange(4), 0)], workers=1, pin=False))
    finally:
        multiprocessing.set_start_method(default, force=True)
    assert len(batches) == 1


def test_the_comparison_would_notice_an_image_out_of_place():
    split = some_images()
    ids = np.arange(50)
    with pytest.raises(AssertionError):
        assert_same(split.fetch(ids, 1), split.fetch(ids[::-1].copy(), 1))


@dataclass
class Plain:
    """A split that does not say how many images it likes to prepare at once."""

    asked: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return 100

    def fetch(self, ids: Ids, epoch: int | None) -> ImageBatch:
        self.asked.append(len(ids))
        return ImageBatch(torch.zeros(len(ids), 1, 2, 2), torch.zeros(len(ids), dtype=torch.int64))


def test_other_splits_are_asked_batch_by_batch():
    split = Plain()
    batches = load_batches(split, [(np.arange(4), 0)] * 3, workers=0, pin=False)
    next(batches)
    assert split.asked == [4]
    assert Subset(split, np.arange(10)).group_size == 1


class Remains:
    """Something that is left in a circle, and writes down which process collects it."""

    def __init__(self, grave):
        self.grave, self.itself = grave, self

    def __del__(self):
        with self.grave.open("a") as file:
            file.write(f"{os.getpid()}\n")


@dataclass
class Collecting(Plain):
    """A split that collects garbage when it is asked."""

    def fetch(self, ids: Ids, epoch: int | None) -> ImageBatch:
        gc.collect()
        return super().fetch(ids, epoch)


def test_a_worker_does_not_collect_what_the_training_process_left(tmp_path):
    """The connections of an earlier run have threads, which a worker does not have: to end them would end it."""
    grave = tmp_path / "grave"
    gc.disable()
    try:
        Remains(grave)
        list(load_batches(Collecting(), [(np.arange(4), 0)] * 3, workers=1, pin=False))
    finally:
        gc.enable()
    gc.collect()
    assert grave.read_text().split() == [str(os.getpid())]


class Leaving:
    """A data set that ends its process."""

    def fetch(self, ids, epoch):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_is_killed_is_named_with_what_to_do():
    batches = load_batches(cast("Any", Leaving()), [(np.arange(4), 0)] * 3, workers=1, pin=False)
    with pytest.raises(DataError, match=r"a loader worker \(process \d+\) exited without an error report") as caught:
        list(batches)
    assert "--workers 0" in str(caught.value.hint)
