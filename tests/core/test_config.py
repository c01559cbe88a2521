"""Settings: values that are derived from others."""

import pytest

from paceline.core.config import CHANGEABLE, SETTINGS, Config


def test_resolving_fills_in_derived_values():
    resolved = Config(model="my.py:build", data="digits", optimizer="adam").resolved()
    assert (resolved.lr, resolved.name) == (0.001, "digits-my")
    assert resolved.resolved() == resolved


@pytest.mark.parametrize(
    ("settings", "shards"),
    [
        ({}, None),
        ({"shards": 6}, 6),
        ({"exact": "bitwise"}, 4),
        ({"batch_norm": "ghost", "global_batch": 255}, 4),
        ({"exact": "bitwise", "global_batch": 256}, 8),
        ({"exact": "bitwise", "global_batch": 256, "shards": 6}, 6),
    ],
)
def test_the_usual_shards_have_32_samples_each(settings, shards):
    resolved = Config(**settings).resolved()
    assert resolved.shards == shards
    assert resolved.resolved() == resolved


@pytest.mark.parametrize(
    ("data", "policy"),
    [
        ("digits", "none"),
        ("cifar10", "crop4,flip"),
        ("folder:/pictures", "resized-crop,flip"),
        ("packed:/set.pack", "resized-crop,flip"),
        ("my.py:build", "none"),
    ],
)
def test_the_usual_augmentation_depends_on_the_data(data, policy):
    assert Config(data=data).augment_policy == policy
    assert Config(data=data).resolved().augment == policy
    assert Config(data=data, augment="crop1").augment_policy == "crop1"


@pytest.mark.parametrize(
    ("data", "name"),
    [("folder:/a/pictures", "pictures"), ("folder:pictures/", "pictures"), ("packed:/a/set.pack", "set.pack")],
)
def test_a_run_on_a_folder_or_a_pack_is_named_after_it(data, name):
    assert Config(data=data, model="cnn").run_name == f"{name}-cnn"


def test_every_changeable_setting_is_a_setting():
    assert set(SETTINGS) > CHANGEABLE
