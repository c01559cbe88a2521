"""Control messages of a team on real ranks: results, decisions that all ranks share, and how few votes there are."""

import time
from unittest.mock import patch

import torch.distributed as dist

from paceline.core.errors import ConfigError
from paceline.parallel import team as module


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


def polled(team, most_voting):
    """Poll for 200 steps of unequal length with a flag of one rank after step 100: return where it was seen."""
    votes, honest = [], dist.all_reduce

    def counted(*arguments, **options):
        votes.append(1)
        return honest(*arguments, **options)

    with patch.object(module, "MOST_VOTING", most_voting), patch.object(dist, "all_reduce", counted):
        for step in range(200):
            time.sleep(0.001 * (1 + team.world.rank))
            if team.poll(step >= 100 and team.world.rank == 1):
                return step, len(votes)
    return None


def test_few_ranks_decide_in_the_next_step(ranks):
    found = ranks(3).run(polled, 16)
    assert [step for step, _ in found] == [101] * 3


def test_many_ranks_vote_less_often_and_stop_at_the_same_step(ranks):
    found = ranks(3).run(polled, 2)
    assert len(set(found)) == 1
    step, num_votes = found[0]
    assert 101 <= step < 100 + 2 * module.MOST_STEPS_BETWEEN_VOTES
    assert num_votes < step / 2
