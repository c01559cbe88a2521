"""`paceline infer RUN PATH…`: what the model of a run predicts for files."""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from paceline.commands.defaults import ALONE, DEFAULT_RUNS
from paceline.core.errors import ConfigError, ExitCode
from paceline.core.start import Start
from paceline.core.units import percent, table
from paceline.launching.child import inherited
from paceline.launching.launch_plan import plan_launch
from paceline.launching.local import run_ranks
from paceline.parallel.detect import detect_world
from paceline.records.code import refuse_code_inside, refuse_own_loop
from paceline.records.mirror import open_run
from paceline.records.reader import read_config

MOST_NUMBERS = 8
"""Numbers of a list that the table shows."""


def infer_command(
    run: Path,
    *paths: Path,
    checkpoint: str = "best",
    read: str | None = None,
    out: Path | None = None,
    device: str = "auto",
    threads: int | None = None,
    runs_dir: Path = DEFAULT_RUNS,
    start: Annotated[Start, Parameter(name="*")] = ALONE,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Predict files with the model of a run: class and probability, mask, numbers, or how a text continues.

    A folder stands for all files below it. Every world size gives the same answer.

    Parameters
    ----------
    run
        Run folder, or a run name for its newest folder.
    paths
        Files and folders.
    checkpoint
        Checkpoint: best, last, or a name such as step-00000055.
    read
        Your own function my.py:read, which takes a path and returns a sample as your data set does.
    out
        Folder for the masks of segmentation, as PNG files of class indices.
    device
        Device: auto, cpu, cuda or cuda:1.
    threads
        CPU threads.
    runs_dir
        Folder of all runs, in which run names are looked up.
    as_json
        Print one JSON object per file, one per line.
    """
    if not paths:
        raise ConfigError("infer needs files or folders", hint=f"paceline infer {run} PATH…")
    folder = open_run(run, runs_dir)
    settings = dataclasses.replace(read_config(folder), device=device, threads=threads)
    refuse_own_loop(folder, settings)
    if not start.trust:
        refuse_code_inside(folder, settings)
    world = detect_world(os.environ, start)
    plan = plan_launch(settings, start, world, os.environ)
    if plan is not None:
        given = {"checkpoint": checkpoint, "read": read, "out": out, "device": device, "threads": threads}
        flags = [str(word) for name, value in given.items() if value is not None for word in (f"--{name}", value)]
        flags += ["--timeout", str(start.timeout), *(["--trust"] * start.trust), *(["--json"] * as_json)]
        return run_ranks(plan, ["infer", str(folder.path), *map(str, paths), *flags], inherited(os.environ))
    from paceline.engine.infer import Request, infer_files

    request = Request(paths=paths, checkpoint=checkpoint, read=read, masks=out)
    rows = infer_files(settings, folder, request, world, timeout=start.timeout)
    if rows is not None:
        print("\n".join(map(json.dumps, rows)) if as_json else _table(rows))
    return ExitCode.FINISHED


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    names = list(rows[0])
    return table(names, [[_cell(row.get(name)) for name in names] for row in rows])


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {percent(share)}" for name, share in value.items())
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        shown = " ".join(_cell(each) for each in value[:MOST_NUMBERS])
        return f"{shown} …" if len(value) > MOST_NUMBERS else shown
    return str(value)
