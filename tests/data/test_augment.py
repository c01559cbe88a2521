"""Batched augmentation: equal to a one-sample reference, and to itself however the samples are asked for."""

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from paceline.data.augment.draws import Draws, Purpose, beta_table, log_uniform_table, normal_table
from paceline.data.augment.pipeline import Augmentation
from paceline.data.augment.policy import parse_policy
from paceline.data.augment.randaugment import Op
from paceline.data.memory import InMemory
from paceline.data.split import Batch, Subset
from tests.data import reference

MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
FILL = (125, 122, 115)
NUM = 60
SEED = 7


def pictures(channels=3, height=14, width=11, num=NUM):
    """Return images with flat parts, slopes and noise, one of them of a single colour."""
    rng = np.random.default_rng(3)
    slopes = np.linspace(0, 200, height)[:, None] * rng.random((num, channels, 1, 1)) + np.linspace(0, 55, width)
    noise = rng.integers(0, 256, (num, channels, height, width))
    which = rng.random((num, 1, 1, 1))
    images = np.where(which < 0.5, slopes, noise).astype(np.uint8)
    images[0] = 77
    return images


IMAGES = pictures()
LABELS = torch.arange(NUM) % 5

POLICIES = (
    "crop4",
    "crop3-reflect",
    "flip",
    "altflip",
    "resized-crop",
    "jitter0.4",
    "rand-m9-mstd0.5-inc1",
    "rand-m7-mstd101-n3",
    "erase0.5",
    "cutout5",
    "mixup0.2",
    "cutmix1.0",
    "mixup0.8,cutmix1.0",
    "resized-crop,flip,rand-m9-mstd0.5-inc1,erase0.25",
    "crop4,altflip,jitter0.4,cutout5,mixup0.2",
)


def split(policy, images=IMAGES, seed=SEED):
    channels = images.shape[1]
    augmentation = Augmentation(policy=parse_policy(policy), seed=seed)
    return InMemory(
        torch.from_numpy(images), LABELS, mean=MEAN[:channels], std=STD[:channels], augmentation=augmentation
    )


def same(one, other):
    return all(
        (a is None and b is None) or (a is not None and b is not None and torch.equal(a, b))
        for a, b in zip(one, other, strict=True)
    )


def rows(batch, places):
    targets = None if batch.targets is None else batch.targets[places]
    return Batch(batch.images[places], batch.labels[places], targets)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_a_sample_does_not_depend_on_the_batch_it_is_asked_in(policy, data):
    images = IMAGES[:, : data.draw(st.sampled_from([1, 3]))]
    ids = np.array(data.draw(st.lists(st.integers(0, NUM - 1), min_size=1, max_size=40)))
    epoch = data.draw(st.integers(0, 1000))
    part = split(policy, images)
    whole = part.fetch(np.arange(NUM), epoch)
    asked = part.fetch(ids, epoch)
    assert same(asked, rows(whole, torch.from_numpy(ids)))
    assert same(part.fetch(ids[:1], epoch), rows(asked, torch.tensor([0])))


@pytest.mark.parametrize("policy", POLICIES)
def test_epochs_and_seeds_change_what_is_seen_and_the_same_epoch_repeats_it(policy):
    ids = np.arange(NUM)
    first = split(policy).fetch(ids, 1)
    assert same(first, split(policy).fetch(ids, 1))
    assert not torch.equal(first.images, split(policy).fetch(ids, 2).images)
    assert not torch.equal(first.images, split(policy, seed=8).fetch(ids, 1).images)


def batched_bytes(policy, ids, epoch, images=IMAGES):
    """Return what the steps on bytes make of the images."""
    result = images[ids].copy()
    draws = Draws(seed=SEED, epoch=epoch, ids=ids)
    for step in parse_policy(policy).filled(FILL[: images.shape[1]]).pixel_steps:
        result = step(result, draws)
    return result


ONE_BY_ONE = {
    "crop4": (lambda image, dice: reference.crop(image, dice, padding=4), 0),
    "crop3-reflect": (lambda image, dice: reference.crop(image, dice, padding=3, reflect=True), 0),
    "flip": (reference.flip, 0),
    "altflip": (reference.alternating_flip, 0),
    # Both bicubic passes round to bytes, and our weights have 14 bits instead of 22.
    "resized-crop": (reference.resized_crop, 2),
    "resized-crop0.5": (lambda image, dice: reference.resized_crop(image, dice, 0.5), 2),
    "brightness0.4": (lambda image, dice: reference.jitter(image, dice, kind="brightness", strength=0.4), 0),
    "contrast1.5": (lambda image, dice: reference.jitter(image, dice, kind="contrast", strength=1.5), 0),
    "saturation0.4": (lambda image, dice: reference.jitter(image, dice, kind="saturation", strength=0.4), 0),
}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("policy", ONE_BY_ONE)
@settings(max_examples=10, deadline=None)
@given(ids=st.lists(st.integers(0, NUM - 1), min_size=1, max_size=12), epoch=st.integers(0, 500))
def test_batched_steps_agree_with_one_image_at_a_time(policy, channels, ids, epoch):
    if policy.startswith("saturation") and channels == 1:
        return
    alone, tolerance = ONE_BY_ONE[policy]
    images = IMAGES[:, :channels]
    batched = batched_bytes(policy, np.array(ids), epoch, images)
    for place, sample in enumerate(ids):
        expected = reference.planes(alone(reference.picture(images[sample]), reference.Dice(SEED, epoch, sample)))
        assert np.abs(batched[place].astype(int) - expected).max() <= tolerance


TOLERANCE: dict[int | None, int] = {Op.SHEAR_X: 1, Op.SHEAR_Y: 1, Op.SHIFT_X: 1, Op.SHIFT_Y: 1, Op.ROTATE: 6}
"""In bytes: we round where Pillow cuts off, and turn by steps of 1/64 pixel, which shows most in pure noise."""


@pytest.mark.parametrize(("policy", "increasing"), [("rand-m9-mstd0.5-inc1-n1", True), ("rand-m9-mstd0.5-n1", False)])
def test_every_operation_of_randaugment_agrees_with_pillow(policy, increasing):
    ids, seen = np.arange(NUM), set()
    for epoch in range(12):
        batched = batched_bytes(policy, ids, epoch)
        for sample in ids:
            dice = reference.Dice(SEED, epoch, int(sample))
            op = reference.rand_choice(dice, 0)
            image = reference.rand_layer(reference.picture(IMAGES[sample]), dice, 0, increasing=increasing, fill=FILL)
            tolerance = TOLERANCE.get(op, 0)
            assert np.abs(batched[sample].astype(int) - reference.planes(image)).max() <= tolerance, op
            seen.add(op)
    assert seen == {None, *range(len(Op))}


def test_randaugment_layers_follow_one_another():
    ids = np.arange(NUM)
    for epoch in range(4):
        batched = batched_bytes("rand-m9-mstd0.5-inc1", ids, epoch)
        for sample in ids:
            dice = reference.Dice(SEED, epoch, int(sample))
            first, second = (reference.rand_choice(dice, layer) for layer in (0, 1))
            if max(first or 0, second or 0) >= reference.COLOUR_OPS:
                continue
            image = reference.picture(IMAGES[sample])
            for layer in (0, 1):
                image = reference.rand_layer(image, dice, layer, fill=FILL)
            assert np.array_equal(batched[sample], reference.planes(image))


def plain(ids):
    return split("none").fetch(ids, None).images.numpy()


def test_normalisation_agrees_with_plain_arithmetic():
    batched = plain(np.arange(4))
    for sample in range(4):
        assert np.array_equal(batched[sample], reference.normalised(IMAGES[sample], MEAN, STD))


@settings(max_examples=15, deadline=None)
@given(ids=st.lists(st.integers(0, NUM - 1), min_size=1, max_size=12), epoch=st.integers(0, 500))
def test_erasing_and_cutout_agree_with_one_image_at_a_time(ids, epoch):
    places = np.array(ids)
    erased, cut = (split(policy).fetch(places, epoch).images.numpy() for policy in ("erase0.5", "cutout5"))
    for place, (sample, values) in enumerate(zip(ids, plain(places), strict=True)):
        dice = reference.Dice(SEED, epoch, sample)
        assert np.array_equal(erased[place], reference.erase(values, dice, 0.5))
        assert np.array_equal(cut[place], reference.cutout(values, dice, 5))


@pytest.mark.parametrize(("policy", "mix"), [("mixup0.2", reference.mixup), ("cutmix1.0", reference.cutmix)])
def test_mixing_agrees_with_one_image_at_a_time_and_weighs_the_labels(policy, mix):
    ids = np.arange(NUM)
    batch = split(policy).fetch(ids, 3)
    values = plain(ids)
    assert batch.targets is not None
    assert torch.equal(batch.labels, LABELS)
    for sample in ids:
        dice = reference.Dice(SEED, 3, int(sample))
        other = reference.partner(dice, NUM)
        image, share = mix(
            values[sample], values[other], dice, float(policy.removeprefix("mixup").removeprefix("cutmix"))
        )
        assert np.array_equal(batch.images[sample].numpy(), image)
        expected = torch.zeros(5)
        expected[LABELS[sample]] += share
        expected[LABELS[other]] += 1 - share
        assert torch.allclose(batch.targets[sample], expected)
    assert torch.allclose(batch.targets.sum(1), torch.ones(NUM))


def test_evaluation_is_not_augmented_and_no_policy_means_plain_images():
    ids = np.arange(NUM)
    everything = split("resized-crop,flip,rand-m9,erase1,mixup0.2")
    assert np.array_equal(everything.fetch(ids, None).images.numpy(), plain(ids))
    assert np.array_equal(split("none").fetch(ids, 5).images.numpy(), plain(ids))


def test_alternating_flip_shows_both_sides_in_any_two_epochs():
    ids = np.arange(NUM)
    for epoch in range(4):
        now, after = (batched_bytes("altflip", ids, turn) for turn in (epoch, epoch + 1))
        assert np.array_equal(now, after[..., ::-1])


def test_colour_images_leave_pixel_by_pixel_and_grey_ones_contiguous():
    batch = split("crop4,flip").fetch(np.arange(8), 0)
    assert batch.images.is_contiguous(memory_format=torch.channels_last)
    assert batch.images.dtype == torch.float32
    assert split("crop4", IMAGES[:, :1]).fetch(np.arange(8), 0).images.is_contiguous()


def test_images_without_room_for_the_filter_survive_every_step():
    tiny = pictures(height=2, width=2)
    batch = split("crop1,resized-crop,flip,jitter0.4,rand-m9-mstd0.5-inc1,erase1,cutout2,cutmix1.0", tiny)
    assert torch.isfinite(batch.fetch(np.arange(NUM), 0).images).all()


def test_tables_hold_the_quantiles_of_their_distributions():
    quantiles = (np.arange(4096) + 0.5) / 4096
    assert np.allclose(beta_table(1.0), quantiles, atol=1e-6)
    assert np.allclose(beta_table(0.5), np.sin(np.pi * quantiles / 2) ** 2, atol=1e-6)
    two = beta_table(2.0)
    assert np.allclose(3 * two**2 - 2 * two**3, quantiles, atol=1e-5)
    assert abs(beta_table(0.2).var() - 1 / (4 * (2 * 0.2 + 1))) < 1e-3
    assert abs(normal_table().std() - 1) < 1e-2
    assert np.allclose(log_uniform_table(0.5, 2.0)[2047:2049].mean(), 1.0, atol=1e-6)


def test_every_purpose_and_detail_has_dice_of_its_own():
    draws = Draws(seed=1, epoch=2, ids=np.arange(100))
    throws = [tuple(draws.bits(purpose, *detail)) for purpose in Purpose for detail in ((), (0,), (1,), (0, 1), (1, 0))]
    assert len(set(throws)) == len(throws)


def test_images_held_out_of_a_subset_are_never_mixed_into_it():
    images = np.zeros((NUM, 1, 4, 4), np.uint8)
    images[30:] = 255
    batch = Subset(split("mixup1.0", images), np.arange(30)).fetch(np.arange(30), 0)
    assert batch.images.max() < 0
    assert split("mixup1.0", images).fetch(np.arange(30), 0).images.max() > 0


class Touching(TorchDispatchMode):
    """Notes which operations of torch are given a tensor of at least so many elements."""

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
