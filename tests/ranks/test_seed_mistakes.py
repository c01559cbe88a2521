"""Mistakes of the seeds, one test each: it passes on Paceline, and fails when the mistake is planted.

Mistakes about processes are in test_seed_mistakes_processes.py, and some in other folders:

- hard-coded address and port (S0): `test_two_launches_at_once_do_not_connect_to_each_other` in tests/launching
- the same rank for all children (S2): `test_every_started_rank_has_a_distinct_rank_…` in tests/launching
- processes left behind and killed by name (S4): `test_a_signal_to_the_launcher_ends_its_own_ranks_and_no_namesake`
  in tests/launching
- a comparison without an exit code, of one side's keys (S1): `test_shapes_types_missing_names_and_nans_are_reported` in
  tests/cli
"""

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch

import paceline.engine.batches
import paceline.engine.job
import paceline.engine.loop
import paceline.engine.run
from paceline.core.batch_plan import BatchPlan
from paceline.core.metrics import Scores, Sums
from paceline.core.schedule import LrPlan
from paceline.core.world import World
from paceline.data.split import Subset
from paceline.engine.clock import DATA, Clock
from paceline.engine.progress import Progress
from paceline.parallel.team import Team
from tests.ranks.mistakes import Plant, epochs_of, folder_of, steps_of, train_with
from tests.ranks.runs import TIGHT, losses, rank_settings, train_rank


def summed_and_never_divided() -> AbstractContextManager[Any]:
    honest = Sums.__add__

    def add(first: Sums, second: Sums) -> Sums:
        total, larger = honest(first, second), max(first, second, key=lambda sums: sums.samples)
        parts = {name: (own[0], *larger.parts[name][1:]) for name, own in total.parts.items()}
        return Sums(parts=parts, samples=larger.samples)

    return patch.object(Sums, "__add__", add)


def test_metrics_summed_over_ranks_and_never_divided(ranks, tmp_path):
    settings = rank_settings(tmp_path)
    alone = losses(folder_of(ranks(1).run(train_rank, settings)))
    honest = losses(folder_of(ranks(3).run(train_rank, settings)))
    planted = losses(folder_of(ranks(3).run(train_with, summed_and_never_divided, settings)))
    assert honest == pytest.approx(alone, rel=TIGHT)
    assert planted != pytest.approx(alone, rel=TIGHT)


def batch_divided_by_the_ranks_of_a_node() -> AbstractContextManager[Any]:
    make, parts = BatchPlan.make, BatchPlan.micro_batches
    both = ExitStack()
    halved = lambda config, num_samples, world_size: make(config, num_samples=num_samples, world_size=world_size // 2)  # noqa: E731
    both.enter_context(patch.object(BatchPlan, "make", halved))
    both.enter_context(patch.object(BatchPlan, "micro_batches", lambda self, step, rank: parts(self, step, rank % 2)))
    return both


def test_batch_divided_by_the_ranks_of_a_node_so_that_two_nodes_double_it(ranks, tmp_path):
    """Nor does the learning rate then fit another batch: S3 lost five points so."""
    settings = rank_settings(tmp_path, epochs=1)
    alone = folder_of(ranks(1).run(train_rank, settings))
    honest = folder_of(ranks(4).run(train_rank, settings))
    planted = folder_of(ranks(4).run(train_with, batch_divided_by_the_ranks_of_a_node, settings))
    assert [epochs_of(run)[0]["train_samples"] for run in (alone, honest, planted)] == [1293, 1293, 2 * 1293]
    assert [step["lr"] for step in steps_of(honest)] == [step["lr"] for step in steps_of(alone)]


def rate_left_alone() -> AbstractContextManager[Any]:
    make = LrPlan.make
    return patch.object(LrPlan, "make", lambda config, plan: make(replace(config, lr_scaling="none"), plan))


def test_learning_rate_not_adapted_when_the_batch_doubles(ranks, tmp_path):
    settings = rank_settings(tmp_path, steps=1, log_every=1, schedule="constant", lr_scaling="linear")
    for plant, factor in ((contextlib.nullcontext, 2), (rate_left_alone, 1)):
        runs = [folder_of(ranks(2).run(train_with, plant, settings | {"global_batch": batch})) for batch in (128, 256)]
        single, double = (steps_of(run)[0]["lr"] for run in runs)
        assert double == pytest.approx(factor * single)


def resume_at_0() -> AbstractContextManager[Any]:
    return patch.object(Progress, "from_dict", lambda _: Progress())


def test_resume_that_loads_the_epoch_and_starts_at_0(ranks, tmp_path):
    settings = rank_settings(tmp_path)
    whole = ranks(2).run(train_rank, settings)[0].test
    honest, planted = (
        ranks(2).run(train_with, plant, settings, folder_of(ranks(2).run(train_rank, settings, None, 1)))[0].test
        for plant in (contextlib.nullcontext, resume_at_0)
    )
    assert honest.loss == pytest.approx(whole.loss, rel=TIGHT)
    assert planted.loss != pytest.approx(whole.loss, rel=TIGHT)


def clock_started_after_the_batch_arrived() -> AbstractContextManager[Any]:
    end_phase = Clock.end_phase

    def deaf(self: Clock, phase: int) -> None:
        before = self._totals[DATA]
        end_phase(self, phase)
        if phase == DATA:
            self._totals[DATA] = before

    return patch.object(Clock, "end_phase", deaf)


SLOW = """
import time, torch

class Slow(torch.utils.data.Dataset):
    num_classes = 2

    def __len__(self):
        return 60

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.ones(1, 8, 8) * index / 60, index % 2

def data():
    return Slow(), Slow()
"""


def test_clock_started_after_the_batch_arrived_so_that_waiting_for_data_is_invisible(ranks, tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    settings = rank_settings(
        tmp_path, data=f"{tmp_path}/slow.py:data", global_batch=20, epochs=1, valid_split=0.0, log_every=1
    )
    waits = []
    for plant in (contextlib.nullcontext, clock_started_after_the_batch_arrived):
        records = steps_of(folder_of(ranks(2).run(train_with, plant, settings)))
        waits.append(sum(record["phases"]["data"] for record in records))
    assert waits[0] >= 30 * 0.002, "each of two ranks sleeps for its half of 60 samples"
    assert waits[1] < 30 * 0.002


def own_accuracy() -> AbstractContextManager[Any]:
    honest = paceline.engine.run.evaluate

    def own_share(job: Any, team: Team, split: Any, _scored: Any) -> Scores:
        share = range(team.world.rank, len(split), team.world.size)
        return honest(job, Team(World(), team.device), Subset(split, torch.tensor(share).numpy()))

    return patch.object(paceline.engine.run, "evaluate", own_share)


def test_each_node_printing_a_different_accuracy(ranks, tmp_path):
    honest = ranks(3).run(train_rank, rank_settings(tmp_path))
    planted = ranks(3).run(train_with, own_accuracy, rank_settings(tmp_path))
    assert len({result.test for result in honest}) == 1
    assert honest[0].test.samples == 360
    assert len({result.test for result in planted}) == 3


def no_set_epoch() -> AbstractContextManager[Any]:
    honest = paceline.engine.batches.epoch_order
    always_first = lambda *, epoch, **others: honest(epoch=0 * epoch, **others)  # noqa: E731
    return patch.object(paceline.engine.batches, "epoch_order", always_first)


@contextlib.contextmanager
def noting_orders(seen: list[list[int]]) -> Iterator[None]:
    honest = paceline.engine.batches.load_batches

    def load(split: Any, requests: Any, **how: Any) -> Any:
        seen.append([int(number) for ids, _ in requests for number in ids])
        return honest(split, requests, **how)

    with patch.object(paceline.engine.batches, "load_batches", load):
        yield


def orders(team: Team, plant: Plant, settings: dict[str, Any]) -> list[list[int]]:
    seen: list[list[int]] = []
    with plant(), noting_orders(seen):
        train_rank(team, settings)
    return seen


def test_no_set_epoch_so_that_every_epoch_has_the_same_order(ranks, tmp_path):
    first, second = ranks(2).run(orders, contextlib.nullcontext, rank_settings(tmp_path))[0]
    assert first != second
    first, second = ranks(2).run(orders, no_set_epoch, rank_settings(tmp_path))[0]
    assert first == second
