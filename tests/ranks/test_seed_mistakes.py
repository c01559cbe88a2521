"""The mistakes that the seeds made, one test each: it passes on Paceline, and fails when the mistake is planted.

Some live where the processes are that they need:

- hard-coded address and port (S0): `test_two_launches_at_once_do_not_meet_each_other` in tests/launching
- the same rank for all children (S2): `test_every_rank_that_is_started_has_a_number_of_its_own_…` in tests/launching
- processes left behind and killed by name (S4): `test_a_signal_to_the_launcher_ends_its_own_ranks_and_no_namesake`
  in tests/launching
- a comparison without an exit code, of one side's keys (S1): `test_shapes_types_missing_names_and_nans_are_told` in
  tests/cli
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

import paceline.engine.job
import paceline.engine.loop
import paceline.engine.run
from paceline.core.errors import RanksError
from paceline.core.metrics import Score
from paceline.core.plan import BatchPlan
from paceline.core.schedule import LrPlan
from paceline.core.world import World
from paceline.data.split import Subset
from paceline.engine.clock import DATA, Clock
from paceline.engine.state import Progress
from paceline.parallel.meeting import FileMeeting, Peers, roll_call
from paceline.parallel.team import Team
from paceline.records.folder import RunFolder
from paceline.records.reader import read_metrics
from tests.ranks.pool import RankPool, RanksHang
from tests.ranks.test_training import TIGHT, live, losses, quick

Plant = Callable[[], AbstractContextManager[Any]]


def live_with(team: Team, plant: Plant, settings: dict[str, Any], *more: Any) -> Any:
    """Live through a run with a mistake planted."""
    with plant():
        return live(team, settings, *more)


def folder_of(results: list[Any]) -> Path:
    return Path(results[0]["folder"])


def epochs_of(folder: Path) -> list[dict[str, Any]]:
    return [record for record in read_metrics(RunFolder(folder)) if record["kind"] == "epoch"]


def steps_of(folder: Path) -> list[dict[str, Any]]:
    return [record for record in read_metrics(RunFolder(folder)) if record["kind"] == "step"]


def summed_and_never_divided() -> AbstractContextManager[Any]:
    def add(first: Score, second: Score) -> Score:
        sums = {name: getattr(first, name) + getattr(second, name) for name in ("loss_sum", "correct1", "correct5")}
        return Score(**sums, images=max(first.images, second.images))

    return patch.object(Score, "__add__", add)


def test_metrics_summed_over_ranks_and_never_divided(ranks, tmp_path):
    settings = quick(tmp_path)
    alone = losses(folder_of(ranks(1).run(live, settings)))
    honest = losses(folder_of(ranks(3).run(live, settings)))
    planted = losses(folder_of(ranks(3).run(live_with, summed_and_never_divided, settings)))
    assert honest == pytest.approx(alone, rel=TIGHT)
    assert planted != pytest.approx(alone, rel=TIGHT)


def batch_divided_by_the_ranks_of_a_node() -> AbstractContextManager[Any]:
    make, parts = BatchPlan.make, BatchPlan.parts
    both = ExitStack()
    halved = lambda config, images, world_size: make(config, images=images, world_size=world_size // 2)  # noqa: E731
    both.enter_context(patch.object(BatchPlan, "make", halved))
    both.enter_context(patch.object(BatchPlan, "parts", lambda self, step, rank: parts(self, step, rank % 2)))
    return both


def test_batch_divided_by_the_ranks_of_a_node_so_that_two_nodes_double_it(ranks, tmp_path):
    """Nor does the learning rate then fit another batch: S3 lost five points so."""
    settings = quick(tmp_path, epochs=1)
    alone = folder_of(ranks(1).run(live, settings))
    honest = folder_of(ranks(4).run(live, settings))
    planted = folder_of(ranks(4).run(live_with, batch_divided_by_the_ranks_of_a_node, settings))
    assert [epochs_of(run)[0]["train_images"] for run in (alone, honest, planted)] == [1293, 1293, 2 * 1293]
    assert [step["lr"] for step in steps_of(honest)] == [step["lr"] for step in steps_of(alone)]


def rate_left_alone() -> AbstractContextManager[Any]:
    make = LrPlan.make
    return patch.object(LrPlan, "make", lambda config, plan: make(replace(config, lr_scaling="none"), plan))


def test_learning_rate_not_adapted_when_the_batch_doubles(ranks, tmp_path):
    settings = quick(tmp_path, steps=1, log_every=1, schedule="constant", lr_scaling="linear")
    for plant, factor in ((contextlib.nullcontext, 2), (rate_left_alone, 1)):
        runs = [folder_of(ranks(2).run(live_with, plant, settings | {"global_batch": batch})) for batch in (128, 256)]
        single, double = (steps_of(run)[0]["lr"] for run in runs)
        assert double == pytest.approx(factor * single)


def resume_at_0() -> AbstractContextManager[Any]:
    return patch.object(Progress, "from_dict", lambda _: Progress())


def test_resume_that_loads_the_epoch_and_starts_at_0(ranks, tmp_path):
    settings = quick(tmp_path)
    whole = ranks(2).run(live, settings)[0]["test"]
    honest, planted = (
        ranks(2).run(live_with, plant, settings, folder_of(ranks(2).run(live, settings, None, 1)))[0]["test"]
        for plant in (contextlib.nullcontext, resume_at_0)
    )
    assert honest.loss == pytest.approx(whole.loss, rel=TIGHT)
    assert planted.loss != pytest.approx(whole.loss, rel=TIGHT)


def clock_started_after_the_batch_arrived() -> AbstractContextManager[Any]:
    lap = Clock.lap

    def deaf(self: Clock, phase: int) -> None:
        before = self._totals[DATA]
        lap(self, phase)
        if phase == DATA:
            self._totals[DATA] = before

    return patch.object(Clock, "lap", deaf)


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
    settings = quick(tmp_path, data=f"{tmp_path}/slow.py:data", global_batch=20, epochs=1, valid_split=0.0, log_every=1)
    waits = []
    for plant in (contextlib.nullcontext, clock_started_after_the_batch_arrived):
        records = steps_of(folder_of(ranks(2).run(live_with, plant, settings)))
        waits.append(sum(record["phases"]["data"] for record in records))
    assert waits[0] >= 30 * 0.002, "each of two ranks sleeps for its half of 60 images"
    assert waits[1] < 30 * 0.002


def believing_what_lies_there() -> AbstractContextManager[Any]:
    return patch.object(FileMeeting, "_follow", lambda self: self._read("go") or "nobody yet")


def peers(rank: int, size: int) -> Peers:
    return Peers(index=rank, size=size, place="here", timeout=20)


@pytest.mark.parametrize("plant", [contextlib.nullcontext, believing_what_lies_there])
def test_stale_file_of_the_process_group(tmp_path, plant):
    folder = tmp_path / "meet.meeting"
    folder.mkdir()
    for name, text in {"go": "old", "answer-1": "nonce old", "acknowledge-1": "nonce old", "hello-1": "nonce"}.items():
        (folder / name).write_text(text)
    lead, other = (FileMeeting(tmp_path / "meet", peers(rank, 2)) for rank in (0, 1))
    tokens: dict[int, str] = {}
    with plant():
        follower = threading.Thread(target=lambda: tokens.update({1: other._follow()}))
        follower.start()
        if plant is contextlib.nullcontext:
            tokens[0] = lead._lead()
        follower.join()
    assert (tokens[1] == "old") == (plant is believing_what_lies_there)
    assert plant is believing_what_lies_there or tokens[0] == tokens[1]


def test_the_same_rank_for_two_processes():
    store = torch.distributed.HashStore()
    roll_call(store, peers(0, 1))
    with pytest.raises(RanksError, match="another process says that it is rank 0"):
        roll_call(store, peers(0, 1))


def own_accuracy() -> AbstractContextManager[Any]:
    honest = paceline.engine.run.evaluate

    def own_share(job: Any, team: Team, split: Any, _scored: Any) -> Score:
        share = range(team.world.rank, len(split), team.world.size)
        return honest(job, Team(World(), team.device), Subset(split, torch.tensor(share).numpy()))

    return patch.object(paceline.engine.run, "evaluate", own_share)


def test_each_node_printing_an_accuracy_of_its_own(ranks, tmp_path):
    honest = ranks(3).run(live, quick(tmp_path))
    planted = ranks(3).run(live_with, own_accuracy, quick(tmp_path))
    assert len({result["test"] for result in honest}) == 1
    assert honest[0]["test"].images == 360
    assert len({result["test"] for result in planted}) == 3


def judged_by_the_lead_alone() -> AbstractContextManager[Any]:
    honest = Progress.judge

    def judge(self: Progress, valid: Score) -> bool:
        is_best = honest(self, valid)
        if torch.distributed.get_rank():
            self.num_stale = 0
        return is_best

    return patch.object(Progress, "judge", judge)


def test_early_stop_of_rank_0_while_the_others_hang(tmp_path):
    settings = quick(tmp_path, epochs=6, patience=2, lr=1e-12)
    with RankPool() as pool:
        assert {result["step"] for result in pool.of(2).run(live, settings)} == {33}
        pool.hang_seconds = 5
        with pytest.raises((RanksHang, RuntimeError)):
            pool.of(2).run(live_with, judged_by_the_lead_alone, settings)


def no_set_epoch() -> AbstractContextManager[Any]:
    honest = paceline.engine.loop.epoch_order
    always_first = lambda *, seed, epoch, images: honest(seed=seed, epoch=0 * epoch, images=images)  # noqa: E731
    return patch.object(paceline.engine.loop, "epoch_order", always_first)


@contextlib.contextmanager
def noting_orders(seen: list[list[int]]) -> Iterator[None]:
    honest = paceline.engine.loop.load_batches

    def load(split: Any, requests: Any, **how: Any) -> Any:
        seen.append([int(number) for ids, _ in requests for number in ids])
        return honest(split, requests, **how)

    with patch.object(paceline.engine.loop, "load_batches", load):
        yield


def orders(team: Team, plant: Plant, settings: dict[str, Any]) -> list[list[int]]:
    seen: list[list[int]] = []
    with plant(), noting_orders(seen):
        live(team, settings)
    return seen


def test_no_set_epoch_so_that_every_epoch_has_the_same_order(ranks, tmp_path):
    first, second = ranks(2).run(orders, contextlib.nullcontext, quick(tmp_path))[0]
    assert first != second
    first, second = ranks(2).run(orders, no_set_epoch, quick(tmp_path))[0]
    assert first == second


def every_rank_leads() -> AbstractContextManager[Any]:
    both = ExitStack()
    both.enter_context(patch.object(Team, "from_lead", lambda _, value: value))
    both.enter_context(patch.object(Team, "is_lead", property(lambda _: True)))
    return both


def test_every_rank_naming_a_run_folder_of_its_own(ranks, tmp_path):
    honest = ranks(3).run(live, quick(tmp_path, name="honest"))
    planted = ranks(3).run(live_with, every_rank_leads, quick(tmp_path, name="planted"))
    assert len({result["folder"] for result in honest}) == len(list(tmp_path.glob("runs/honest/*"))) == 1
    assert len({result["folder"] for result in planted}) == len(list(tmp_path.glob("runs/planted/*"))) == 3


@contextlib.contextmanager
def no_gpu() -> Iterator[None]:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("called .cuda() on a machine without a GPU")

    with patch.object(torch.Tensor, "cuda", refuse), patch.object(torch.nn.Module, "cuda", refuse):
        yield


@contextlib.contextmanager
def model_sent_to_a_gpu() -> Iterator[None]:
    honest = paceline.engine.job.build_model
    with no_gpu(), patch.object(paceline.engine.job, "build_model", lambda *a, **k: honest(*a, **k).cuda()):
        yield


def test_cpu_support_that_is_claimed_but_calls_cuda(ranks, tmp_path):
    settings = quick(tmp_path, model="cnn", steps=2, device="cpu")
    for size in (1, 2):
        assert ranks(size).run(live_with, no_gpu, settings)[0]["step"] == 2
    with pytest.raises(AssertionError, match=r"called \.cuda\(\)"):
        ranks(2).run(live_with, model_sent_to_a_gpu, settings)
