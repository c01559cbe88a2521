"""`paceline eval RUN`: evaluate a checkpoint on every sample exactly once."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from paceline.commands.defaults import DEFAULT_RUNS
from paceline.core.errors import ExitCode
from paceline.core.metrics import Scores
from paceline.core.score_text import score_value
from paceline.core.units import plural
from paceline.records.code import refuse_code_inside, refuse_own_loop
from paceline.records.mirror import open_run
from paceline.records.reader import read_config

NAMES = {"top1": "top-1", "top5": "top-5"}


def eval_command(
    run: Path,
    *,
    checkpoint: str = "best",
    split: Literal["train", "valid", "test"] = "test",
    device: str = "auto",
    threads: int | None = None,
    runs_dir: Path = DEFAULT_RUNS,
    trust: Annotated[bool, Parameter(negative="")] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Evaluate a checkpoint: the loss and every metric of its task, every sample exactly once.

    Parameters
    ----------
    run
        Run folder, or a run name for its newest folder.
    checkpoint
        Checkpoint: best, last, or a name such as step-00000055.
    split
        Split to evaluate on.
    device
        Device: auto, cpu, cuda or cuda:1.
    threads
        CPU threads.
    runs_dir
        Folder of all runs, in which run names are looked up.
    trust
        Run code that lies inside the run folder, as of a folder from elsewhere.
    as_json
        Print one JSON object.
    """
    from paceline.engine.evaluate import score_checkpoint

    folder = open_run(run, runs_dir)
    config = dataclasses.replace(read_config(folder), device=device, threads=threads)
    refuse_own_loop(folder, config)
    if not trust:
        refuse_code_inside(folder, config)
    score = score_checkpoint(config, folder, checkpoint=checkpoint, split=split, warn=_warn)
    facts = {"run": str(folder.path), "checkpoint": checkpoint, "split": split}
    print(json.dumps(facts | score.as_dict()) if as_json else _sentence(score, split))
    return ExitCode.FINISHED


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)


def _sentence(score: Scores, split: str) -> str:
    values = score.by_name.items()
    return (
        f"{split}: {', '.join(f'{NAMES.get(name, name)} {score_value(name, value)}' for name, value in values)}, "
        f"over {plural(score.samples, 'sample')}"
    )
