"""Mixup and cutmix: equal to a one-sample reference, at the cost of a batch."""

import tracemalloc

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from paceline.data.augment.pipeline import Augmentation
from paceline.data.augment.policy import parse_policy
from paceline.data.in_memory import InMemory
from paceline.data.split import Subset
from tests.data import reference
from tests.data.augmented import LABELS, NUM, SEED, plain, split


@pytest.mark.parametrize(("policy", "mix"), [("mixup0.2", reference.mixup), ("cutmix1.0", reference.cutmix)])
def test_mixing_agrees_with_one_image_at_a_time_and_weighs_the_labels(policy, mix):
    ids = np.arange(NUM)
    batch = split(policy).fetch(ids, 3)
    values = plain(ids)
    assert batch.targets is not None
    assert torch.equal(batch.labels, LABELS)
    for sample in ids:
        draws = reference.SampleDraws(SEED, 3, int(sample))
        other = reference.partner(draws, NUM)
        image, weight = mix(
            values[sample], values[other], draws, float(policy.removeprefix("mixup").removeprefix("cutmix"))
        )
        assert np.array_equal(batch.images[sample].numpy(), image)
        expected = torch.zeros(5)
        expected[LABELS[sample]] += weight
        expected[LABELS[other]] += 1 - weight
        assert torch.allclose(batch.targets[sample], expected)
    assert torch.allclose(batch.targets.sum(1), torch.ones(NUM))


class Touching(TorchDispatchMode):
    """Notes which operations of torch get a tensor with at least `least` elements."""

    def __init__(self, least):
        super().__init__()
        self.least, self.operations = least, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        del types
        if any(isinstance(value, torch.Tensor) and value.numel() >= self.least for value in args):
            self.operations.add(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("held_out", [False, True])
@pytest.mark.parametrize("policy", ["mixup0.2", "cutmix1.0"])
def test_mixing_a_batch_touches_its_images_and_not_the_whole_set(policy, held_out):
    num = 200_000
    images, labels = torch.zeros(num, 1, 2, 2, dtype=torch.uint8), torch.arange(num) % 10
    augmentation = Augmentation(policy=parse_policy(policy), seed=SEED)
    whole = InMemory(images, labels, mean=(0.5,), std=(0.5,), augmentation=augmentation)
    some = Subset(whole, np.arange(1, num)) if held_out else whole
    with Touching(num) as touching:
        some.fetch(np.arange(64), 1)
    tracemalloc.start()
    some.fetch(np.arange(64), 1)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < num
    views_and_gathers = {"aten.detach.default", "aten.index.Tensor"}  # which read no more than they return
    assert touching.operations <= views_and_gathers
