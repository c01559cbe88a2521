"""`paceline` alone: the last runs, and what to type next."""

from importlib.metadata import version
from pathlib import Path

from paceline.core.errors import ExitCode
from paceline.core.units import fitted_table, terminal_columns
from paceline.records.entries import State
from paceline.records.reader import RunSummary
from paceline.records.run_index import list_runs
from paceline.records.run_text import HEAD, run_row

MOST_RUNS = 3
FIRST = (
    ("paceline train --model mlp --epochs 2", "train a small model on data that ships with Paceline"),
    ("paceline train --model mlp --nproc 2", "the same on two ranks"),
    ("paceline train --model my.py:build --data my.py:data", "your own model and data"),
    ("paceline audit -- python train.py", "find the mistakes in a training script of yours"),
)


def print_welcome(runs_dir: Path) -> int:
    """Print where the user is."""
    print(welcome_text(runs_dir, columns=terminal_columns()))
    return ExitCode.FINISHED


def welcome_text(runs_dir: Path, *, columns: int) -> str:
    """Return where the user is: the last runs of this folder, and the next commands."""
    runs = list_runs(runs_dir)
    lines = [f"Paceline {version('paceline')}", ""]
    if runs:
        shown = [run_row(run) for run in runs[-MOST_RUNS:]]
        of = f" of {len(runs)}" if len(runs) > MOST_RUNS else ""
        lines += [f"the last runs in {runs_dir}{f' ({len(shown)}{of})' if of else ''}:", ""]
        lines += [fitted_table(HEAD, shown, columns=columns), "", "next:", *_commands(next_commands(runs), columns)]
    else:
        lines += [f"no runs in {runs_dir} yet; to start with:", *_commands(FIRST, columns)]
    return "\n".join([*lines, "", "all commands: paceline --help"])


def next_commands(runs: list[RunSummary]) -> list[tuple[str, str]]:
    """Return what fits the state of the newest run."""
    last = runs[-1]
    name = last.folder.path if len(runs) > 1 else last.folder.path.parent.name
    if last.state in {State.TRAINING, State.READY}:
        return [(f"tail -f {last.folder.log}", "follow it"), (f"paceline explain {name}", "where its time goes")]
    if last.state != State.FINISHED:
        why = "continue where it stopped" if last.state == State.STOPPED else "continue from its last checkpoint"
        resume = [(f"paceline train --resume {last.folder.path}", why)] if last.folder.saved_steps() else []
        return [*resume, (f"paceline runs show {name}", "what happened")]
    found = [(f"paceline report {name}", "its curves and times as one HTML file")]
    found.append((f"paceline explain {name}", "where its time went"))
    if len(runs) > 1:
        found.append((f"paceline runs compare {runs[-2].folder.path} {name}", "what differs from the run before"))
    if last.folder.saved_steps():  # an observed run has no checkpoints of ours
        longer = f"paceline train --resume {last.folder.path} --epochs {2 * last.config.epochs}"
        found.append((longer, "train it longer"))
    return found


def _commands(commands: tuple[tuple[str, str], ...] | list[tuple[str, str]], columns: int) -> list[str]:
    width = max(len(command) for command, _ in commands)
    if max(width + len(why) for _, why in commands) + 4 <= columns:
        return [f"  {command:<{width}}  {why}" for command, why in commands]
    return [line for command, why in commands for line in (f"  {command}", f"      {why}")]
