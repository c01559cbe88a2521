"""What limits a run: each kind is named when it is there, and none when it is not."""

from dataclasses import replace

import pytest

from paceline.explain.bottlenecks import find_bottlenecks
from tests.explain.sample_phases import CONFIG, a_run, profile_of


def kinds(split, config=CONFIG, profile=None):
    return [bottleneck.kind for bottleneck in find_bottlenecks(split, config, profile)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_a_healthy_run_is_left_in_peace(ranks):
    assert kinds(a_run(ranks)) == []


def test_a_slow_loader_of_one_rank_is_told_from_slow_data_of_all():
    assert kinds(a_run(data=[0.001, 0.05])) == ["slow loader"]
    (bottleneck,) = find_bottlenecks(a_run(data=0.05), CONFIG)
    assert bottleneck.kind == "data"
    assert bottleneck.suggestions[0].action == "--workers 1"
    busy = find_bottlenecks(a_run(data=0.2), replace(CONFIG, workers=1))
    assert busy[0].suggestions[0].action == "--workers 4"  # one worker takes 0.2965 s for what is used in 0.0965


def test_a_slow_link_is_named_with_what_each_suggestion_brings():
    split = a_run(communication=0.36, about={"gradient_bytes": 44_700_000})
    (bottleneck,) = find_bottlenecks(split, CONFIG)
    assert bottleneck.kind == "link"
    assert bottleneck.sentence.startswith(
        "2 ranks are slower than one because exposed communication of 44.7 MB of gradients"
    )
    assert "993 Mbit/s" in bottleneck.sentence
    gains = {suggestion.action: suggestion.gain for suggestion in bottleneck.suggestions}
    compute = 0.0935 - 0.002
    assert gains["--global-batch 32 --accumulate 4"] == pytest.approx(4 * 0.4535 / (4 * compute + 0.362), rel=0.01)
    assert gains["--compress fp16"] == pytest.approx(0.4535 / 0.2735, rel=0.01)
    assert gains["a link of 9.93 Gbit/s"] == pytest.approx(0.4535 / 0.1295, rel=0.01)
    assert list(gains.values()) == sorted(gains.values(), reverse=True)


def test_what_hides_behind_the_backward_pass_comes_from_the_profile():
    split = a_run(communication=0.26, about={"gradient_bytes": 44_700_000})
    (bottleneck,) = find_bottlenecks(split, CONFIG, profile_of(bandwidth=44.7e6 / 0.36))
    assert "44.7 MB of gradients per step need 360 ms on this link (993 Mbit/s)" in bottleneck.sentence
    assert "of which 100 ms is hidden behind the backward pass" in bottleneck.sentence
    assert any(suggestion.action.startswith("--bucket-mb") for suggestion in bottleneck.suggestions)


def test_threads_beyond_the_cores_are_blamed_and_otherwise_other_programs():
    crowded = a_run(cpu_wait=0.4, about={"threads": [8, 8], "cores": [8, 8]})
    (bottleneck,) = find_bottlenecks(crowded, CONFIG)
    assert bottleneck.kind == "threads"
    assert bottleneck.sentence.startswith("16 threads share the 8 cores of a: for 40% of the time")
    assert bottleneck.suggestions[0].action == "--threads 4"
    assert bottleneck.suggestions[0].gain == pytest.approx(1 / 0.6)
    assert kinds(a_run(cpu_wait=0.4, about={"threads": [4, 4], "cores": [8, 8]})) == ["cores"]
    assert kinds(a_run(cpu_wait=0.15, about={"threads": [4, 4], "cores": [8, 8]})) == []
    assert kinds(a_run(cpu_wait=0.01, about={"threads": [8, 8], "cores": [8, 8]})) == []


@pytest.mark.parametrize(("phase", "kind"), [("save", "checkpoint"), ("evaluate", "evaluation"), ("record", "records")])
def test_pauses_between_steps_are_named(phase, kind):
    assert kinds(a_run(2, **{phase: [0.03, 0.03]})) == [kind]
    assert kinds(a_run(2, **{phase: [0.003, 0.003]})) == []


def test_checkpoints_have_two_suggestions():
    (bottleneck,) = find_bottlenecks(a_run(save=0.1), CONFIG)
    assert [suggestion.action for suggestion in bottleneck.suggestions] == ["--save-async", '--save-every "20 steps"']
    (bottleneck,) = find_bottlenecks(a_run(save=0.1), replace(CONFIG, save_async=True))
    assert [suggestion.action for suggestion in bottleneck.suggestions] == ['--save-every "20 steps"']


def test_the_dearest_cause_comes_first_but_threads_before_all():
    assert kinds(a_run(save=0.03, communication=0.1)) == ["link", "checkpoint"]
    crowded = {"threads": [8, 8], "cores": [8, 8]}
    assert kinds(a_run(save=0.03, communication=0.1, cpu_wait=0.15, about=crowded)) == ["threads", "link", "checkpoint"]
