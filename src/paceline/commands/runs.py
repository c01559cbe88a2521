"""`paceline runs`: list, show, compare and remove run folders."""

import json
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from paceline.commands.defaults import DEFAULT_RUNS
from paceline.core.errors import ConfigError, ExitCode
from paceline.core.score_text import spread_text
from paceline.core.units import fitted_table, plural, size, table, value_text
from paceline.records.compare_runs import compare_runs, results
from paceline.records.metrics_csv import write_csv
from paceline.records.mirror import open_run
from paceline.records.reader import summarise
from paceline.records.removal import find_only_run, plan_removal, remove_run
from paceline.records.run_index import list_runs
from paceline.records.run_text import (
    HEAD,
    comparison_as_json,
    difference_cells,
    run_as_json,
    run_place,
    run_row,
    started_text,
)

Json = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON: one object per line.")]
RunsDir = Annotated[Path, Parameter(help="Folder of all runs, in which run names are looked up.")]

app = App(name="runs", help="List, show, compare and remove runs; print their metrics as CSV.")


@app.default
def list_runs_command(*, runs_dir: RunsDir = DEFAULT_RUNS, as_json: Json = False) -> int:
    """List all runs, the newest last."""
    runs = list_runs(runs_dir)
    if as_json:
        for run in runs:
            print(json.dumps(run_as_json(run)))
    elif not runs:
        print(f"no runs in {runs_dir} yet; to start one: paceline train")
    else:
        print(fitted_table(HEAD, [run_row(run) for run in runs]))
    return ExitCode.FINISHED


@app.command
def show(run: Path, *, runs_dir: RunsDir = DEFAULT_RUNS, as_json: Json = False) -> int:
    """Show the settings and results of a run.

    Parameters
    ----------
    run
        Run folder, or a run name for its newest folder.
    """
    summary = summarise(open_run(run, runs_dir))
    if as_json:
        print(json.dumps(run_as_json(summary)))
        return ExitCode.FINISHED
    rows = [[name, value_text(name, value)] for name, value in results(summary).items()]
    if summary.detail:
        rows.append(["failed with", summary.detail])
    rows += [[name, value] for name, value in run_place(summary).items()]
    print(f"{summary.folder.path}  started {started_text(summary)}\n")
    print(table(["result", ""], rows) + "\n")
    print(table(["setting", ""], [[name, value_text(name, value)] for name, value in summary.config.as_dict().items()]))
    return ExitCode.FINISHED


@app.command
def compare(first: Path, second: Path, *others: Path, runs_dir: RunsDir = DEFAULT_RUNS, as_json: Json = False) -> int:
    """Compare the settings and results of two or more runs; of runs that differ by seed only also mean ± deviation.

    To compare their weights: paceline compare A B.

    Parameters
    ----------
    first
        Run folder, or a run name for its newest folder.
    second
        The run to compare with.
    others
        More runs.
    """
    runs = [summarise(open_run(path, runs_dir)) for path in (first, second, *others)]
    comparison = compare_runs(*runs)
    if as_json:
        print(json.dumps(comparison_as_json(comparison)))
        return ExitCode.FINISHED
    names = [str(run.folder.path) for run in runs]
    settings = [difference_cells(one) for one in comparison.settings]
    print(fitted_table(["setting", *names], settings) if settings else "the settings are the same")
    print("\n" + fitted_table(["result", *names], [difference_cells(one) for one in comparison.results]))
    if comparison.scores:
        rows = [[one.name, spread_text(one.name, one.mean, one.deviation)] for one in comparison.scores]
        print(f"\nonly the seed differs:\n{table(['result', f'mean ± deviation of {len(runs)} seeds'], rows)}")
    return ExitCode.FINISHED


@app.command(name=["rm", "delete"])
def rm(
    run: Path,
    *others: Path,
    runs_dir: RunsDir = DEFAULT_RUNS,
    yes: Annotated[bool, Parameter(name=["--yes", "-y"], negative="")] = False,
) -> int:
    """Remove run folders with all that is in them, after a question. A run that is being trained is not removed.

    Parameters
    ----------
    run
        Run folder such as demo/001, or a run name if there is one run of this name.
    others
        More runs.
    yes
        Do not ask.
    """
    found = [find_only_run(path, runs_dir) for path in (run, *others)]
    removals = [plan_removal(folder) for folder in dict.fromkeys(found)]
    for removal in removals:
        print(f"{removal.folder.path}  {removal.state}, {size(removal.num_bytes)}")
    if not yes and not _agrees(f"remove {plural(len(removals), 'run')}?"):
        print("nothing was removed")
        return ExitCode.FAILED
    for removal in removals:
        remove_run(removal.folder)
    print(f"removed {plural(len(removals), 'run')}")
    return ExitCode.FINISHED


@app.command(name="csv")
def csv_command(*run: Path, runs_dir: RunsDir = DEFAULT_RUNS) -> int:
    """Print the metrics of runs as comma-separated values, one row per record.

    pandas.read_csv and polars.read_csv read it.

    Examples:

      paceline runs csv digits-resnet20 > metrics.csv

    Parameters
    ----------
    run
        Run folders, or run names for their newest folders.
    """
    if not run:
        raise ConfigError("no run is given", hint="paceline runs csv RUN; to list the runs: paceline runs")
    write_csv([open_run(path, runs_dir) for path in run], sys.stdout)
    return ExitCode.FINISHED


def _agrees(question: str) -> bool:
    """Ask in a terminal; elsewhere --yes is needed."""
    if not sys.stdin.isatty():
        raise ConfigError(f"{question.removesuffix('?')}: stdin is not a terminal", hint="add --yes")
    print(f"{question} [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}  # empty at Ctrl-D
