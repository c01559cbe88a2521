"""`paceline explain`: where the time of a run went, its bottleneck, and what to try first."""

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from paceline.commands.defaults import DEFAULT_RUNS
from paceline.core.errors import ExitCode, RunError
from paceline.explain.bottlenecks import find_bottlenecks
from paceline.explain.explain_text import explanation_text, explanation_values, heading
from paceline.explain.time_split import split_time
from paceline.records.mirror import open_run
from paceline.records.phases import read_phases
from paceline.records.profile import read_profile
from paceline.records.reader import read_config


def explain_command(
    run: Path,
    *,
    runs_dir: Path = DEFAULT_RUNS,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Show where the time of a run went, its bottleneck, and what to try first.

    The table splits the mean step of every rank: data (waiting for the loader), copy (to the device), forward,
    backward, communication (exposed: waiting for all-reduce after the backward pass), straggler (waiting for slower
    ranks), update. Gains are estimated from the run, and from its profile if it has one.

    Examples:

      paceline explain digits-resnet20

      paceline explain runs/digits-resnet20/002 --json

    Parameters
    ----------
    run
        Run folder, or a run name for its newest folder.
    runs_dir
        Folder of all runs, in which run names are looked up.
    as_json
        Print one JSON object.
    """
    folder = open_run(run, runs_dir)
    split = split_time(read_phases(folder))
    if split is None:
        raise RunError(
            f"{folder.path} has no phase times yet",
            hint="they are recorded every --log-every steps and at the end of every epoch",
        )
    config = read_config(folder)
    profile = read_profile(folder) if folder.profile.exists() else None
    bottlenecks = find_bottlenecks(split, config, profile)
    if as_json:
        print(json.dumps({"run": str(folder.path)} | explanation_values(split, bottlenecks)))
    else:
        print(f"{folder.path}: {heading(split, config)}\n")
        print(explanation_text(split, bottlenecks, has_profile=profile is not None))
    return ExitCode.FINISHED
