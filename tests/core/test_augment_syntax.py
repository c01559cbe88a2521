"""The syntax of --augment: steps, their numbers, and what is refused."""

import pytest

from paceline.core.augment_syntax import Step, parse_steps, standard_policy
from paceline.core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        ("flipp", "lists flipp, which is not a step", "did you mean flip?"),
        ("random-crop4", "lists random-crop4, which is not a step", "crop4"),
        ("crop", "needs a number", "crop4"),
        ("flip2", "takes no number", "write flip"),
        ("erase25", "not between 0 and 1", "erase0.25"),
        ("crop2.5", "whole number of pixels", "crop4"),
        ("rand-m9-magic3", "magic3 is not an option of rand", "mstd"),
        ("rand-m9-p3", "p must be between 0 and 1", "rand-m9"),
        ("flip,altflip", "same step twice", "remove one"),
        ("mixup0.2,mixup0.4", "same step twice", "remove one"),
        ("crop4;flip", "lists crop4;flip, which is not a step", "crop"),
    ],
)
def test_a_wrong_step_is_named_with_what_to_write_instead(text, says, hint):
    with pytest.raises(ConfigError) as caught:
        parse_steps(text)
    assert says in caught.value.message
    assert hint in (caught.value.hint or "")


def test_steps_have_the_numbers_they_are_written_with_or_a_default():
    assert parse_steps("crop4-reflect, resized-crop,erase.25") == (
        Step(name="crop", number=4.0, reflect=True),
        Step(name="resized-crop", number=0.08),
        Step(name="erase", number=0.25),
    )


def test_options_of_rand_have_full_names():
    (step,) = parse_steps("rand-m9-mstd0.5-inc1")
    assert step.options == {"magnitude": 9.0, "spread": 0.5, "increasing": 1.0}


@pytest.mark.parametrize("text", ["", "none", " none ", ","])
def test_no_step_at_all_can_be_written(text):
    assert parse_steps(text) == ()


def test_none_does_not_stand_beside_a_step():
    with pytest.raises(ConfigError, match="none, which is not a step"):
        parse_steps("flip,none")


@pytest.mark.parametrize(
    ("data", "policy"),
    [("cifar10", "crop4,flip"), ("folder:/some/cifar10", "resized-crop,flip"), ("digits", "none"), ("a.py:f", "none")],
)
def test_a_data_set_has_its_standard_augmentation(data, policy):
    assert standard_policy(data) == policy
