"""The setting --augment: what it means, and what it says when it is wrong."""

import pickle

import pytest

from paceline.core.augment_syntax import EXAMPLES
from paceline.data.augment.colour import Brightness, Contrast, Saturation
from paceline.data.augment.crops import AlternatingFlip, Crop, Flip, ResizedCrop
from paceline.data.augment.erasing import Cutout, Erase
from paceline.data.augment.mixing import Mixing
from paceline.data.augment.policy import Policy, parse_policy
from paceline.data.augment.randaugment import RandAugment


def test_the_settings_of_the_seed_mean_what_timm_means_by_them():
    policy = parse_policy("resized-crop,flip,rand-m9-mstd0.5-inc1,erase0.25")
    rand = RandAugment(magnitude=9.0, spread=0.5, increasing=True, layers=2, chance=0.5)
    assert policy.pixel_steps == (ResizedCrop(0.08), Flip(), rand)
    assert policy.value_steps == (Erase(0.25),)
    assert policy.mixing is None


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("crop4", (Crop(4),)),
        ("crop4-reflect", (Crop(4, "reflect"),)),
        ("altflip", (AlternatingFlip(),)),
        ("jitter0.4", (Brightness(0.4), Contrast(0.4), Saturation(0.4))),
        ("contrast0.2, flip", (Contrast(0.2), Flip())),
        ("resized-crop0.35", (ResizedCrop(0.35),)),
        ("rand-m7-mmax20-n3-p0.9", (RandAugment(magnitude=7.0, ceiling=20.0, layers=3, chance=0.9),)),
        ("none", ()),
        ("", ()),
    ],
)
def test_steps_on_bytes_keep_the_order_they_are_given_in(text, steps):
    assert parse_policy(text).pixel_steps == steps


def test_cutout_comes_after_normalisation_and_both_mixes_share_one_step():
    policy = parse_policy("mixup0.2,cutout8,cutmix1.0,crop4")
    assert policy.value_steps == (Cutout(8),)
    assert policy.mixing == Mixing(mixup=0.2, cutmix=1.0)


def test_every_example_can_be_read():
    assert all(parse_policy(example) != Policy() for example in EXAMPLES)


def test_a_policy_travels_to_worker_processes():
    policy = parse_policy("crop4,rand-m9-mstd0.5-inc1,erase0.25,mixup0.2")
    assert pickle.loads(pickle.dumps(policy)) == policy


def test_the_resized_crop_can_be_left_to_the_decoder():
    policy = parse_policy("resized-crop,flip,jitter0.4")
    assert policy.resized_crop == ResizedCrop(0.08)
    assert policy.after_decoding().resized_crop is None
    assert Flip() in policy.after_decoding().pixel_steps
