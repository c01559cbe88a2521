"""`paceline compare A B`: compare two runs, checkpoints or weight files, tensor by tensor."""

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from paceline.commands.defaults import DEFAULT_RUNS
from paceline.compare.compare_text import comparison_text, comparison_values
from paceline.compare.contents import compare_contents, fit_names
from paceline.core.errors import CheckpointError, ComparisonError, ExitCode, SettingError


def compare_command(
    first: Path,
    second: Path,
    *,
    checkpoint: str = "last",
    tolerance: float | None = None,
    show_all: Annotated[bool, Parameter(name="--all", negative="")] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
    runs_dir: Path = DEFAULT_RUNS,
) -> int:
    """Compare two runs, checkpoints or weight files, tensor by tensor.

    Exit code 0: equal (every bit, or within --tolerance); 1: different; 2: could not compare. Reads .pth, .pt, .bin,
    .ckpt and .safetensors of any framework without running code from them, sharded files by their index, and removes
    the name prefixes of DataParallel, DDP and torch.compile. For settings and results of runs: paceline runs compare.

    Examples:

      paceline compare digits-resnet20 runs/other/003

      paceline compare runs/a/001 runs/b/001 --checkpoint best --tolerance 1e-4

      paceline compare final_model_rank_0.pth final_model_rank_1.pth

    Parameters
    ----------
    first
        Run (its folder, or its name for the newest folder), checkpoint, weight file, or folder with model.safetensors.
    second
        Run, checkpoint, weight file or folder to compare with the first.
    checkpoint
        Which checkpoint of a run: last, best, or a name such as step-00000055.
    tolerance
        Largest difference that counts as equal, relative to the largest value of a tensor. Default: bit by bit.
    show_all
        List every tensor that differs.
    as_json
        Print one JSON object with every number.
    runs_dir
        Folder of all runs, in which run names are looked up.
    """
    from paceline.compare.sections import read_contents

    if tolerance is not None and not tolerance >= 0:
        raise SettingError("tolerance", f"is {tolerance}, but must be at least 0")
    try:
        held = [read_contents(path, runs_dir=runs_dir, checkpoint=checkpoint) for path in (first, second)]
        one, other = fit_names(*held)
        comparison = compare_contents(one, other, tolerance=tolerance)
    except CheckpointError as problem:  # not 1, which means that they differ
        raise ComparisonError(problem.message, hint=problem.hint) from problem
    if not comparison.parts:
        raise ComparisonError(f"the two have nothing in common: {', '.join(comparison.missing)}")
    if as_json:
        print(json.dumps(comparison_values(one, other, comparison)))
    else:
        print(comparison_text(one, other, comparison, show_all=show_all))
    return ExitCode.FINISHED if comparison.agrees else ExitCode.DIFFERENT
