"""`paceline runs`: list, show and compare run folders."""

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from paceline.commands.defaults import DEFAULT_RUNS
from paceline.core.errors import ConfigError, ExitCode
from paceline.core.score_text import main_score, score_value
from paceline.core.units import table, value_text
from paceline.records.compare_runs import compare_runs, results
from paceline.records.folder import find_run
from paceline.records.metrics_csv import write_csv
from paceline.records.reader import RunSummary, summarise
from paceline.records.run_index import list_runs

Json = Annotated[bool, Parameter(name="--json", negative="")]

app = App(name="runs", help="List, show and compare runs; print their metrics as CSV.")


@app.default
def list_runs_command(*, runs_dir: Path = DEFAULT_RUNS, as_json: Json = False) -> int:
    """List all runs, the newest last.

    Parameters
    ----------
    runs_dir
        Folder of all runs.
    as_json
        Print one JSON object per run.
    """
    runs = list_runs(runs_dir)
    if as_json:
        for run in runs:
            print(json.dumps(_as_json(run)))
    elif not runs:
        print(f"no runs in {runs_dir} yet; to start one: paceline train")
    else:
        print(table(["run", "started", "model", "data", "epochs", "best", "state"], [_row(run) for run in runs]))
    return ExitCode.FINISHED


@app.command
def show(run: Path, *, runs_dir: Path = DEFAULT_RUNS, as_json: Json = False) -> int:
    """Show the settings and results of a run.

    Parameters
    ----------
    run
        Run folder, or a run name for its newest folder.
    runs_dir
        Folder of all runs, in which run names are looked up.
    as_json
        Print one JSON object.
    """
    summary = summarise(find_run(run, runs_dir))
    if as_json:
        print(json.dumps(_as_json(summary)))
        return ExitCode.FINISHED
    rows = [[name, value_text(name, value)] for name, value in results(summary).items()]
    if summary.detail:
        rows.append(["failed with", summary.detail])
    print(f"{summary.folder.path}  started {_when(summary)}\n")
    print(table(["result", ""], rows) + "\n")
    print(table(["setting", ""], [[name, value_text(name, value)] for name, value in summary.config.as_dict().items()]))
    return ExitCode.FINISHED


@app.command
def compare(first: Path, second: Path, *others: Path, runs_dir: Path = DEFAULT_RUNS, as_json: Json = False) -> int:
    """Compare the settings and results of two runs.

    To compare their weights: paceline compare A B.

    Parameters
    ----------
    first
        Run folder, or a run name for its newest folder.
    second
        The run to compare with.
    runs_dir
        Folder of all runs, in which run names are looked up.
    as_json
        Print one JSON object.
    """
    runs = [summarise(find_run(path, runs_dir)) for path in (first, second)]
    comparison = compare_runs(*runs)
    if as_json:
        parts = {"settings": comparison.settings, "results": comparison.results}
        print(json.dumps({key: {d.name: [d.first, d.second] for d in part} for key, part in parts.items()}))
        return ExitCode.FINISHED
    names = [str(run.folder.path) for run in runs]
    settings = [[d.name, value_text(d.name, d.first), value_text(d.name, d.second)] for d in comparison.settings]
    print(table(["setting", *names], settings) if settings else "the settings are the same")
    print("\n" + table(["result", *names], [[d.name, value_text(d.name, d.first), value_text(d.name, d.second)]
                                           for d in comparison.results]))  # fmt: skip
    return ExitCode.FINISHED


@app.command(name="csv")
def csv_command(*run: Path, runs_dir: Path = DEFAULT_RUNS) -> int:
    """Print the metrics of runs as comma-separated values, one row per record.

    pandas.read_csv and polars.read_csv read it.

    Examples:

      paceline runs csv digits-resnet20 > metrics.csv

    Parameters
    ----------
    run
        Run folders, or run names for their newest folders.
    runs_dir
        Folder of all runs, in which run names are looked up.
    """
    if not run:
        raise ConfigError("no run is given", hint="paceline runs csv RUN; to list the runs: paceline runs")
    write_csv([find_run(path, runs_dir) for path in run], sys.stdout)
    return ExitCode.FINISHED


def _row(run: RunSummary) -> list[str]:
    best = "–" if run.best is None else _score(run.best)
    epochs = f"{run.epochs}/{run.config.epochs}"
    return [run.folder.name, _when(run), *run.trained, epochs, best, run.state]


def _score(best: dict[str, Any]) -> str:
    name = main_score(best)
    text = score_value(name, best[name])
    return text if name == "top1" else f"{name} {text}"


def _when(run: RunSummary) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(run.started))


def _as_json(run: RunSummary) -> dict[str, Any]:
    return {"run": str(run.folder.path), "started": run.started} | results(run) | {"config": run.config.as_dict()}
