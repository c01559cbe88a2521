"""Batched augmentation: equal to a one-sample reference, and independent of the batch."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.data.split import ImageBatch
from tests.data import reference
from tests.data.augmented import IMAGES, MEAN, NUM, SEED, STD, batched_bytes, pictures, plain, split

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
ONE_BY_ONE = {
    "crop4": (lambda image, draws: reference.crop(image, draws, padding=4), 0),
    "crop3-reflect": (lambda image, draws: reference.crop(image, draws, padding=3, reflect=True), 0),
    "flip": (reference.flip, 0),
    "altflip": (reference.alternating_flip, 0),
    # Both bicubic passes round to bytes, and our weights have 14 bits instead of 22.
    "resized-crop": (reference.resized_crop, 2),
    "resized-crop0.5": (lambda image, draws: reference.resized_crop(image, draws, 0.5), 2),
    "brightness0.4": (lambda image, draws: reference.jitter(image, draws, kind="brightness", strength=0.4), 0),
    "contrast1.5": (lambda image, draws: reference.jitter(image, draws, kind="contrast", strength=1.5), 0),
    "saturation0.4": (lambda image, draws: reference.jitter(image, draws, kind="saturation", strength=0.4), 0),
}


def same(one, other):
    return all(
        (a is None and b is None) or (a is not None and b is not None and torch.equal(a, b))
        for a, b in zip(one, other, strict=True)
    )


def rows(batch, indices):
    targets = None if batch.targets is None else batch.targets[indices]
    return ImageBatch(batch.images[indices], batch.labels[indices], targets)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_a_sample_does_not_depend_on_the_batch_it_is_asked_in(policy, data):
    images = IMAGES[:, : data.draw(st.sampled_from([1, 3]))]
    ids = np.array(data.draw(st.lists(st.integers(0, NUM - 1), min_size=1, max_size=40)))
    epoch = data.draw(st.integers(0, 1000))
    augmented = split(policy, images)
    whole = augmented.fetch(np.arange(NUM), epoch)
    asked = augmented.fetch(ids, epoch)
    assert same(asked, rows(whole, torch.from_numpy(ids)))
    assert same(augmented.fetch(ids[:1], epoch), rows(asked, torch.tensor([0])))


@pytest.mark.parametrize("policy", POLICIES)
def test_epochs_and_seeds_change_what_is_seen_and_the_same_epoch_repeats_it(policy):
    ids = np.arange(NUM)
    first = split(policy).fetch(ids, 1)
    assert same(first, split(policy).fetch(ids, 1))
    assert not torch.equal(first.images, split(policy).fetch(ids, 2).images)
    assert not torch.equal(first.images, split(policy, seed=8).fetch(ids, 1).images)


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
    for index, sample in enumerate(ids):
        expected = reference.planes(
            alone(reference.picture(images[sample]), reference.SampleDraws(SEED, epoch, sample))
        )
        assert np.abs(batched[index].astype(int) - expected).max() <= tolerance


def test_normalisation_agrees_with_plain_arithmetic():
    batched = plain(np.arange(4))
    for sample in range(4):
        assert np.array_equal(batched[sample], reference.normalised(IMAGES[sample], MEAN, STD))


def test_evaluation_is_not_augmented_and_no_policy_means_plain_images():
    ids = np.arange(NUM)
    everything = split("resized-crop,flip,rand-m9,erase1,mixup0.2")
    assert np.array_equal(everything.fetch(ids, None).images.numpy(), plain(ids))
    assert np.array_equal(split("none").fetch(ids, 5).images.numpy(), plain(ids))


def test_colour_images_leave_pixel_by_pixel_and_grey_ones_contiguous():
    batch = split("crop4,flip").fetch(np.arange(8), 0)
    assert batch.images.is_contiguous(memory_format=torch.channels_last)
    assert batch.images.dtype == torch.float32
    assert split("crop4", IMAGES[:, :1]).fetch(np.arange(8), 0).images.is_contiguous()


def test_images_without_room_for_the_filter_survive_every_step():
    tiny = pictures(height=2, width=2)
    batch = split("crop1,resized-crop,flip,jitter0.4,rand-m9-mstd0.5-inc1,erase1,cutout2,cutmix1.0", tiny)
    assert torch.isfinite(batch.fetch(np.arange(NUM), 0).images).all()
