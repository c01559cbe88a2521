"""`paceline check DIR`: read every file of a checkpoint, and tell whether it is as it was written."""

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from paceline.commands.defaults import DEFAULT_RUNS
from paceline.core.errors import CheckpointError, ExitCode, RunError
from paceline.core.units import plural, size
from paceline.records.folder import list_checkpoints
from paceline.records.manifest import has_manifest
from paceline.records.mirror import open_run
from paceline.records.sealing import CheckResult, check_sealed


def integrity_command(
    folder: Path,
    *,
    runs_dir: Path = DEFAULT_RUNS,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Check the files of a sealed folder, of a checkpoint, or of all checkpoints of a run.

    Exit code 0: all are as they were written; 1: some are damaged, with the names of files and tensors.

    Parameters
    ----------
    folder
        Folder that `paceline seal` or a run wrote; or a run (its folder, or its name for the newest folder).
    runs_dir
        Folder of all runs, in which run names are looked up.
    as_json
        Print one JSON object.
    """
    results = [_check(path) for path in _checkpoints(folder, runs_dir)]
    if as_json:
        print(json.dumps([{"folder": str(each.folder), "problems": each.problems} for each in results]))
    else:
        print("\n".join(line for each in results for line in _lines(each)))
    return ExitCode.DIFFERENT if any(each.problems for each in results) else ExitCode.FINISHED


def _checkpoints(folder: Path, runs_dir: Path) -> list[Path]:
    if has_manifest(folder):
        return [folder]
    found = list_checkpoints(folder)
    if found:
        return found
    try:
        run = open_run(folder, runs_dir)
    except RunError as problem:
        if not folder.is_dir():
            raise
        raise RunError(f"{folder} has no manifest.json", hint=f"to give it one: paceline seal {folder}") from problem
    found = list_checkpoints(run.checkpoints)
    if not found:
        raise RunError(f"{run.path} has no checkpoints")
    return found


def _check(path: Path) -> CheckResult:
    if path.is_dir():
        return check_sealed(path)
    from paceline.engine.old_checkpoint import check_old_checkpoint

    try:
        check_old_checkpoint(path)
    except CheckpointError as problem:
        return CheckResult(folder=path, problems=(problem.message,))
    return CheckResult(folder=path, num_files=1, num_bytes=path.stat().st_size)


def _lines(result: CheckResult) -> list[str]:
    if result.problems:
        return [f"damaged  {result.folder}: {problem}" for problem in result.problems]
    what = f"{plural(result.num_files, 'file')}, {size(result.num_bytes)}"
    what += f", {plural(result.num_tensors, 'tensor')}" if result.num_tensors else ""
    lines = [f"intact   {result.folder}: {what}"]
    return lines + [f"         not in the manifest: {name}" for name in result.extra]
