"""Text to config to exit code. The only module that catches our errors and prints them."""

import atexit
import errno
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import NoReturn

from cyclopts import App, CycloptsError, Group

from paceline.commands.words import settings_files
from paceline.core.errors import ExitCode, PacelineError, SettingError
from paceline.core.load import Layers
from paceline.core.messages import say
from paceline.core.stopping import is_still_waiting
from paceline.launching.local import become_rank
from paceline.records.reports import VARIABLE, report_failure

COMMANDS = {
    "train": ("paceline.commands.train:train_command", "Train a model, or go on with a run that was stopped."),
    "eval": ("paceline.commands.eval:eval_command", "Evaluate a checkpoint: loss, top-1, top-5, every image once."),
    "compare": ("paceline.commands.compare:compare_command", "Compare two runs or files of weights, tensor by tensor."),
    "verify": ("paceline.commands.verify:verify_command", "Show that ranks, kills and resumes change no result."),
    "profile": ("paceline.commands.profile:profile_command", "Measure steps, buckets and link, without training."),
    "bench": ("paceline.commands.bench:bench_command", "Compare modes and world sizes at the same work, fairly."),
    "report": ("paceline.commands.report:report_command", "Draw runs or a benchmark as one HTML file."),
    "explain": ("paceline.commands.explain:explain_command", "Say where the time of a run went and what to try first."),
    "submit": ("paceline.commands.submit:submit_command", "Write the Slurm job that trains, submit it, follow it."),
    "data": ("paceline.commands.data:app", "List the data sets there are; fetch, pack or verify one."),
    "models": ("paceline.commands.models:models_command", "List the models there are, with parameters and arithmetic."),
    "recipes": ("paceline.commands.recipes:recipes_command", "List the recipes for paceline train --recipe NAME."),
    "predict": ("paceline.commands.predict:predict_command", "Say what other ranks, links and batches would do."),
    "doctor": (
        "paceline.commands.doctor:doctor_command",
        "Look at devices, folder, clocks and links; say what is wrong.",
    ),
    "runs": ("paceline.commands.runs:app", "List the runs there are; show one; compare two."),
}

LOCAL_RANK = ("--local-rank", "--local_rank")


def main() -> None:
    """Run the command line and leave with its exit code."""
    if VARIABLE in os.environ and "RANK" in os.environ:
        become_rank(os.environ)
    leave(run(sys.argv[1:], os.environ))


def leave(code: int) -> NoReturn:
    """End the process with this exit code.

    While other ranks may still be connected, C++ destructors are skipped: about one rank in a hundred aborts in them.
    """
    distributed = sys.modules.get("torch.distributed")
    if is_still_waiting() or (distributed is not None and distributed.is_initialized()):
        atexit._run_exitfuncs()  # noqa: SLF001 - there is no public name for it
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def run(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run one command and return the exit code; every known problem becomes a message on stderr."""
    layers = Layers(environ, settings_files)
    words = command_first(words)
    try:
        app = build_app(layers, used=words[:1])
        return app(list(words), exit_on_error=False, print_error=False, result_action="return_value") or 0
    except BrokenPipeError:  # the reader of our output has gone, as in `paceline runs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FINISHED
    except Exception as problem:  # noqa: BLE001 - raised again unless someone explains it
        return _report(_explained(problem, layers), environ)


def command_first(words: Sequence[str]) -> list[str]:
    """Return the words with --local-rank after the command; torch.distributed.launch puts it before."""
    length = 0
    if words[:1] and words[0].partition("=")[0] in LOCAL_RANK:
        length = 1 if "=" in words[0] else 2
    return [*words[length : length + 1], *words[:length], *words[length + 1 :]]


def build_app(layers: Layers, used: Sequence[str] = ()) -> App:
    """Return the command line; a command's module is imported when it is used, and then says itself what it does."""
    app = App(
        name="paceline",
        help="Train one PyTorch model the same way on one device, one node or many, and know where the time goes.",
        version=version("paceline"),
        config=layers,
        suppress_keyboard_interrupt=False,  # our own main says it
    )
    for name, (place, sentence) in COMMANDS.items():
        app.command(place, name=name, help=None if name in used else sentence)
    completion = "Install completion of commands and flags for bash, zsh or fish."
    app.register_install_completion_command(help=completion, group=Group("Shell", sort_key=1))
    return app


def _explained(problem: Exception, layers: Layers) -> Exception:
    """Return what the user can do something about as one of our errors, and everything else as it is."""
    match problem:
        case SettingError():
            return layers.explain(problem)
        case CycloptsError():
            error = layers.explain(problem)
            error.hint = error.hint or "paceline --help, or paceline COMMAND --help, lists what there is"
            return error
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return PacelineError(f"the disk is full: {problem}")
        case _:
            return problem


def _report(problem: Exception, environ: Mapping[str, str]) -> int:
    """Tell the launcher, which shows the failures of all ranks in order, or else the user."""
    code = problem.exit_code if isinstance(problem, PacelineError) else ExitCode.FAILED
    if report_failure(problem, environ):
        return code
    if not isinstance(problem, PacelineError):
        raise problem
    hint = "" if problem.hint is None else f"\n  hint: {problem.hint}"
    say(f"{problem.message}{hint}")
    return code
