"""`paceline.train`: train in this process, as the only rank or as one of several. Imports torch when it is called."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.config import CHANGEABLE, SETTINGS, Config
from paceline.core.errors import FinishedError, PacelineError, RunError, flag
from paceline.core.messages import say
from paceline.core.plugin import code_place
from paceline.core.start import Start
from paceline.core.world import World
from paceline.parallel.detect import detect_world
from paceline.parallel.visible_gpus import visible_devices
from paceline.records.attempt import claim_run
from paceline.records.auto_resume import find_or_reserve, finished_result, is_auto, release
from paceline.records.code import refuse_code_inside
from paceline.records.entries import RunResult
from paceline.records.folder import RunFolder, find_run
from paceline.records.mirror import fetch_newest, open_run
from paceline.records.reader import read_config

if TYPE_CHECKING:
    from paceline.engine.own_run import Run

DEFAULTS = Config()
ALONE = Start()


def train(
    config: Config = DEFAULTS,
    *,
    start: Start = ALONE,
    resume: Path | str | None = None,
    show_table: bool = False,
    began: float | None = None,
) -> RunResult:
    """Train in this process with these settings, or resume the run at `resume`, and return the results.

    With `resume="auto"`, resume the newest run of the same name, or start it; a finished run is not trained again.
    Start-up time counts from now, or from `began`, in seconds since 1970.
    """
    config, world, folder = _prepared(config, start, resume, time.time() if began is None else began)
    from paceline.engine.own_start import run_loop  # noqa: PLC0415 - torch is imported late
    from paceline.engine.rank import run_rank  # noqa: PLC0415

    try:
        with _exits_explained():
            if config.loop is not None:
                return run_loop(config, world, start=start, resume=folder)
            return run_rank(config, world, start=start, resume=folder, show_table=show_table)
    except FinishedError as done:
        if not is_auto(resume):
            raise
        return _result_of_finished(config, done, world)
    finally:
        if is_auto(resume) and folder is not None:
            release(folder)


@contextmanager
def start_run(config: Config = DEFAULTS, *, resume: Path | str | None = None) -> Iterator["Run"]:
    """Start a run for a training loop of your own, as the only rank or as one of several, and end it with the block.

    `resume` is the folder or the name of a run to continue, or "auto" as in `train`.
    """
    says_nothing = resume is not None and not is_auto(resume) and config == replace(DEFAULTS, runs_dir=config.runs_dir)
    if config.loop is None and not says_nothing:
        config = replace(config, loop=sys.argv[0] if sys.argv[0].endswith(".py") else "script")
    config, world, folder = _prepared(config, ALONE, resume, time.time())
    from paceline.engine.own_start import started  # noqa: PLC0415 - torch is imported late

    try:
        with started(config, world, resume=folder) as run:
            yield run
    except FinishedError as done:
        if not is_auto(resume):
            raise
        _result_of_finished(config, done, world)
    finally:
        if is_auto(resume) and folder is not None:
            release(folder)


def _prepared(
    config: Config, start: Start, resume: Path | str | None, began: float
) -> tuple[Config, World, RunFolder | None]:
    """Return the settings, the place of this rank, and the run to resume."""
    # before importing torch, which warns about host names that it cannot resolve
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if config.exact == "bitwise":  # cuBLAS reads it when it is first used
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if start.devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible_devices(start.devices, os.environ)
    from paceline.parallel.adopted import adopted_world  # noqa: PLC0415 - see above

    world = replace(adopted_world(os.environ) or detect_world(os.environ, start), began=began)
    config, folder = _run_to_resume(config, resume, world, start)
    return config, world, folder


@contextmanager
def _exits_explained() -> Iterator[None]:
    """Turn sys.exit into an error: only code of the user exits in the middle of a run."""
    try:
        yield
    except SystemExit as cause:
        raise PacelineError(
            f"your code ended the run with sys.exit({'' if cause.code is None else cause.code})",
            hint=f"see {code_place(cause)}",
        ) from cause


def _result_of_finished(config: Config, done: FinishedError, world: World) -> RunResult:
    """Return the result of the run that --resume auto found finished."""
    if world.is_lead:
        say(f"{done.message}; to train another run, add --name NAME")
    return finished_result(find_run(config.runs_dir / config.run_name, config.runs_dir))


def _run_to_resume(
    config: Config, resume: Path | str | None, world: World, start: Start
) -> tuple[Config, RunFolder | None]:
    """Return the settings and the folder of the run to resume. With "auto" only the lead looks."""
    if resume is None:
        return config, None
    if is_auto(resume):
        config = config.resolved()
        if not world.is_lead:
            return config, None
        if config.upload is not None:
            fetch_newest(config)
        folder = find_or_reserve(config, timeout=start.timeout, restarted=world.attempt > 0)
        if folder.is_run:
            before = read_config(folder)
            config = _as_before(before, config)
            _refuse_other_settings(before, config, folder, "add --name NAME to start another run")
    else:
        folder = open_run(Path(resume), config.runs_dir)
        if world.is_lead and world.attempt == 0:
            claim_run(folder)
        config = _check_resume(config, folder)
    if folder.is_run and not start.trust:
        refuse_code_inside(folder, config)
    return config, folder


def _check_resume(config: Config, folder: RunFolder) -> Config:
    """Refuse to resume with settings that would make it another run."""
    before = read_config(folder)
    if config == replace(DEFAULTS, runs_dir=config.runs_dir):
        return before
    after = _as_before(before, config.resolved())
    _refuse_other_settings(before, after, folder, "drop --resume to start another")
    return after


def _as_before(before: Config, after: Config) -> Config:
    """Return the settings with what a run has chosen where they say auto."""
    if after.sample_order == "auto":  # the default, also of runs that were started before there was a choice
        after = replace(after, sample_order=before.sample_order)
    return replace(after, accumulate=before.accumulate) if after.accumulate == "auto" else after


def _refuse_other_settings(before: Config, after: Config, folder: RunFolder, otherwise: str) -> None:
    for setting in SETTINGS:
        old, new = getattr(before, setting), getattr(after, setting)
        if setting not in CHANGEABLE and old != new:
            given, why = flag(setting), ""
            if setting == "batch_norm" and after.exact == "bitwise":
                given, why = "--exact", ", which --exact bitwise needs"
            raise RunError(
                f"{folder.path} was trained with {flag(setting)} {old}, not {new}{why}",
                hint=f"drop {given} to resume this run, or {otherwise}",
            )
