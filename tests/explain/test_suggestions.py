"""What to change when a step waits for gradients, and when a profile is used for that."""

from dataclasses import replace

import pytest

from paceline.explain.suggestions import step_scenario, suggest_changes
from tests.explain.sample_phases import CONFIG, a_run, profile_of


def test_a_profile_that_does_not_fit_the_run_is_not_believed():
    split = a_run(communication=0.26, about={"gradient_bytes": 44_700_000})
    assert step_scenario(split, CONFIG, profile_of(bandwidth=44.7e6 / 0.36)).from_profile
    assert not step_scenario(split, CONFIG, profile_of(bandwidth=44.7e6 / 0.03)).from_profile
    assert not step_scenario(split, CONFIG, replace(profile_of(bandwidth=44.7e6 / 0.36), world_size=4)).from_profile


def test_a_profile_of_several_parts_waits_for_gradients_once():
    split, plain = a_run(communication=0.26, about={"gradient_bytes": 44_700_000}), profile_of(bandwidth=44.7e6 / 0.36)
    names = ("data", "copy", "forward", "backward")
    twice = {name: tuple(2 * value for value in getattr(plain.free[0], name)) for name in names}
    rank = replace(plain.free[0], **twice, step=(0.665,) * 4)
    parts = replace(plain, accumulate=2, free=(rank, rank), samples_per_rank=8, global_batch=16)
    one, two = (step_scenario(split, CONFIG, profile) for profile in (plain, parts))
    assert two.from_profile
    assert two.exposed == pytest.approx(one.exposed)
    assert two.seconds == pytest.approx(one.seconds + 0.3315)
    assert two.with_work(more=2) == pytest.approx(one.with_work(more=4))


def actions(scenario, config=CONFIG):
    return [suggestion.action for suggestion in suggest_changes(scenario, config)]


def test_other_bucket_sizes_are_tried_only_with_a_profile():
    split = a_run(communication=0.26, about={"gradient_bytes": 44_700_000})
    profiled = step_scenario(split, CONFIG, profile_of(bandwidth=44.7e6 / 0.36))
    (buckets,) = [found for found in suggest_changes(profiled, CONFIG) if found.action.startswith("--bucket-mb")]
    assert buckets.action == "--bucket-mb 1", "latency is 0: the smallest is sent first"
    # Half of the gradients are ready at 200 ms and need 180 ms: in small buckets most of them are sent by then.
    before, after = 0.0315 + 0.2 + 0.36 + 0.002, 0.0315 + 0.2 + 0.18 / 22.35 + 0.18 + 0.002
    assert buckets.gain == pytest.approx(before / after, rel=1e-3)
    assert not any(action.startswith("--bucket-mb") for action in actions(step_scenario(split, CONFIG, None)))


def test_gradients_that_are_compressed_already_are_not_compressed_again():
    split = a_run(communication=0.36, about={"gradient_bytes": 44_700_000})
    half = replace(CONFIG, compress="fp16")
    assert "--compress fp16" in actions(step_scenario(split, CONFIG, None))
    assert "--compress fp16" not in actions(step_scenario(split, half, None), half)
    plain, sent = (step_scenario(split, config, None).work.gradient_bytes for config in (CONFIG, half))
    assert (plain, sent) == (44_700_000, 22_350_000)


def test_a_change_that_gains_next_to_nothing_is_not_suggested():
    assert actions(step_scenario(a_run(communication=0.0001), CONFIG, None)) == []


def test_phases_alone_give_back_the_step_that_was_measured():
    split = a_run(communication=0.36, about={"gradient_bytes": 44_700_000})
    scenario = step_scenario(split, CONFIG, None)
    assert scenario.seconds == pytest.approx(float(split.steady_state.step.mean()))
    assert scenario.exposed == pytest.approx(0.36)
