"""Ranks for which the others wait: slow ranks and slow loaders are named, disturbances are not."""

from dataclasses import replace

import pytest

from paceline.explain.bottlenecks import find_bottlenecks
from paceline.explain.late_ranks import find_late_ranks, find_uneven
from paceline.explain.run_numbers import RunNumbers
from paceline.explain.time_split import TimeSplit, split_time
from tests.explain.sample_phases import CONFIG, a_run, facts, interval


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_slow_rank_is_named_with_its_host(ranks):
    backward = [0.06] * (ranks - 1) + [0.12]
    split = a_run(ranks, backward=backward, about={"hosts": ["a"] * (ranks - 1) + ["b"]})
    (bottleneck,) = find_bottlenecks(split, CONFIG)
    assert bottleneck.kind == "slow rank"
    assert f"rank {ranks - 1} on b computes for 152 ms per step, 1.6× as long" in bottleneck.sentence
    assert bottleneck.suggestions[0].gain == pytest.approx(0.1575 / 0.0975, rel=0.01)


@pytest.mark.parametrize(("often", "named"), [(0.6, []), (0.9, ["slow rank"])])
def test_a_rank_that_was_disturbed_for_a_while_is_not_called_slow(often, named):
    found = find_bottlenecks(a_run(backward=[0.06, 0.12], last=often), CONFIG)
    assert [bottleneck.kind for bottleneck in found] == named


def test_why_a_rank_is_slow_follows_from_its_use_of_the_cpu():
    def reason(**own):
        (bottleneck,) = find_bottlenecks(a_run(backward=[0.06, 0.12], **own), CONFIG)
        return bottleneck.sentence.rpartition("; ")[2]

    assert "1.8× the CPU time" in reason(cpu=[0.05, 0.09])
    assert "no core for" in reason(cpu_wait=[0.0, 0.4])
    assert "blocked by something local" in reason()


def test_all_ranks_of_a_slow_host_are_named_together():
    split = a_run(6, forward=[0.03] * 4 + [0.08] * 2, about={"hosts": ["a"] * 4 + ["b"] * 2})
    (bottleneck,) = find_bottlenecks(split, CONFIG)
    assert "ranks 4,5 on b compute" in bottleneck.sentence
    assert len(bottleneck.suggestions) == 1
    slower = a_run(6, forward=[0.03] * 4 + [0.16] * 2)
    (bottleneck,) = find_bottlenecks(slower, CONFIG)
    assert bottleneck.suggestions[1].action == "leave out ranks 4,5"
    assert bottleneck.suggestions[1].why == "train on the remaining 4 ranks"
    assert bottleneck.suggestions[1].gain == pytest.approx(0.2275 / (0.0925 * 6 / 4 + 0.005), rel=0.02)


def numbers(split: TimeSplit | None, **settings) -> RunNumbers:
    assert split is not None
    return RunNumbers(split=split, config=replace(CONFIG, **settings), profile=None)


def test_a_slow_loader_is_named_with_its_host_and_what_to_try():
    split = a_run(3, data=[0.001, 0.05, 0.001], about={"hosts": ["a", "b", "a"]})
    (found,) = find_late_ranks(numbers(split, workers=2))
    assert found.kind == "slow loader"
    assert found.sentence == (
        "rank 1 on b waits 50 ms per step for data (others 1 ms); the other ranks wait for rank 1"
    )
    assert [suggestion.action for suggestion in found.suggestions] == [
        "a faster disk or less load on b",
        "--workers 3",
    ]
    assert found.suggestions[0].gain == pytest.approx(0.1465 / 0.0975, rel=0.01)


def test_a_lone_rank_waits_for_nobody():
    run = numbers(a_run(1, data=0.5, straggler=0.5))
    assert list(find_late_ranks(run)) == list(find_uneven(run)) == []


def test_ranks_that_are_late_in_turn_are_not_blamed():
    def found(waits):
        lines = [interval(10 * number, forward=[4.0, 4.0], straggler=waits) for number in (1, 2, 3)]
        return list(find_uneven(numbers(split_time([facts(), *lines]))))

    (uneven,) = found([3.0, 2.0])
    assert uneven.sentence == "no rank is always the last, but every rank waits at least 200 ms per step for others"
    assert uneven.suggestions == ()
    assert found([3.0, 0.5]) == []
