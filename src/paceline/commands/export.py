"""`paceline export RUN`: the weights of a run for other programs, with a card of how it was trained."""

import json
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from paceline.commands.defaults import DEFAULT_RUNS
from paceline.core.errors import ConfigError, ExitCode, suggestion
from paceline.core.setting_types import Names
from paceline.records.code import refuse_code_inside, refuse_own_loop
from paceline.records.folder import RunFolder, checkpoint_step
from paceline.records.mirror import open_run
from paceline.records.reader import read_config, read_metrics

NOT_SHOWN = frozenset({"kind", "is_best", "seconds", "split_samples"})


def export_command(
    run: Path,
    *,
    out: Path | None = None,
    format: Annotated[Names, Parameter(name="--format")] = ("safetensors",),  # noqa: A002 - its flag
    checkpoint: str = "best",
    runs_dir: Path = DEFAULT_RUNS,
    trust: Annotated[bool, Parameter(negative="")] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Export the model of a run: safetensors in the layout of Hugging Face, state_dict, torch.export or ONNX.

    Parameters
    ----------
    run
        Run folder, or a run name for its newest folder.
    out
        Folder to write to. Default: export in the run folder.
    format
        Formats: safetensors, state-dict, torch-export, onnx, or several as in safetensors,onnx.
    checkpoint
        Checkpoint: best, last, or a name such as step-00000055.
    runs_dir
        Folder of all runs, in which run names are looked up.
    trust
        Run code that lies inside the run folder, as of a folder from elsewhere.
    as_json
        Print one JSON object.
    """
    from paceline.engine.export import FORMATS, read_export, write_export

    for name in format:
        if name not in FORMATS:
            raise ConfigError(f"there is no format {name}", hint=suggestion(name, FORMATS))
    folder = open_run(run, runs_dir)
    config = read_config(folder)
    refuse_own_loop(folder, config)
    if not trust:
        refuse_code_inside(folder, config)
    export = read_export(folder, config, checkpoint=checkpoint)
    files = write_export(export, out or folder.export, format, _scores(folder, checkpoint_step(export.checkpoint)))
    sizes = {str(file): file.stat().st_size for file in files}
    print(json.dumps({"checkpoint": str(export.checkpoint), "files": sizes}) if as_json else "\n".join(sizes))
    return ExitCode.FINISHED


def _scores(folder: RunFolder, step: int) -> dict[str, Any]:
    """Return the newest scores of a checkpoint by name, with their split and step; empty if it was not scored."""
    scored = [record for record in read_metrics(folder) if record["kind"] == "eval" and record["step"] == step]
    newest = scored[-1] if scored else {}
    return {
        name: value for name, value in newest.items() if isinstance(value, int | float | str) and name not in NOT_SHOWN
    }
