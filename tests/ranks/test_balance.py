"""`--balance`: ranks of unequal speed get unequal numbers of shards, and no bit of the result changes."""

from typing import Any

import pytest

from paceline.engine import balance
from paceline.engine.balance import Balance
from paceline.engine.loop import Training
from paceline.parallel.team import Team
from tests.ranks.runs import exact_settings, train, train_rank, unequal

SPEEDS = {0: (1.0, 1.0, 3.0), 3: (2.0, 1.0, 1.0), 6: (1.0, 4.0, 1.0)}
"""Seconds per shard of each rank, from a step on."""


def train_at_speeds(team: Team, settings: dict[str, Any]) -> tuple[Any, list[int]]:
    """Train with decisions every third step and planted times; return the folder and the micro-batches of each step."""
    computed = []
    honest = Training.train_step

    def counting(self: Training, step, micro_batches):
        computed.append(len(micro_batches))
        return honest(self, step, micro_batches)

    def planted(self: Balance, _seconds: float, _num_shards: int) -> float:
        return SPEEDS[max(step for step in SPEEDS if step < (self._step or 1))][team.world.rank]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(balance, "FIRST", 3)
        patch.setattr(balance, "EVERY", 3)
        patch.setattr(Balance, "_per_shard", planted)
        patch.setattr(Training, "train_step", counting)
        return train_rank(team, settings).folder, computed


@pytest.mark.parametrize("model", ["cnn"])
def test_shards_move_to_faster_ranks_and_the_bits_stay(ranks, tmp_path, model):
    settings = exact_settings(tmp_path, model=model, steps=12, shards=8, global_batch=120)
    alone = train(ranks, 1, settings)
    found = ranks(3).run(train_at_speeds, settings | {"balance": True, "name": "balanced"})
    by_step = list(zip(*(computed for _, computed in found), strict=True))
    assert by_step[0] == (2, 3, 3)
    assert by_step[3] == (4, 3, 1), "rank 2 takes three times as long"
    assert by_step[6] == (2, 3, 3), "now rank 0 takes twice as long"
    assert by_step[9] == (4, 1, 3), "now rank 1 takes four times as long"
    assert unequal(alone, found[0][0]) == []
    assert "from step 4 on, the 3 ranks compute 4, 3, 1 shards" in (found[0][0] / "log.txt").read_text()


def test_measured_times_count_this_ranks_own_work_only(ranks, tmp_path):
    """With equal ranks nothing moves far: the planted times above are the only reason there."""
    settings = exact_settings(tmp_path, model="mlp", steps=12, shards=8, global_batch=120, balance=True)
    assert unequal(train(ranks, 1, settings), train(ranks, 2, settings)) == []
