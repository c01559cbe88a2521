"""Runs inside the rank pool: their settings, training as one rank, and what the run folder holds afterwards."""

import signal
from pathlib import Path
from typing import Any

import torch

from paceline.core.config import Config
from paceline.core.start import Start
from paceline.core.stopping import StopRequest
from paceline.engine.rank import Startup
from paceline.parallel.team import Team
from paceline.records.entries import RunResult
from paceline.records.folder import RunFolder
from paceline.records.reader import read_metrics
from tests.conftest import small_settings
from tests.states import differences, final_state, untimed_records

TIGHT = 2e-4
"""Relative difference that rounding may make in a loss after two epochs: gradients are summed in another order."""


class StopAt(StopRequest):
    """Asks to stop when it is polled for the n-th time, about after n steps."""

    def __init__(self, polls: int) -> None:
        super().__init__()
        self._polls_left = polls

    @property
    def asked(self) -> bool:
        self._polls_left -= 1
        if self._polls_left == 0:
            self.signal = signal.SIGTERM
        return self.signal is not None


def rank_settings(tmp_path: Path, **settings: Any) -> dict[str, Any]:
    """Return settings of a run that takes a second or two."""
    return small_settings(tmp_path / "runs", **({"lr": 0.02, "log_every": 5} | settings))


def exact_settings(tmp_path: Path, **settings: Any) -> dict[str, Any]:
    """Return settings of a bitwise run of a few steps; 1,293 samples in batches of 215 leave three for the seventh."""
    usual = {"steps": 9, "global_batch": 215, "lr": 0.05, "log_every": 4, "exact": "bitwise", "shards": 4}
    return small_settings(tmp_path / "runs", **(usual | settings))


def train_rank(
    team: Team, settings: dict[str, Any], resume: Path | None = None, stop_rank: int | None = None, stop_at: int = 14
) -> RunResult:
    """Train as one rank. `stop_rank` alone asks to stop, about after `stop_at` steps: the others must learn of it."""
    torch.set_num_threads(settings.get("threads", 1))
    stop = StopAt(stop_at) if team.world.rank == stop_rank else StopRequest()
    try:
        return Startup(Config(**settings), team, Start()).run(stop, None if resume is None else RunFolder(resume))
    finally:
        torch.set_num_threads(1)


def train(ranks, world_size: int, settings: dict[str, Any], *more: Any) -> Path:
    """Train on some ranks of the pool, and return the run folder."""
    results = ranks(world_size).run(train_rank, settings, *more)
    assert {result.folder for result in results} == {results[0].folder}, "every rank names the same folder"
    return results[0].folder


def losses(folder: Path) -> list[float]:
    """Return the training losses of a run."""
    return [record["loss"] for record in read_metrics(RunFolder(folder)) if record["kind"] == "step"]


def scores(folder: Path) -> list[dict[str, Any]]:
    """Return losses and scores of a run, without what depends on the time."""
    return [record for record in untimed_records(folder) if record["kind"] in {"step", "epoch", "eval"}]


def unequal(first: Path, second: Path) -> list[str]:
    """Return where two runs differ: parameters, buffers, optimizer, progress, and every loss on the way."""
    states = differences(final_state(first), final_state(second))
    return states + differences(scores(first), scores(second), "/records")
