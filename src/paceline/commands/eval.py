"""`paceline eval RUN`: evaluate a checkpoint on every sample exactly once."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from paceline.commands.defaults import DEFAULT_RUNS
from paceline.core.errors import ExitCode
from paceline.core.load import load_config
from paceline.core.metrics import Score
from paceline.core.units import percent, plural
from paceline.records.folder import find_run


def eval_command(
    run: Path,
    *,
    checkpoint: str = "best",
    split: Literal["train", "valid", "test"] = "test",
    device: str = "auto",
    threads: int | None = None,
    runs_dir: Path = DEFAULT_RUNS,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Evaluate a checkpoint: loss, top-1 and top-5, every sample exactly once.

    Parameters
    ----------
    run
        Run folder, or a run name for its newest folder.
    checkpoint
        Checkpoint: best, last, or a file name such as step-00000055.pt.
    split
        Split to evaluate on.
    device
        Device: auto, cpu, cuda or cuda:1.
    threads
        CPU threads.
    runs_dir
        Folder of all runs, in which run names are looked up.
    as_json
        Print one JSON object.
    """
    from paceline.engine.evaluate import score_checkpoint

    folder = find_run(run, runs_dir)
    config = dataclasses.replace(load_config(folder.config), device=device, threads=threads)
    score = score_checkpoint(config, folder, checkpoint=checkpoint, split=split, warn=_warn)
    print(json.dumps(score.as_dict()) if as_json else _sentence(score, split))
    return ExitCode.FINISHED


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)


def _sentence(score: Score, split: str) -> str:
    return (
        f"{split}: loss {score.loss:.4f}, top-1 {percent(score.top1)}, top-5 {percent(score.top5)}, "
        f"over {plural(score.samples, 'sample')}"
    )
