"""Text to config to exit code. The only module that catches our errors and prints them."""

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from cyclopts import App, Argument, CycloptsError

from paceline.core.config import SettingError
from paceline.core.errors import ExitCode, PacelineError
from paceline.core.load import Layers
from paceline.launch.local import become_rank
from paceline.records.folder import find_run
from paceline.records.reports import VARIABLE, report_failure

COMMANDS = {
    "train": ("paceline.commands.train:train_command", "Train a model, or go on with a run that was stopped."),
    "eval": ("paceline.commands.eval:eval_command", "Evaluate a checkpoint: loss, top-1, top-5, every image once."),
    "runs": ("paceline.commands.runs:app", "List the runs there are; show one; compare two."),
}


def main() -> None:
    """Run the command line and leave with its exit code."""
    if VARIABLE in os.environ and "RANK" in os.environ:
        become_rank(os.environ)
    sys.exit(run(sys.argv[1:], os.environ))


def run(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run one command and return the exit code; every known problem becomes a message on stderr."""
    layers = Layers(environ, _files)
    try:
        return build_app(layers)(list(words), exit_on_error=False, print_error=False, result_action="return_value") or 0
    except (CycloptsError, SettingError) as problem:
        return _report(layers.explain(problem), environ)
    except PacelineError as problem:
        return _report(problem, environ)
    except KeyboardInterrupt:
        return _say("interrupted", ExitCode.INTERRUPTED)
    except BrokenPipeError:  # the reader of our output has gone, as in `paceline runs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FINISHED
    except Exception as problem:
        if report_failure(problem, environ):  # the launcher shows it, once, with the others in order
            return ExitCode.FAILED
        raise


def build_app(layers: Layers) -> App:
    """Return the command line; a command's module is imported when the command is used."""
    app = App(
        name="paceline",
        help="Train one PyTorch model the same way on one device, one node or many, and know where the time goes.",
        version=version("paceline"),
        config=layers,
    )
    for name, (place, sentence) in COMMANDS.items():
        app.command(place, name=name, help=sentence)
    return app


def _files(arguments: Mapping[str, Argument]) -> list[Path]:
    """Return the files that settings come from: --config, and the run that --resume goes on with."""
    files = [Path(token.value) for token in _tokens(arguments, "config")]
    runs_dir = next((Path(token.value) for token in _tokens(arguments, "runs_dir")), Path("runs"))
    return files + [find_run(Path(token.value), runs_dir).config for token in _tokens(arguments, "resume")]


def _tokens(arguments: Mapping[str, Argument], name: str) -> list:
    return list(arguments[name].tokens) if name in arguments else []


def _report(problem: PacelineError, environ: Mapping[str, str]) -> int:
    if report_failure(problem, environ):
        return problem.exit_code
    hint = "" if problem.hint is None else f"\n  hint: {problem.hint}"
    return _say(f"{problem.message}{hint}", problem.exit_code)


def _say(text: str, code: ExitCode) -> int:
    print(f"paceline: {text}", file=sys.stderr)  # noqa: T201 - this is where messages leave
    return code
