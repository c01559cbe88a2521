"""The control messages of one rank among many, counted without connections: bytes do not grow with the ranks."""

from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch

from paceline.core.limits import seconds_between_beats
from paceline.core.world import World
from paceline.parallel import team as module
from paceline.parallel.replicas import check_replicas
from paceline.parallel.team import Team

WORLDS = (64, 1024, 16_384)


@contextmanager
def counted():
    """Count the calls and bytes that a rank hands to torch.distributed; every other rank has the same values."""
    seen = SimpleNamespace(calls=0, sent=0)

    def take(tensor, *_arguments, **_options):
        seen.calls += 1
        seen.sent += tensor.numel() * tensor.element_size()
        return SimpleNamespace(wait=lambda: None)

    def broadcast(values, **_options):
        seen.calls += 1

    with (
        patch.object(module.dist, "all_reduce", take),
        patch.object(module.dist, "gather", take),
        patch.object(module.dist, "broadcast_object_list", broadcast),
    ):
        yield seen


def cost(size, work):
    """Return calls and bytes of a piece of work on a rank that is not the lead."""
    team = Team(World(rank=size - 1, size=size), torch.device("cpu"))
    with counted() as seen:
        work(team)
    return seen.calls, seen.sent


def votes(team):
    for _ in range(1000):
        team.poll(False)


WORK = {
    "replica check": lambda team: check_replicas([(f"layer{n}", torch.zeros(9)) for n in range(320)], team),
    "settings": lambda team: team.agree({f"--setting-{n}": n for n in range(60)}),
    "record": lambda team: team.gather_on_lead({"times": list(range(100))}),
    "score": lambda team: team.total(1.5, sum),
}


@pytest.mark.parametrize("work", WORK.values(), ids=WORK.keys())
def test_what_a_rank_sends_does_not_depend_on_the_number_of_ranks(work):
    costs = {cost(size, work) for size in WORLDS}
    assert len(costs) == 1
    calls, sent = costs.pop()
    assert calls <= 3
    assert sent < 1000


def test_many_ranks_vote_in_few_of_a_thousand_short_steps():
    assert cost(16, votes)[0] == 1000
    assert all(cost(size, votes)[0] <= 1000 / module.MOST_STEPS_BETWEEN_VOTES + 10 for size in WORLDS)


def test_all_ranks_together_write_a_bounded_number_of_heartbeats():
    assert [seconds_between_beats(size) for size in (1, 256, 1024, 16_384)] == [1, 1, 4, 30]
