"""Mistakes of the seeds about processes, one test each: connecting, stopping, naming the run folder, CUDA."""

import contextlib
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest.mock import patch

import pytest
import torch

import paceline.engine.loop
import paceline.engine.model_setup
import paceline.engine.run
from paceline.core.errors import RanksError
from paceline.core.metrics import Scores
from paceline.engine.progress import Progress
from paceline.parallel.rendezvous import FileRendezvous, Peers, wait_for_peers
from paceline.parallel.team import Team
from paceline.records.folder import RunFolder
from tests.ranks.mistakes import train_with
from tests.ranks.pool import RankPool, RanksHang
from tests.ranks.runs import rank_settings, train_rank


def believing_what_lies_there() -> AbstractContextManager[Any]:
    return patch.object(FileRendezvous, "_follow", lambda self: self._read("go") or "nobody yet")


def peers(rank: int, size: int) -> Peers:
    return Peers(index=rank, size=size, place="here", timeout=20)


@pytest.mark.parametrize("plant", [contextlib.nullcontext, believing_what_lies_there])
def test_stale_file_of_the_process_group(tmp_path, plant):
    folder = tmp_path / "meet.rendezvous"
    folder.mkdir()
    for name, text in {"go": "old", "answer-1": "nonce old", "acknowledge-1": "nonce old", "hello-1": "nonce"}.items():
        (folder / name).write_text(text)
    lead, other = (FileRendezvous(tmp_path / "meet", peers(rank, 2)) for rank in (0, 1))
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
    wait_for_peers(store, peers(0, 1))
    with pytest.raises(RanksError, match="another process is rank 0"):
        wait_for_peers(store, peers(0, 1))


def judged_by_the_lead_alone() -> AbstractContextManager[Any]:
    honest = Progress.judge

    def judge(self: Progress, valid: Scores, *how: Any) -> bool:
        is_best = honest(self, valid, *how)
        if torch.distributed.get_rank():
            self.num_stale = 0
        return is_best

    return patch.object(Progress, "judge", judge)


def test_early_stop_of_rank_0_while_the_others_hang(tmp_path):
    settings = rank_settings(tmp_path, epochs=6, patience=2, lr=1e-12)
    with RankPool() as pool:
        assert {result.step for result in pool.of(2).run(train_rank, settings)} == {33}
        pool.hang_seconds = 5
        with pytest.raises((RanksHang, RuntimeError)):
            pool.of(2).run(train_with, judged_by_the_lead_alone, settings)


def every_rank_leads() -> AbstractContextManager[Any]:
    both, honest = ExitStack(), Team.from_lead

    def own_folder(team: Team, value: Any) -> Any:
        return value if isinstance(value, RunFolder) else honest(team, value)

    both.enter_context(patch.object(Team, "from_lead", own_folder))
    both.enter_context(patch.object(Team, "is_lead", property(lambda _: True)))
    return both


def test_every_rank_creating_its_own_run_folder(ranks, tmp_path):
    honest = ranks(3).run(train_rank, rank_settings(tmp_path, name="honest"))
    planted = ranks(3).run(train_with, every_rank_leads, rank_settings(tmp_path, name="planted"))
    assert len({result.folder for result in honest}) == len(list(tmp_path.glob("runs/honest/*"))) == 1
    assert len({result.folder for result in planted}) == len(list(tmp_path.glob("runs/planted/*"))) == 3


@contextlib.contextmanager
def no_gpu() -> Iterator[None]:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("called .cuda() on a machine without a GPU")

    with patch.object(torch.Tensor, "cuda", refuse), patch.object(torch.nn.Module, "cuda", refuse):
        yield


@contextlib.contextmanager
def model_sent_to_a_gpu() -> Iterator[None]:
    honest = paceline.engine.model_setup.build_model
    with no_gpu(), patch.object(paceline.engine.model_setup, "build_model", lambda *a, **k: honest(*a, **k).cuda()):
        yield


def test_cpu_support_that_is_claimed_but_calls_cuda(ranks, tmp_path):
    settings = rank_settings(tmp_path, model="cnn", steps=2, device="cpu")
    for size in (1, 2):
        assert ranks(size).run(train_with, no_gpu, settings)[0].step == 2
    with pytest.raises(AssertionError, match=r"called \.cuda\(\)"):
        ranks(2).run(train_with, model_sent_to_a_gpu, settings)
