"""Scoring a checkpoint outside of training."""

import os
from collections.abc import Callable

from paceline.core.config import Config
from paceline.core.metrics import Score
from paceline.core.world import World
from paceline.engine.checkpoint import Checkpoints, load_checkpoint
from paceline.engine.evaluate import evaluate
from paceline.engine.job import build_job
from paceline.parallel.amx import limit_isa
from paceline.parallel.device import choose_device, hold_memory, set_threads
from paceline.parallel.team import join
from paceline.records.code import code_changes
from paceline.records.entries import SplitName
from paceline.records.folder import RunFolder


def score_checkpoint(
    config: Config, folder: RunFolder, *, checkpoint: str, split: SplitName, warn: Callable[[str], None]
) -> Score:
    """Evaluate a checkpoint of a run on one of its splits, and warn of code that has changed since it was trained."""
    state = load_checkpoint(Checkpoints(folder.checkpoints, keep=config.keep).named(checkpoint), mapped=True)
    world = World()
    hold_memory()
    set_threads(config.threads, num_sharing=1)
    with join(world, choose_device(config.device, world)) as team:
        note = limit_isa(team, os.environ) if config.precision == "bf16" else None
        job = build_job(config, team)
        for text in [*([] if note is None else [note]), *code_changes(folder, state.get("code", {}), job.code)]:
            warn(text)
        job.restore_evaluated(state, team)
        return evaluate(job, team, getattr(job.splits, split))
