"""`paceline report`: runs, or a benchmark, as one self-contained HTML file."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from paceline.bench.bench_folder import find_bench
from paceline.commands.defaults import DEFAULT_RUNS
from paceline.core.errors import ConfigError, ExitCode, RunError
from paceline.core.units import size
from paceline.records.folder import RunFolder
from paceline.records.mirror import open_run
from paceline.records.writer import replacing
from paceline.report.bench_data import read_bench_data
from paceline.report.page import Page, render
from paceline.report.pages import page_of_bench, page_of_run, page_of_runs
from paceline.report.run_data import read_run_data, run_forecasts


def report_command(
    run: Path,
    *others: Path,
    out: Path | None = None,
    label: tuple[str, ...] = (),
    runs_dir: Path = DEFAULT_RUNS,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Write a report of a run, a benchmark, or several runs side by side, as one HTML file.

    The file is self-contained and has no scripts: it can be copied, mailed and printed.

    Examples:

      paceline report digits-resnet20

      paceline report runs/bench-digits-resnet20/001

      paceline report one-rank two-ranks --label one --label two --out compared.html

    Parameters
    ----------
    run
        Run folder, a run name for its newest folder, or a benchmark folder.
    others
        Other runs to compare with the first.
    out
        File to write. Default: report.html in the folder of the first run.
    label
        Names of the runs in the report, one --label per run. Default: their folders.
    runs_dir
        Folder of all runs, in which run names are looked up.
    as_json
        Print one JSON object with the file and what the report says in its headline.
    """
    folder, page = _page([run, *others], label, runs_dir)
    path = RunFolder(folder).report if out is None else out
    html = render(page)
    try:
        with replacing(path) as scratch:
            scratch.write_text(html, encoding="utf-8")
    except OSError as cause:
        raise RunError(f"cannot write {path}: {cause.strerror}", hint="choose another file with --out") from cause
    if as_json:
        print(
            json.dumps({"report": str(path), "bytes": len(html.encode()), "verdict": page.verdict, "lead": page.lead})
        )
        return ExitCode.FINISHED
    print(f"{path}  ({size(len(html.encode()))}; open it in a browser)")
    return ExitCode.FINISHED


def _page(paths: Sequence[Path], labels: Sequence[str], runs_dir: Path) -> tuple[Path, Page]:
    """Return the folder of the first run or of a benchmark, and the page to write."""
    bench = find_bench(paths[0], runs_dir)
    if bench is not None:
        if len(paths) > 1:
            raise ConfigError(
                f"{paths[0]} is a benchmark, which cannot be combined with runs", hint=f"paceline report {paths[0]}"
            )
        return bench.path, page_of_bench(read_bench_data(bench))
    if labels and len(labels) != len(paths):
        raise ConfigError(
            f"{len(paths)} runs, but {len(labels)} labels", hint="give --label once per run, in the same order"
        )
    folders = [open_run(path, runs_dir) for path in paths]
    names = labels or [folder.name for folder in folders]
    runs = [read_run_data(folder, name) for folder, name in zip(folders, names, strict=True)]
    page = page_of_run(runs[0], run_forecasts(runs[0])) if len(runs) == 1 else page_of_runs(runs)
    return folders[0].path, page
