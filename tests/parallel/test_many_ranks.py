"""The control messages of up to 16,384 ranks, counted: per rank they grow with the logarithm of the ranks at most."""

import math

import pytest
import torch

from paceline.core.limits import open_files, seconds_between_beats
from paceline.parallel import wire
from paceline.parallel.hops import from_lead, joined_on_lead, largest
from paceline.parallel.replicas import check_replicas
from tests.parallel.simulated import drive, simulate

UNEVEN = (1, 2, 3, 5, 8, 13, 64, 100)
MANY = pytest.param(1024, marks=pytest.mark.slow)


def ranks_of(size, protocol, value):
    return [protocol(value(rank), rank=rank, size=size) for rank in range(size)]


@pytest.mark.parametrize("size", [*UNEVEN, 1024, 16_384])
def test_every_rank_learns_the_largest_numbers_in_log_rounds(size):
    results, sent = drive(ranks_of(size, largest, lambda rank: (rank, -rank)))
    assert results == [(size - 1, 0)] * size
    assert set(sent) == {math.ceil(math.log2(size))}


@pytest.mark.parametrize("size", [*UNEVEN, 1024])
def test_values_are_joined_in_the_order_of_ranks_with_one_message_from_each(size):
    protocols = [joined_on_lead([rank], list.__add__, rank=rank, size=size) for rank in range(size)]
    results, sent = drive(protocols)
    assert results == [list(range(size)), *[None] * (size - 1)]
    assert sent == [0, *[1] * (size - 1)]


def test_a_sum_over_16384_ranks_is_one_message_from_each():
    size = 16_384
    results, sent = drive([joined_on_lead(rank, int.__add__, rank=rank, size=size) for rank in range(size)])
    assert results[0] == size * (size - 1) // 2
    assert sum(sent) == size - 1


@pytest.mark.parametrize("size", [*UNEVEN, 1024, 16_384])
def test_the_value_of_the_lead_reaches_every_rank_down_a_tree(size):
    results, sent = drive(ranks_of(size, from_lead, lambda rank: f"rank {rank}"))
    assert results == ["rank 0"] * size
    assert sum(sent) == size - 1
    assert max(sent) == math.ceil(math.log2(size))


def vote(team):
    """Poll often enough for several votes; return the first call that saw the flag of one rank, and the others."""
    flagged = team.world.rank == team.world.size // 3
    calls = 4 * math.ceil(math.log2(team.world.size)) + 1
    seen = [call for call in range(calls) if team.poll(flagged)]
    return seen[0], calls - len(seen)


@pytest.mark.parametrize("size", [3, 64])
def test_all_stop_after_two_slow_steps(size, monkeypatch):
    monkeypatch.setattr(wire, "SLOW_STEP", -1.0)

    def late_vote(team):
        """Poll until the first votes are over, then with a flag on one rank; return the calls until all saw it."""
        for _ in range(2 * math.ceil(math.log2(size))):
            assert not team.poll(False)
        return next(call for call in range(1, 9) if team.poll(team.world.rank == 1))

    results, _ = simulate(size, late_vote)
    assert len(set(results)) == 1
    assert results[0] <= 2


@pytest.mark.parametrize("size", [3, 64, MANY])
def test_a_step_costs_a_rank_one_message_and_all_stop_at_the_same_one(size, monkeypatch):
    monkeypatch.setattr(wire, "SLOW_STEP", math.inf)
    results, network = simulate(size, vote)
    rounds = math.ceil(math.log2(size))
    assert len(set(results)) == 1
    first, num_calls = results[0]
    assert first == rounds
    assert set(network.messages.values()) == {num_calls}  # one per call, none in a call that returns True
    assert set(network.sent.values()) == {16 * num_calls}


WORK = {
    "replica check": (lambda team: check_replicas([(f"layer{n}", torch.zeros(9)) for n in range(320)], team), 1),
    "settings": (lambda team: team.agree({f"--setting-{n}": n for n in range(60)}), 1),
    "score": (lambda team: team.total(1.5, sum), 2),
    "barrier": (lambda team: team.barrier(), 1),
}


@pytest.mark.parametrize("size", [5, 64])
@pytest.mark.parametrize(("work", "per_round"), WORK.values(), ids=WORK.keys())
def test_what_a_rank_sends_grows_with_the_logarithm_of_the_ranks(size, work, per_round):
    results, network = simulate(size, work)
    assert not [found for found in results if isinstance(found, Exception)]
    rounds = math.ceil(math.log2(size))
    assert max(network.messages.values()) <= 2 * per_round * rounds
    assert max(network.sent.values()) <= 64 * rounds


def everything(team):
    team.count_neighbours()
    team.agree({"seed": 1})
    team.gather_on_lead({"times": list(range(100))})
    team.total(1.5, sum)
    for _ in range(40):
        team.poll(False)
    team.barrier()


@pytest.mark.parametrize("size", [64, MANY])
def test_connections_for_control_messages_stay_few(size):
    _, network = simulate(size, everything)
    rounds = math.ceil(math.log2(size))
    assert max(map(len, network.peers.values())) <= 4 * rounds
    assert open_files(size, is_lead=False) < 64 + 8 * rounds + 1


def test_open_files_grow_with_the_logarithm_of_the_ranks_except_on_the_lead():
    assert [open_files(size, is_lead=False) for size in (2, 16, 64, 1024, 16_384)] == [66, 80, 112, 144, 176]
    assert open_files(1024) == 144 + 1024


def test_all_ranks_together_write_a_bounded_number_of_heartbeats():
    assert [seconds_between_beats(size) for size in (1, 256, 1024, 16_384)] == [1, 1, 4, 30]
