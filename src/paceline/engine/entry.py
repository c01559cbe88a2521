"""`paceline.train`: train in this process, as the only rank or as one of several. Imports torch when it is called."""

import os
import time
from dataclasses import replace
from pathlib import Path

from paceline.core.config import CHANGEABLE, SETTINGS, Config
from paceline.core.errors import PacelineError, RunError, flag
from paceline.core.plugin import code_place
from paceline.core.start import Start
from paceline.parallel.detect import detect_world, visible_devices
from paceline.records.attempt import claim_run
from paceline.records.code import refuse_code_inside
from paceline.records.entries import RunResult
from paceline.records.folder import RunFolder, find_run
from paceline.records.reader import read_config

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

    Start-up time counts from now, or from `began`, in seconds since 1970.
    """
    began = time.time() if began is None else began
    # before importing torch, which warns about host names that it cannot resolve
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if config.exact == "bitwise":  # cuBLAS reads it when it is first used
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    from paceline.engine.rank import run_rank  # noqa: PLC0415 - see above

    if start.devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = visible_devices(start.devices, os.environ)
    world = replace(detect_world(os.environ, start), began=began)
    folder = None if resume is None else find_run(Path(resume), config.runs_dir)
    if folder is not None and world.is_lead and world.attempt == 0:
        claim_run(folder)
    if folder is not None:
        config = _check_resume(config, folder)
        if not start.trust:
            refuse_code_inside(folder, config)
    try:
        return run_rank(config, world, start=start, resume=folder, show_table=show_table)
    except SystemExit as cause:  # only code of the user exits in the middle of a run
        raise PacelineError(
            f"your code ended the run with sys.exit({'' if cause.code is None else cause.code})",
            hint=f"see {code_place(cause)}",
        ) from cause


def _check_resume(config: Config, folder: RunFolder) -> Config:
    """Refuse to resume with settings that would make it another run."""
    before = read_config(folder)
    if config == replace(DEFAULTS, runs_dir=config.runs_dir):
        return before
    after = config.resolved()
    if after.sample_order == "auto":  # the default, also of runs that were started before there was a choice
        after = replace(after, sample_order=before.sample_order)
    for setting in SETTINGS:
        old, new = getattr(before, setting), getattr(after, setting)
        if setting not in CHANGEABLE and old != new:
            given, why = flag(setting), ""
            if setting == "batch_norm" and after.exact == "bitwise":
                given, why = "--exact", ", which --exact bitwise needs"
            raise RunError(
                f"{folder.path} was trained with {flag(setting)} {old}, not {new}{why}",
                hint=f"drop {given} to resume this run, or drop --resume to start another",
            )
    return after
