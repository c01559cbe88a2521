"""Control messages of a team on real ranks: results, decisions that all ranks share, and one message per step."""

from unittest.mock import patch

import pytest
import torch.distributed as dist

from paceline.core.errors import ConfigError
from paceline.parallel import wire


def gathered(team):
    value = {"rank": team.world.rank, "text": "x" * 100 * team.world.rank}
    return team.gather_on_lead(value), team.total(team.world.rank + 1, sum)


def test_values_are_gathered_on_the_lead_and_totals_known_to_all(ranks):
    (values, total), *others = ranks(3).run(gathered)
    assert values == [{"rank": rank, "text": "x" * 100 * rank} for rank in range(3)]
    assert [total, *(other for _, other in others)] == [6, 6, 6]
    assert [found for found, _ in others] == [None, None]


def compared(team):
    large = 2**62 + 12345
    return team.same(large), team.same(large + team.world.rank), team.same(team.world.rank // 2)


def test_ranks_know_whether_all_have_the_same_bits(ranks):
    assert ranks(3).run(compared) == [(True, False, False)] * 3


def disagreeing(team):
    team.agree({"seed": 1})
    try:
        team.agree({"seed": team.world.rank // 2})
    except ConfigError as problem:
        return str(problem)
    return None


def test_ranks_that_do_not_agree_are_still_named(ranks):
    expected = "the ranks do not agree: seed is 0 on rank 0 and 1 on rank 2"
    assert all(expected in (found or "") for found in ranks(3).run(disagreeing))


def polled(team):
    """Poll for 200 steps of unequal length with a flag of one rank after step 100: return where it was seen."""
    sent, honest = [], dist.isend

    def counted(*arguments, **options):
        sent.append(1)
        return honest(*arguments, **options)

    with patch.object(wire.dist, "isend", counted):
        for step in range(200):
            if team.poll(step >= 100 and team.world.rank == 1):
                return step, len(sent)
    return None


@pytest.mark.parametrize(("size", "rounds"), [(2, 1), (3, 2)])
def test_ranks_stop_at_the_same_step_and_send_a_message_per_step(ranks, size, rounds):
    found = ranks(size).run(polled)
    assert len(set(found)) == 1
    step, num_sent = found[0]
    assert 100 + rounds <= step < 100 + 2 * rounds
    assert num_sent == step  # none in the call that returns True
