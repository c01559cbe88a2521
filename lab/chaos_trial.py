"""One trial of the campaign of random faults: what happened, and what is wrong at its end."""

import subprocess
from dataclasses import dataclass, field

from lab.runs import PACELINE
from paceline.records.folder import RunFolder
from paceline.records.reader import read_metrics


@dataclass(kw_only=True)
class Trial:
    """What happened in one trial."""

    name: str
    did: str | None = None
    after: float = 0.0
    """Seconds from the start to the fault."""
    starts: int = 1
    recovery: float | None = None
    """Seconds until ranks trained, from the fault, or from the `--resume` that followed it."""
    late: float | None = None
    """Seconds by which the run exceeded its limit."""
    problems: list[str] = field(default_factory=list)


def differences(undisturbed: RunFolder, run: RunFolder) -> list[str]:
    """Return what is wrong with a run that has finished, compared with an undisturbed one."""
    problems = []
    for command in (["compare", undisturbed.path, run.path], ["check", run.path]):
        answer = subprocess.run([*PACELINE, *map(str, command)], capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            problems.append(f"paceline {command[0]}: {(answer.stdout + answer.stderr)[-400:]}")
    if counted(run) != counted(undisturbed):
        problems.append("the records of epochs differ: samples, losses or their number")
    problems += [f"partial file {path.name}" for path in run.path.rglob("*.partial")]
    return problems


def counted(run: RunFolder) -> list[tuple]:
    """Return what the records say of every epoch and evaluation: which, how many samples, and the exact losses."""
    keys = ("kind", "split", "step", "epoch", "samples", "train_samples", "loss", "train_loss", "valid_loss")
    records = (record for record in read_metrics(run) if record["kind"] in {"epoch", "eval"})
    return [tuple(record.get(key) for key in keys) for record in records]


def line_of(trial: Trial) -> str:
    """Return the row of the table of a trial."""
    recovery = "–" if trial.recovery is None else f"{trial.recovery:.1f} s"
    late = "" if trial.late is None else f", {trial.late:.0f} s late"
    outcome = "; ".join(trial.problems) if trial.problems else f"same bits{late}"
    cells = (trial.name, trial.did or "ended first", f"{trial.after:.1f} s", str(trial.starts), recovery, outcome)
    return "| " + " | ".join(cell.replace("\n", " ") for cell in cells) + " |"
