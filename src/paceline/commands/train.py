"""`paceline train`: train a model, or resume a run."""

import os
from pathlib import Path
from signal import SIGUSR1
from typing import Annotated

import psutil
from cyclopts import Parameter

from paceline.commands.defaults import ALONE, BEGIN, DEFAULTS
from paceline.core.errors import ExitCode, PacelineError, StoppedError
from paceline.core.first_cause import exits_reported
from paceline.core.load import Settings
from paceline.core.messages import say
from paceline.core.start import Start
from paceline.core.world import World
from paceline.engine.entry import train
from paceline.launching.launch import launch_ranks
from paceline.launching.launch_plan import plan_launch, refuse_restarts
from paceline.launching.outcomes import report_failure, report_stop, write_result
from paceline.launching.slurm_queue import requeue_job
from paceline.parallel.detect import detect_world, slurm_job
from paceline.parallel.nodes import join_nodes
from paceline.records.mirror import local_copy

LAUNCHERS = ("torchrun", "Slurm")  # any exit code but 0 is a failure to them: they would restart ranks that stopped


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
    Ctrl-C finishes the step, saves a checkpoint, and prints how to resume.

    Examples:

      paceline train --model resnet20 --data digits --epochs 5

      paceline train --recipe cifar10-resnet20 --epochs 20

      paceline train --nproc 2                       two ranks on this machine

      paceline train --model my.py:build --data my.py:data --lr 0.05

      paceline train --resume runs/digits-resnet20

      paceline train --name mine --epochs 50 --resume auto       start or resume: right after every preemption

    Parameters
    ----------
    config
        TOML file with settings; a run's own config.toml repeats that run.
    recipe
        Settings that ship with Paceline, such as cifar10-resnet20; paceline recipes lists them.
    resume
        Run folder or s3://… to resume, in mid-epoch if it stopped there; auto: the newest run of this name, or a new.
    summary
        Print a table of the model's layers.
    result_file
        File for the result, written by the first rank of this node.
    """
    resume = resume and local_copy(resume, settings.runs_dir)
    start = join_nodes(start, os.environ)
    world = detect_world(os.environ, start)
    plan = plan_launch(settings, start, world, os.environ)
    refuse_restarts(start, plan)
    try:
        if plan is not None:
            return launch_ranks(plan, settings, start, _args_of_ranks(start, resume, summary=summary))
        began = psutil.Process().create_time()
        with exits_reported(_report_exit):
            result = train(settings, start=start, resume=resume, show_table=summary, began=began)
    except StoppedError as stop:
        return _after_early_stop(stop, world, start, is_rank=plan is None)
    if result_file is not None and world.local_rank == 0:
        write_result(result_file, result)
    return ExitCode.FINISHED if result.signal is None else after_stop(result.signal, world, start)


def _after_early_stop(stop: StoppedError, world: World, start: Start, *, is_rank: bool) -> int:
    """Raise the error again, or return an exit code with which torchrun does not restart the rank."""
    _queue_again_after(stop.signal, world, start)
    if is_rank and world.launcher == "torchrun" and stop.signal == SIGUSR1:
        report_failure(stop, os.environ)
        return ExitCode.FINISHED
    raise stop


def _args_of_ranks(start: Start, resume: Path | None, *, summary: bool) -> list[str]:
    """Return the arguments of each rank besides the settings."""
    extra = ["--max-requeues", str(start.max_requeues), *(["--summary"] if summary else [])]
    extra += [*(["--check-up"] if start.check_up else []), *(["--backend", start.backend] if start.backend else [])]
    return [*extra, *(["--resume", str(resume)] if resume else []), *(["--trust"] if start.trust else [])]


def _report_exit(problem: PacelineError) -> None:
    """Report an exit of the user's code to the launcher, or else to the user."""
    if not report_failure(problem, os.environ):
        say(f"{problem.message}\n  hint: {problem.hint}")


def after_stop(signal: int, world: World, start: Start) -> int:
    """Report an orderly stop to the launcher, and requeue the Slurm job if its time limit was the reason."""
    _queue_again_after(signal, world, start)
    report_stop(signal, os.environ)
    return ExitCode.FINISHED if world.launcher in LAUNCHERS else 128 + signal


def _queue_again_after(signal: int, world: World, start: Start) -> None:
    job = slurm_job(world, os.environ)
    if signal == SIGUSR1 and job is not None:
        requeue_job(job, max_requeues=start.max_requeues)
