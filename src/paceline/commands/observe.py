"""`paceline observe`: run any training command, and record where its time goes as a run folder."""

import os
import shutil
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from paceline.commands.defaults import DEFAULT_RUNS
from paceline.core.messages import say
from paceline.core.units import plural
from paceline.observe.attachment import Attachment, check_command, run_attached
from paceline.observe.journals import read_journals
from paceline.observe.observed_run import finish_observed, start_observed


def observe_command(
    *command: Annotated[str, Parameter(allow_leading_hyphen=True)],
    run: str | None = None,
    runs_dir: Path = DEFAULT_RUNS,
) -> int:
    """Run a training command of any origin, unedited, and record where its time goes.

    Paceline attaches to every Python process below the command and times data loading, forward and backward pass,
    gradient synchronisation, update, evaluation and checkpoints of each rank. The result is a run folder for
    paceline explain, report and runs. Output, signals and the exit code are those of the command.

    Examples:

      paceline observe -- torchrun --nproc-per-node 2 train.py --epochs 1

      paceline observe --run baseline -- python train.py

    Parameters
    ----------
    command
        The command, after --.
    run
        Name of the run; each start gets a numbered folder under it. Default: the name of the script.
    runs_dir
        Folder of all runs.
    """
    check_command(command)
    folder, config = start_observed(command, runs_dir, run)
    journals = folder.journals.absolute()
    journals.mkdir()
    code = run_attached(command, Attachment(journals=journals).environment(os.environ))
    observed = finish_observed(folder, config, read_journals(journals), code)
    if observed.steps:
        steps = f"{plural(observed.steps, 'step')} on {plural(observed.num_ranks, 'rank')}"
        say(f"observed {steps}; where the time went: paceline explain {folder.path}")
    else:
        say(f"no training step was seen, so {folder.path} has no times\n  hint: {_reason(journals)}")
    shutil.rmtree(journals, ignore_errors=True)
    return code


def _reason(journals: Path) -> str:
    """Return why there are no steps."""
    if any(journals.iterdir()):
        return "the command ended before ten steps of an optimizer of torch.optim"
    return "no Python process of the command imported torch and trained (python -I and -E cannot be observed)"
