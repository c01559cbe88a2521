"""The learning rate: each shape at its corners, warm-up, scaling, and the line that says it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.batch_plan import BatchPlan
from paceline.core.config import Config
from paceline.core.schedule import SHAPES, LrPlan

STEPS = 10
"""Steps of an epoch in every plan here."""


def lr_plan(epochs=10, batch=128, **settings):
    config = Config(epochs=epochs, global_batch=batch, **settings)
    return LrPlan.make(config, BatchPlan.make(config, num_samples=batch * STEPS, world_size=1))


def test_constant_stays():
    plan = lr_plan(schedule="constant", lr=0.3)
    assert {plan.at(step) for step in range(100)} == {0.3}


def test_cosine_starts_at_the_peak_passes_half_and_nears_zero():
    plan = lr_plan(schedule="cosine", lr=0.2)
    assert plan.at(0) == 0.2
    assert plan.at(50) == pytest.approx(0.1)
    assert plan.at(100) == pytest.approx(0, abs=1e-15)
    assert 0 < plan.at(99) < 0.2 * 0.001


def test_milestones_drop_at_the_first_step_of_their_epoch():
    plan = lr_plan(schedule="milestones", milestones=(3, 6), decay_rate=0.1, lr=1.0)
    assert [plan.at(step) for step in (0, 29, 30, 59, 60, 99)] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


def test_step_drops_every_so_many_epochs():
    plan = lr_plan(schedule="step", decay_every=4, decay_rate=0.5, lr=1.0)
    assert [plan.at(step) for step in (0, 39, 40, 79, 80, 99)] == [1, 1, 0.5, 0.5, 0.25, 0.25]


def test_one_cycle_rises_over_three_tenths_and_falls_to_zero():
    plan = lr_plan(schedule="one-cycle", lr=1.0)
    assert plan.warmup_steps == 30
    assert plan.at(0) == pytest.approx(1 / 25 + (1 - 1 / 25) / 30)
    assert plan.at(29) == pytest.approx(1.0)
    assert plan.at(30) == 1.0
    assert plan.at(65) == pytest.approx(0.5)
    assert plan.at(99) == pytest.approx(1 / 70)


def test_one_cycle_takes_the_warmup_that_is_given():
    assert lr_plan(schedule="one-cycle", warmup=2).warmup_steps == 20


@pytest.mark.parametrize("schedule", ["constant", "cosine", "step"])
def test_warmup_rises_in_equal_steps_to_the_peak(schedule):
    plan = lr_plan(schedule=schedule, warmup=2, lr=1.0)
    assert [plan.at(step) for step in range(20)] == pytest.approx([(step + 1) / 20 for step in range(20)])
    assert plan.at(20) == 1.0


def test_cosine_after_warmup_covers_the_rest():
    plan = lr_plan(schedule="cosine", warmup=2, lr=1.0)
    assert plan.at(60) == pytest.approx(0.5)


def test_warmup_may_be_shorter_than_an_epoch_or_longer_than_the_run():
    assert lr_plan(warmup=0.5).warmup_steps == 5
    longer = lr_plan(warmup=20, epochs=10, lr=1.0, schedule="cosine")
    assert longer.warmup_steps == 100
    assert longer.at(99) == pytest.approx(1.0)


@given(st.sampled_from(sorted(SHAPES)), st.floats(0, 30), st.integers(1, 40), st.integers(1, 400))
def test_every_step_has_a_finite_positive_rate_up_to_the_peak(schedule, warmup, epochs, steps):
    milestones = (2, 4) if schedule == "milestones" else ()
    plan = lr_plan(schedule=schedule, warmup=warmup, epochs=epochs, steps=steps, milestones=milestones)
    rates = [plan.at(step) for step in range(plan.plan.total_steps)]
    assert all(0 < rate <= plan.peak * (1 + 1e-12) for rate in rates)


@pytest.mark.parametrize(
    ("scaling", "batch", "peak"), [("none", 256, 0.1), ("linear", 256, 0.2), ("linear", 64, 0.05), ("sqrt", 512, 0.2)]
)
def test_the_rate_scales_with_the_global_batch(scaling, batch, peak):
    plan = lr_plan(lr=0.1, batch=batch, lr_scaling=scaling, reference_batch=128)
    assert plan.peak == pytest.approx(peak)


def test_scaling_is_relative_to_the_reference_batch():
    assert lr_plan(lr=0.1, batch=256, lr_scaling="linear", reference_batch=512).peak == 0.05


def test_the_plan_shows_the_arithmetic_in_one_line():
    plan = lr_plan(lr=0.1, batch=256, lr_scaling="linear", warmup=5)
    assert "0.1 × 256/128 = 0.2, warm-up 5 epochs" in str(plan)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"schedule": "constant"}, "0.1, constant"),
        ({"schedule": "constant", "warmup": 1}, "0.1, warm-up 1 epoch, then constant"),
        ({"schedule": "cosine"}, "0.1, cosine to 0"),
        ({"schedule": "one-cycle"}, "0.1, warm-up 3 epochs, then linear to 0"),
        ({"schedule": "step", "decay_every": 30}, "0.1, × 0.1 every 30 epochs"),
        ({"schedule": "step", "decay_every": 1}, "0.1, × 0.1 every epoch"),
        ({"schedule": "milestones", "milestones": (60, 120)}, "0.1, × 0.1 at epochs 60, 120"),
        ({"schedule": "milestones", "milestones": (60,)}, "0.1, × 0.1 at epoch 60"),
        ({"lr_scaling": "sqrt", "batch": 512}, "0.1 × √(512/128) = 0.2, cosine to 0"),
        ({"optimizer": "adamw"}, "0.001, cosine to 0"),
        ({"lr": 0.025, "warmup": 0.5}, "0.025, warm-up 0.5 epochs, cosine to 0"),
    ],
)
def test_every_plan_reads_as_a_phrase(settings, text):
    assert str(lr_plan(**settings)) == text


def test_the_default_rate_follows_the_optimizer():
    assert [Config(optimizer=name).base_lr for name in ("sgd", "adam", "adamw")] == [0.1, 0.001, 0.001]
    assert math.isclose(Config(optimizer="adam", lr=0.5).base_lr, 0.5)
