"""`paceline compare A B`: two runs, checkpoints or files of weights, tensor by tensor."""

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from paceline.analysis.contents import compare_contents, fit_names
from paceline.core.errors import CheckpointError, ComparisonError, ExitCode, SettingError
from paceline.report.comparison import comparison_text, comparison_values

Flag = Annotated[bool, Parameter(negative="")]


def compare_command(
    first: Path,
    second: Path,
    *,
    checkpoint: str = "last",
    tolerance: float | None = None,
    show_all: Annotated[bool, Parameter(name="--all", negative="")] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
    runs_dir: Path = Path("runs"),
) -> int:
    """Compare two runs, checkpoints or files of weights, tensor by tensor.

    Exit code 0: equal (to the bit, or within --tolerance); 1: different; 2: could not compare. Files of others are
    read without running their code: .pth, .pt, .bin, .ckpt, .safetensors, sharded ones by their index; names that
    DataParallel, DDP or torch.compile prefixed are unwrapped. For settings and results of runs: paceline runs compare.

    Examples:

      paceline compare digits-resnet20 runs/other/003

      paceline compare runs/a/001 runs/b/001 --checkpoint best --tolerance 1e-4

      paceline compare final_model_rank_0.pth final_model_rank_1.pth

    Parameters
    ----------
    first
        Run (its folder, or its name for its newest), checkpoint, file of weights, or folder with model.safetensors.
    second
        What to compare with.
    checkpoint
        Which checkpoint of a run: last, best, or a file name such as step-00000055.pt.
    tolerance
        Largest difference, relative to the largest value of a tensor, that is still the same; none when not given.
    show_all
        List every tensor that is not equal.
    as_json
        Print one JSON object with every number.
    runs_dir
        Folder of all runs, whose names may be given.
    """
    from paceline.engine.contents import read_contents

    if tolerance is not None and not tolerance >= 0:
        raise SettingError("tolerance", f"is {tolerance}, but must be at least 0")
    try:
        held = [read_contents(path, runs_dir=runs_dir, checkpoint=checkpoint) for path in (first, second)]
        one, other = fit_names(*held)
        comparison = compare_contents(one, other, tolerance=tolerance)
    except CheckpointError as problem:  # its own exit code would say that they differ
        raise ComparisonError(problem.message, hint=problem.hint) from problem
    if not comparison.parts:
        raise ComparisonError(f"the two have no part in common: {', '.join(comparison.missing)}")
    if as_json:
        print(json.dumps(comparison_values(one, other, comparison)))
    else:
        print(comparison_text(one, other, comparison, show_all=show_all))
    return ExitCode.FINISHED if comparison.agrees else ExitCode.DIFFERENT
