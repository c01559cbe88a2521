"""Phase times of real ranks: a late rank is named with the phase that made it late, and the others show the wait."""

import time
from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.engine import batches
from paceline.parallel.team import Team
from paceline.records.folder import RunFolder
from paceline.records.phases import PHASES, STEP_PHASES, PhaseRecord, RankFacts, read_phases
from tests.ranks.runs import rank_settings, train_rank

PAUSE = 0.02
STEPS = 12


class Late(torch.autograd.Function):
    """Takes its time in the backward pass."""

    @staticmethod
    def forward(ctx, images, seconds):
        ctx.seconds = seconds
        return images.view_as(images)

    @staticmethod
    def backward(ctx, *gradients):
        time.sleep(ctx.seconds)
        return gradients[0], None


def train_with_late_rank(team: Team, settings: dict, late_rank: int | None, where: str) -> None:
    """Train with a rank that is late in the forward pass, the backward pass, or with its data."""
    late = PAUSE if team.world.rank == late_rank else 0.0
    with pytest.MonkeyPatch.context() as patch:
        if where == "data":
            load = batches.load_batches
            patch.setattr(batches, "load_batches", lambda *a, **k: (time.sleep(late) or b for b in load(*a, **k)))
        else:
            loss = torch.nn.functional.cross_entropy

            def slow_loss(logits, *args, **options):
                if where == "forward":
                    time.sleep(late)
                return loss(Late.apply(logits, late if where == "backward" else 0.0), *args, **options)

            patch.setattr(torch.nn.functional, "cross_entropy", slow_loss)
        train_rank(team, settings)


def times_of(ranks, tmp_path: Path, *, late_rank: int | None = 1, where="backward", world=2, **settings):
    chosen = rank_settings(tmp_path, **({"steps": STEPS, "lr": 0.01} | settings))
    ranks(world).run(train_with_late_rank, chosen, late_rank, where)
    (folder,) = tmp_path.glob("runs/*/*")
    facts, *rest = read_phases(RunFolder(folder))
    assert isinstance(facts, RankFacts)
    assert len(facts.hosts) == len(facts.threads) == len(facts.cores) == world
    intervals = [record for record in rest if isinstance(record, PhaseRecord)]
    assert len(intervals) == len(rest)
    return intervals


def total(intervals, phase):
    return np.sum([interval.phases[phase] for interval in intervals], axis=0)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"accumulate": 2},
        {"compress": "fp16"},
        {"batch_norm": "ghost", "shards": 4},
        {"exact": "bitwise", "shards": 4},
    ],
    ids=str,
)
def test_time_spent_in_the_backward_pass_of_one_rank_is_wait_of_the_other(ranks, tmp_path, settings):
    intervals = times_of(ranks, tmp_path, **settings)
    parts = {"accumulate": 2, "batch_norm": 2, "exact": 2}.get(next(iter(settings), ""), 1)
    backward, straggler = total(intervals, "backward"), total(intervals, "straggler")
    assert backward[1] >= STEPS * PAUSE * parts
    assert straggler[0] > STEPS * PAUSE * parts / 2
    assert np.sum([interval.last for interval in intervals], axis=0)[1] > STEPS / 2


@pytest.mark.parametrize("where", ["forward", "data"])
def test_the_phase_that_makes_a_rank_late_is_named(ranks, tmp_path, where):
    intervals = times_of(ranks, tmp_path, where=where)
    assert total(intervals, where)[1] >= STEPS * PAUSE
    assert total(intervals, "straggler")[0] > STEPS * PAUSE / 2


def test_without_a_late_rank_no_rank_waits_as_long(ranks, tmp_path):
    intervals = times_of(ranks, tmp_path, late_rank=None)
    first, second = total(intervals, "backward")
    assert abs(second - first) < STEPS * PAUSE, "which is what the late rank takes longer, however slow the machine is"


def test_phases_add_up_to_the_time_of_every_rank(ranks, tmp_path):
    intervals = times_of(ranks, tmp_path, world=3, late_rank=2, model="resnet20", steps=7, log_every=2)
    for interval in intervals:
        summed = np.sum([interval.phases[phase] for phase in PHASES], axis=0)
        assert summed == pytest.approx(interval.seconds, abs=1e-4)
        communication = interval.phases["communication"]
        assert communication == pytest.approx([communication[0]] * 3, abs=2e-5)
    assert [interval.steps for interval in intervals] == [2, 2, 2, 1, 0]
    assert sum(intervals[-1].phases["evaluate"]) > 0
    assert all(intervals[-1].phases[phase] == [0.0] * 3 for phase in STEP_PHASES)
