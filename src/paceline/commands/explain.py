"""`paceline explain`: where the time of a run went, what limits it, and what to try first."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from paceline.analysis.explain import explain
from paceline.analysis.phases import split_time
from paceline.core.errors import ExitCode, RunError
from paceline.core.load import load_config
from paceline.core.units import plural
from paceline.records.folder import find_run
from paceline.records.phases import read_phases
from paceline.records.profile import read_profile
from paceline.report.explanation import explanation_text

DEFAULT_RUNS = Path("runs")


def explain_command(
    run: Path,
    *,
    runs_dir: Path = DEFAULT_RUNS,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Say where the time of a run went, what limits it, and what to try first.

    The table splits the mean step of every rank: data (waiting for it), copy (to the device), forward, backward,
    communication (gradients still on their way when the backward pass has ended), straggler (waiting there for a rank
    that is later), update. Gains are computed from the run, and from its profile where it has one.

    Examples:

      paceline explain digits-resnet20

      paceline explain runs/digits-resnet20/002 --json

    Parameters
    ----------
    run
        Run folder, or a run's name for its newest.
    runs_dir
        Folder of all runs, where RUN may be a name.
    as_json
        Print one JSON object.
    """
    folder = find_run(run, runs_dir)
    split = split_time(read_phases(folder))
    if split is None:
        raise RunError(
            f"{folder.path} has no times: it has not trained for a single interval",
            hint="times are recorded at every --log-every steps and at the end of an epoch",
        )
    config = load_config(folder.config)
    profile = read_profile(folder) if folder.profile.exists() else None
    findings = explain(split, config, profile)
    if as_json:
        seconds = {phase: values.round(6).tolist() for phase, values in split.whole.phases.items()}
        found = [dataclasses.asdict(finding) for finding in findings]
        print(json.dumps({"run": str(folder.path), "seconds": seconds, "findings": found}))
        return ExitCode.FINISHED
    hosts = len(set(split.facts.hosts))
    ranks = plural(split.world_size, "rank") + (f" on {hosts} hosts" if hosts > 1 else "")
    print(f"{folder.path}: {config.model}, {split.facts.global_batch} images a step, {ranks}\n")
    print(explanation_text(split, findings, has_profile=profile is not None))
    return ExitCode.FINISHED
