"""`paceline train`: train a model, or go on with a run that was stopped."""

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from paceline.core.config import CHANGEABLE, SETTINGS, Config, flag
from paceline.core.errors import ExitCode, RunError
from paceline.core.load import Settings, load_config
from paceline.records.entries import RunResult, State
from paceline.records.folder import RunFolder, find_run
from paceline.records.reader import is_alive, read_rank

START = Group("Start", sort_key=0)
DEFAULTS = Config()


def train_command(
    settings: Settings = DEFAULTS,
    *,
    config: Annotated[Path | None, Parameter(group=START)] = None,
    resume: Annotated[Path | None, Parameter(group=START)] = None,
    summary: Annotated[bool, Parameter(group=START, negative="")] = False,
) -> int:
    """Train a model.

    Settings come from flags, PACELINE_… variables, a --config file and defaults, in this order.
    Ctrl-C finishes the step, saves, and says how to go on.

    Examples:

      paceline train --model resnet20 --data digits --epochs 5

      paceline train --model my.py:build --data my.py:data --lr 0.05

      paceline train --resume runs/digits-resnet20

    Parameters
    ----------
    config
        TOML file with settings; a run's own config.toml gives the same run again.
    resume
        Run folder to go on with, in mid-epoch if need be.
    summary
        Print the layer table.
    """
    result = train(settings, resume=resume, show_table=summary)
    if result.state is State.STOPPED and result.signal is not None:
        return 128 + result.signal
    return ExitCode.FINISHED


def train(config: Config = DEFAULTS, *, resume: Path | str | None = None, show_table: bool = False) -> RunResult:
    """Train with these settings, or go on with the run at `resume`, and return the results."""
    from paceline.engine.rank import run_rank
    from paceline.parallel.detect import detect_world

    folder = None if resume is None else find_run(Path(resume), config.runs_dir)
    if folder is not None:
        config = _check_resume(config, folder)
    return run_rank(config, detect_world(os.environ), resume=folder, show_table=show_table)


def _check_resume(config: Config, folder: RunFolder) -> Config:
    """Refuse to go on with a run that is in use, or with settings that would make it another run."""
    lead = read_rank(folder.rank(0))
    if lead is not None and not State(lead["state"]).is_final and is_alive(lead):
        raise RunError(
            f"{folder.path} is in use by process {lead['pid']} on {lead['host']}", hint="stop it first, or wait"
        )
    before = load_config(folder.config)
    if config == DEFAULTS:
        return before
    after = config.resolved()
    for setting in SETTINGS:
        old, new = getattr(before, setting), getattr(after, setting)
        if setting not in CHANGEABLE and old != new:
            raise RunError(
                f"{folder.path} was trained with {flag(setting)} {old}, not {new}",
                hint=f"drop {flag(setting)} to go on with it, or drop --resume to start another run",
            )
    return after
