"""The life of a rank: join, build, restore, train, leave."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from paceline.core.config import Config
from paceline.core.errors import RunError
from paceline.core.load import write_config
from paceline.core.world import World
from paceline.engine.checkpoint import Checkpoints
from paceline.engine.clock import Clock
from paceline.engine.header import warnings
from paceline.engine.job import Job, build_job
from paceline.engine.run import Run
from paceline.engine.signals import stop_on_signals
from paceline.engine.state import Progress
from paceline.models.table import layer_table
from paceline.parallel.device import choose_device, describe_device, set_threads
from paceline.parallel.team import join
from paceline.records.entries import RunResult, State
from paceline.records.environment import cpu_name, describe_environment
from paceline.records.folder import RunFolder, create_run
from paceline.records.reader import read_environments
from paceline.records.writer import write_json, write_rank


def run_rank(config: Config, world: World, *, resume: RunFolder | None, show_table: bool = False) -> RunResult:
    """Live through a run as one of its ranks, and return how it ended."""
    clock = Clock()
    device = choose_device(config.device, world)
    set_threads(config.threads, world)
    with stop_on_signals() as stop, join(world, device) as team:
        job = build_job(config, team)
        notes: list[str] = []
        checkpoint = None if resume is None else restore(job, resume, notes)
        progress = Progress() if checkpoint is None else checkpoint
        folder = team.from_lead(open_folder(job, resume) if team.is_lead else RunFolder(config.runs_dir))
        with failure_noted(folder, world, progress):
            run = Run(job, progress, team, folder, clock=clock)
            return run.live(stop, [*notes, *warnings(job)], show_table=show_table)


def restore(job: Job, folder: RunFolder, notes: list[str]) -> Progress:
    """Continue a run from its newest good checkpoint, unless it has nothing left to do."""
    checkpoints = Checkpoints(folder.checkpoints, keep=job.config.keep)
    state, path = checkpoints.newest_good(notes.append)
    if notes:
        notes.append(f"continuing from {path}")
    progress = job.restore(state)
    done = progress.step / job.plan.steps_per_epoch
    if progress.stopped_early:
        raise RunError(f"{folder.path} has finished: it stopped early after {done:g} epochs")
    if progress.step >= job.plan.total_steps:
        raise RunError(
            f"{folder.path} has finished: {done:g} epochs, {progress.step} steps",
            hint=f"to train longer add --epochs {2 * round(done) or 2}; to start anew: --config {folder.config}",
        )
    return progress


def open_folder(job: Job, resume: RunFolder | None) -> RunFolder:
    """Make the run folder, or go back to it; write down settings, environment and model. Only the lead calls it."""
    folder = create_run(job.config) if resume is None else resume
    environment = describe_environment(os.environ, device=describe_device(job.device, cpu_name()))
    try:
        write_config(job.config.resolved(), folder.config)
        write_json(folder.environment, [*read_environments(folder), environment])
        folder.model_table.write_text(layer_table(job.model) + "\n", encoding="utf-8")
    except OSError as cause:
        raise RunError(f"cannot write to {folder.path}: {cause.strerror}", hint="choose another --runs-dir") from cause
    return folder


@contextmanager
def failure_noted(folder: RunFolder, world: World, progress: Progress) -> Iterator[None]:
    """Leave word in the rank's state file when the block fails."""
    path = folder.rank(world.rank)
    write_rank(path, world, State.READY, step=progress.step)
    try:
        yield
    except BaseException as problem:
        detail = f"{type(problem).__name__}: {problem}"
        with suppress(OSError):  # a full disk must not hide why the run failed
            write_rank(path, world, State.FAILED, step=progress.step, detail=detail)
        raise
