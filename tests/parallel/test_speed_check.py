"""How fast ranks and links are, and which are outliers: planted numbers here, real ranks in tests/ranks/test_doctor."""

from dataclasses import replace
from itertools import combinations

import pytest
import torch

from paceline.core.world import World
from paceline.parallel.speed_check import (
    LinkPair,
    RankSpeed,
    Speeds,
    measure_speeds,
    outliers,
    representatives,
    rounds,
    speeds_text,
)
from paceline.parallel.team import Team

ONE = RankSpeed(rank=0, host="n0", flops=4e10, copy_rate=8e9)
FOUR = tuple(replace(ONE, rank=rank, host=f"n{rank}", flops=4e10 + rank * 1e9) for rank in range(4))
EVEN = tuple(LinkPair(first=a, second=b, rate=1.25e8) for a, b in combinations(range(4), 2))


def with_rank(number: int, **changes: float) -> Speeds:
    ranks = tuple(replace(rank, **changes) if rank.rank == number else rank for rank in FOUR)
    return Speeds(ranks=ranks, pairs=EVEN)


def test_ranks_that_differ_a_little_are_no_outliers():
    assert outliers(Speeds(ranks=FOUR, pairs=EVEN)) == []


def test_a_slow_rank_is_named_with_both_numbers():
    assert outliers(with_rank(2, flops=1e10)) == ["rank 2 on n2 computes at 10 GFLOP/s, the others at 41 GFLOP/s"]
    (text,) = outliers(with_rank(3, copy_rate=1e9))
    assert text.startswith("rank 3 on n3 copies memory at ")


def test_of_two_ranks_the_slower_one_is_named():
    two = Speeds(ranks=(replace(ONE, flops=1e10), replace(ONE, rank=1)))
    assert [text.partition(" on ")[0] for text in outliers(two)] == ["rank 0"]


def test_the_host_whose_links_are_all_slow_is_named_and_not_its_partners():
    pairs = tuple(replace(pair, rate=1e7) if 1 in (pair.first, pair.second) else pair for pair in EVEN)
    (text,) = outliers(Speeds(ranks=FOUR, pairs=pairs))
    assert text.startswith("rank 1 on n1 exchanges data at 80 Mbit/s, the others at ")


@pytest.mark.parametrize("number", [2, 3, 4, 5, 8])
def test_everyone_meets_everyone_once_and_nobody_twice_in_a_round(number):
    found = rounds([10 * player for player in range(number)])
    assert sorted(pair for pairs in found for pair in pairs) == list(combinations(range(0, 10 * number, 10), 2))
    assert all(len({player for pair in pairs for player in pair}) == 2 * len(pairs) for pairs in found)


def test_links_are_timed_between_hosts_where_there_are_several():
    both = [replace(ONE, rank=rank, host=f"n{rank // 2}") for rank in range(4)]
    assert representatives(both) == [0, 2]
    assert representatives([replace(rank, host="n0") for rank in both]) == [0, 1, 2, 3]


def test_a_lone_rank_is_measured_without_links():
    speeds = measure_speeds(Team(World(), torch.device("cpu")))
    assert speeds.pairs == ()
    assert speeds.ranks[0].flops > 1e8
    assert speeds.ranks[0].copy_rate > 1e7
    assert "GFLOP/s, memory " in speeds_text(speeds)
