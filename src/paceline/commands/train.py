"""`paceline train`: train a model, or go on with a run that was stopped."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from signal import SIGUSR1
from typing import Annotated

import psutil
from cyclopts import Group, Parameter

from paceline.commands.launch import launch_ranks
from paceline.core.config import CHANGEABLE, SETTINGS, Config, flag
from paceline.core.errors import ExitCode, RunError, StoppedError
from paceline.core.load import Settings, load_config
from paceline.core.start import Start
from paceline.core.units import plural
from paceline.core.world import World
from paceline.launching.agent import dismiss_ahead
from paceline.launching.plan import plan_launch
from paceline.parallel.detect import detect_world, slurm_job, slurm_requeues
from paceline.parallel.nodes import join_nodes
from paceline.records.entries import RunResult, State
from paceline.records.folder import RunFolder, find_run
from paceline.records.reader import is_alive, read_rank
from paceline.records.reports import report_failure, report_stop
from paceline.records.results import write_result

BEGIN = Group("Start", sort_key=0)
DEFAULTS = Config()
ALONE = Start()
LAUNCHERS = ("torchrun", "Slurm")
"""These take any exit code but 0 for a failure, and bring down or restart ranks that stopped in good order."""


def train_command(
    settings: Settings = DEFAULTS,
    *,
    start: Annotated[Start, Parameter(name="*")] = ALONE,
    config: Annotated[Path | None, Parameter(group=BEGIN)] = None,
    recipe: Annotated[str | None, Parameter(group=BEGIN)] = None,
    resume: Annotated[Path | None, Parameter(group=BEGIN)] = None,
    summary: Annotated[bool, Parameter(group=BEGIN, negative="")] = False,
    result_file: Annotated[Path | None, Parameter(show=False)] = None,
) -> int:
    """Train a model.

    Settings come from flags, PACELINE_… variables, a --config file, a --recipe and defaults, in this order.
    Ctrl-C finishes the step, saves, and says how to go on.

    Examples:

      paceline train --model resnet20 --data digits --epochs 5

      paceline train --recipe cifar10-resnet20 --epochs 20

      paceline train --nproc 2                       two ranks on this machine

      paceline train --model my.py:build --data my.py:data --lr 0.05

      paceline train --resume runs/digits-resnet20

    Parameters
    ----------
    config
        TOML file with settings; a run's own config.toml gives the same run again.
    recipe
        Settings that ship with Paceline, such as cifar10-resnet20; paceline recipes lists them.
    resume
        Run folder to go on with, in mid-epoch if need be.
    summary
        Print the layer table.
    result_file
        Where the first rank of this node writes the result.
    """
    start = join_nodes(start, os.environ)
    world = detect_world(os.environ, start)
    plan = plan_launch(settings, start, world, os.environ)
    try:
        if plan is not None:
            extra = ["--max-requeues", str(start.max_requeues), *(["--summary"] if summary else [])]
            extra += ["--resume", str(resume)] if resume else []
            return launch_ranks(plan, settings, start, extra)
        dismiss_ahead()
        began = psutil.Process().create_time()
        result = train(settings, start=start, resume=resume, show_table=summary, began=began)
    except StoppedError as stop:
        _queue_again_after(stop.signal, world, start)
        if plan is None and world.told_by == "torchrun" and stop.signal == SIGUSR1:
            report_failure(stop, os.environ)
            return ExitCode.FINISHED  # torchrun would restart a rank that fails
        raise
    if result_file is not None and world.local_rank == 0:
        write_result(result_file, result)
    return ExitCode.FINISHED if result.signal is None else after_stop(result.signal, world, start)


def train(
    config: Config = DEFAULTS,
    *,
    start: Start = ALONE,
    resume: Path | str | None = None,
    show_table: bool = False,
    began: float | None = None,
) -> RunResult:
    """Train in this process with these settings, or go on with the run at `resume`, and return the results.

    Start-up counts from now, or from the moment `began` in seconds since 1970.
    """
    began = time.time() if began is None else began
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # before torch is there: it warns of names it cannot resolve
    from paceline.engine.rank import run_rank

    if start.devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, start.devices))
    world = replace(detect_world(os.environ, start), began=began)
    folder = None if resume is None else find_run(Path(resume), config.runs_dir)
    if folder is not None and world.is_lead:
        _refuse_in_use(folder)
    if folder is not None:
        config = _check_resume(config, folder)
    return run_rank(config, world, start=start, resume=folder, show_table=show_table)


def after_stop(signal: int, world: World, start: Start) -> int:
    """Tell whoever started us that we stopped in good order, and ask Slurm for another turn when it gave notice."""
    _queue_again_after(signal, world, start)
    report_stop(signal, os.environ)
    return ExitCode.FINISHED if world.told_by in LAUNCHERS else 128 + signal


def _queue_again_after(signal: int, world: World, start: Start) -> None:
    job = slurm_job(world, os.environ)
    if signal == SIGUSR1 and job is not None:
        _queue_again(job, start)


def _queue_again(job: str, start: Start) -> None:
    """Ask Slurm to run the job once more, unless it has run often enough: a job that gets nowhere must end one day."""
    turns = slurm_requeues(os.environ)
    try:
        if turns >= start.max_requeues:
            problem = f"it has been {plural(turns, 'time')}, and --max-requeues is {start.max_requeues}"
        else:
            answer = subprocess.run(["scontrol", "requeue", job], capture_output=True, text=True, check=False)
            problem = answer.stderr.strip()
    except OSError as cause:
        problem = f"scontrol: {cause.strerror}"
    if problem:
        print(f"paceline: job {job} was not queued again: {problem}", file=sys.stderr)


def _refuse_in_use(folder: RunFolder) -> None:
    """Refuse to go on with a run that someone else is training; only the lead asks, before any rank has begun."""
    lead = read_rank(folder.rank(0))
    if lead is not None and not State(lead["state"]).is_final and is_alive(lead):
        raise RunError(
            f"{folder.path} is in use by process {lead['pid']} on {lead['host']}", hint="stop it first, or wait"
        )


def _check_resume(config: Config, folder: RunFolder) -> Config:
    """Refuse to go on with settings that would make it another run."""
    before = load_config(folder.config)
    if config == replace(DEFAULTS, runs_dir=config.runs_dir):
        return before
    after = config.resolved()
    for setting in SETTINGS:
        old, new = getattr(before, setting), getattr(after, setting)
        if setting not in CHANGEABLE and old != new:
            given, why = flag(setting), ""
            if setting == "batch_norm" and after.exact == "bitwise":
                given, why = "--exact", ", which --exact bitwise needs"
            raise RunError(
                f"{folder.path} was trained with {flag(setting)} {old}, not {new}{why}",
                hint=f"drop {given} to go on with it, or drop --resume to start another run",
            )
    return after
