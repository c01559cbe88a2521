"""Text to config to exit code. The only module that catches our errors and prints them."""

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from cyclopts import App, Argument, CycloptsError

from paceline.core.config import SettingError
from paceline.core.errors import ExitCode, PacelineError
from paceline.core.load import Layers
from paceline.records.folder import find_run

COMMANDS = {
    "train": ("paceline.commands.train:train_command", "Train a model, or go on with a run that was stopped."),
    "eval": ("paceline.commands.eval:eval_command", "Evaluate a checkpoint: loss, top-1, top-5, every image once."),
    "runs": ("paceline.commands.runs:app", "List the runs there are; show one; compare two."),
}


def main() -> None:
    """Run the command line and leave with its exit code."""
    sys.exit(run(sys.argv[1:], os.environ))


def run(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run one command and return the exit code; every known problem becomes a message on stderr."""
    layers = Layers(environ, _files)
    try:
        app = build_app(layers, used=words[:1])
        return app(list(words), exit_on_error=False, print_error=False, result_action="return_value") or 0
    except CycloptsError as problem:
        error = layers.explain(problem)
        error.hint = error.hint or "paceline --help, or paceline COMMAND --help, lists what there is"
        return _report(error)
    except SettingError as problem:
        return _report(layers.explain(problem))
    except PacelineError as problem:
        return _report(problem)
    except KeyboardInterrupt:
        return _report_text("interrupted", ExitCode.INTERRUPTED)
    except OSError as problem:
        return _report_trouble(problem)


def build_app(layers: Layers, used: Sequence[str] = ()) -> App:
    """Return the command line; a command's module is imported when it is used, and then says itself what it does."""
    app = App(
        name="paceline",
        help="Train one PyTorch model the same way on one device, one node or many, and know where the time goes.",
        version=version("paceline"),
        config=layers,
    )
    for name, (place, sentence) in COMMANDS.items():
        app.command(place, name=name, help=None if name in used else sentence)
    return app


def _files(arguments: Mapping[str, Argument]) -> list[Path]:
    """Return the files that settings come from: --config, and the run that --resume goes on with."""
    files = [Path(token.value) for token in _tokens(arguments, "config")]
    runs_dir = next((Path(token.value) for token in _tokens(arguments, "runs_dir")), Path("runs"))
    return files + [find_run(Path(token.value), runs_dir).config for token in _tokens(arguments, "resume")]


def _tokens(arguments: Mapping[str, Argument], name: str) -> list:
    return list(arguments[name].tokens) if name in arguments else []


def _report(problem: PacelineError) -> int:
    hint = "" if problem.hint is None else f"\n  hint: {problem.hint}"
    return _report_text(f"{problem.message}{hint}", problem.exit_code)


def _report_trouble(problem: OSError) -> int:
    """Explain what the system refused, where the user can do something about it."""
    if isinstance(problem, BrokenPipeError):  # the reader of our output has gone, as in `paceline runs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FINISHED
    if problem.errno in {errno.ENOSPC, errno.EDQUOT}:
        return _report_text(f"the disk is full: {problem}", ExitCode.FAILED)
    raise problem


def _report_text(text: str, code: ExitCode) -> int:
    print(f"paceline: {text}", file=sys.stderr)  # noqa: T201 - this is where messages leave
    return code
