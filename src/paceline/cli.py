"""The command line: from arguments to an exit code. The only module that catches our errors and prints them."""

import atexit
import errno
import logging
import os
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from io import TextIOWrapper
from itertools import takewhile
from typing import NoReturn, TextIO

from cyclopts import App, CycloptsError, Group, MissingArgumentError, UnusedCliTokensError

from paceline.commands.defaults import DEFAULT_RUNS, SHORT_FORMS
from paceline.commands.settings_files import settings_files
from paceline.commands.short_help import ALL, print_short_help, wants_short_help
from paceline.commands.welcome import print_welcome
from paceline.core.errors import ExitCode, PacelineError, SettingError
from paceline.core.first_cause import VERBOSE_VARIABLE, explain_lost_worker, first_cause
from paceline.core.load import Layers
from paceline.core.messages import say
from paceline.core.stopping import is_still_waiting
from paceline.core.torch_names import explain_missing_name
from paceline.engine.deferred_dynamo import defer_dynamo
from paceline.launching.local import become_rank
from paceline.launching.outcomes import REPORTS_VARIABLE, SHOW_ALL, report_failure

COMMANDS = {
    "new": ("paceline.commands.new:new_command", "Start a project: model, data, task, settings, tests, Slurm job."),
    "train": ("paceline.commands.train:train_command", "Train a model, or resume a run."),
    "eval": ("paceline.commands.eval:eval_command", "Evaluate a checkpoint: loss and metrics."),
    "export": ("paceline.commands.export:export_command", "Export the weights of a run for other programs."),
    "infer": ("paceline.commands.infer:infer_command", "Predict classes, masks, numbers or text for files."),
    "sample": ("paceline.commands.sample:sample_command", "Print text of a language model."),
    "compare": ("paceline.commands.compare:compare_command", "Compare two runs or weight files, tensor by tensor."),
    "seal": ("paceline.commands.seal:seal_command", "Give a checkpoint folder a manifest with hashes."),
    "check": ("paceline.commands.check:integrity_command", "Check that checkpoints are as they were written."),
    "verify": (
        "paceline.commands.verify:verify_command",
        "Check that ranks, kills and resumes do not change the result.",
    ),
    "profile": (
        "paceline.commands.profile:profile_command",
        "Measure steps, gradient buckets and the link, without training.",
    ),
    "bench": ("paceline.commands.bench:bench_command", "Compare the speed of modes and world sizes on the same work."),
    "report": ("paceline.commands.report:report_command", "Write a report of runs or a benchmark as one HTML file."),
    "explain": (
        "paceline.commands.explain:explain_command",
        "Show where the time of a run went and what to try first.",
    ),
    "rendezvous": (
        "paceline.commands.rendezvous:rendezvous_command",
        "Serve the store at which nodes find each other, on a host that does not train.",
    ),
    "submit": ("paceline.commands.submit:submit_command", "Submit training as a job of Slurm, Kubernetes or Ray."),
    "data": ("paceline.commands.data:app", "List, fetch, pack and verify data sets."),
    "models": ("paceline.commands.models:models_command", "List the built-in models with their parameters and FLOPs."),
    "recipes": (
        "paceline.commands.recipes:recipes_command",
        "List the recipes for paceline train --recipe, or show one.",
    ),
    "predict": (
        "paceline.commands.predict:predict_command",
        "Predict step time and cost with other ranks, links and batches.",
    ),
    "doctor": (
        "paceline.commands.doctor:doctor_command",
        "Check devices, run folder, clocks and links.",
    ),
    "observe": (
        "paceline.commands.observe:observe_command",
        "Run any training command, unedited, and record where its time goes.",
    ),
    "audit": (
        "paceline.commands.audit:audit_command",
        "Run any training command for a few steps, and name its mistakes.",
    ),
    "runs": ("paceline.commands.runs:app", "List, show, compare and remove runs; print their metrics as CSV."),
}

FOREIGN = ("observe", "audit")
"""Commands whose arguments end with a command of the user."""
LOCAL_RANK = ("--local-rank", "--local_rank")


def main() -> None:
    """Run the command line and exit with its exit code."""
    if REPORTS_VARIABLE in os.environ:
        become_rank(os.environ)
    for stream in (sys.stdout, sys.stderr):
        show_any_text(stream)
    defer_dynamo()
    leave(run(sys.argv[1:], os.environ))


def show_any_text(stream: TextIO) -> None:
    """Let a stream that cannot encode a character, as of a terminal that is not UTF-8, show a ? in its place."""
    if isinstance(stream, TextIOWrapper) and stream.encoding.lower().replace("-", "") != "utf8":
        with suppress(OSError):  # the pipe of a rank, which its launcher reads as UTF-8
            stream.reconfigure(errors="replace")


def leave(code: int) -> NoReturn:
    """End the process with this exit code.

    While other ranks may still be connected, C++ destructors are skipped: about one rank in a hundred aborts in them.
    """
    signal.signal(signal.SIGINT, lambda *_: os._exit(ExitCode.INTERRUPTED))  # Ctrl-C now ends it without a traceback
    distributed = sys.modules.get("torch.distributed")
    if is_still_waiting() or (distributed is not None and distributed.is_initialized()):
        atexit._run_exitfuncs()  # noqa: SLF001 - has no public name
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def run(args: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run one command and return the exit code; every known problem becomes a message on stderr."""
    layers = Layers(environ, settings_files)
    args, verbose = short_forms(command_first(args), environ)
    try:
        if not args:
            return print_welcome(DEFAULT_RUNS)
        app = build_app(layers, used=args[:1])
        if wants_short_help(args):
            return print_short_help(app)
        end = num_own(args)
        args = ["--help" if arg == ALL else arg for arg in args[:end]] + args[end:]
        return app(args, exit_on_error=False, print_error=False, result_action="return_value") or 0
    except BrokenPipeError:  # the reader of our output has exited, as in `paceline runs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FINISHED
    except Exception as problem:  # noqa: BLE001 - raised again unless it has an explanation
        return _report(_explained(problem, layers), environ, verbose=verbose)


def command_first(args: Sequence[str]) -> list[str]:
    """Return the args with --local-rank after the command; torch.distributed.launch puts it before."""
    length = 0
    if args[:1] and args[0].partition("=")[0] in LOCAL_RANK:
        length = 1 if "=" in args[0] else 2
    return [*args[length : length + 1], *args[:length], *args[length + 1 :]]


def num_own(args: Sequence[str]) -> int:
    """Return how many args are ours: those before --, or before the first that is no flag of a command of the user."""
    if "--" in args:
        return args.index("--")
    if args and args[0] in FOREIGN:
        return 1 + len(list(takewhile(lambda arg: arg.startswith("-"), args[1:])))
    return len(args)


def short_forms(args: list[str], environ: Mapping[str, str]) -> tuple[list[str], bool]:
    """Return the args of training with --quiet and --verbose as the setting that they stand for.

    Second, whether --verbose asks for whole tracebacks, which it does for every command. A launcher gives it to its
    ranks in a variable.
    """
    end = num_own(args)
    verbose = "--verbose" in args[:end] or VERBOSE_VARIABLE in environ
    if verbose:
        os.environ[VERBOSE_VARIABLE] = "1"
    if args[:1] == ["train"]:
        return [SHORT_FORMS.get(arg, arg) for arg in args[:end]] + args[end:], verbose
    return [arg for arg in args[:end] if arg != "--verbose"] + args[end:], verbose


def build_app(layers: Layers, used: Sequence[str] = ()) -> App:
    """Return the command line; a command's module, with its help text, is imported when the command is used."""
    app = App(
        name="paceline",
        help="Train one PyTorch model the same way on one device, one node or many, and know where the time goes.",
        version=version("paceline"),
        config=layers,
        suppress_keyboard_interrupt=False,  # printed by our main
    )
    for name, (place, sentence) in COMMANDS.items():
        app.command(place, name=name, help=None if name in used else sentence)
    completion = "Install completion of commands and flags for bash, zsh or fish."
    app.register_install_completion_command(help=completion, group=Group("Shell", sort_key=1))
    return app


def _explained(problem: Exception, layers: Layers) -> Exception:
    """Return a problem that the user can fix as one of our errors, and any other unchanged."""
    match problem:
        case SettingError():
            return layers.explain(problem)
        case CycloptsError():
            error = layers.explain(problem)
            error.hint = error.hint or _help_hint(problem)
            return error
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return PacelineError(f"the disk is full: {problem}")
        case _:
            return explain_missing_name(problem) or explain_lost_worker(problem) or problem


def _help_hint(problem: CycloptsError) -> str:
    """Return what to type after invalid arguments: the likely flag, or the help of the command."""
    command = " ".join(problem.command_chain or [])
    unused = problem.unused_tokens[0] if isinstance(problem, UnusedCliTokensError) and problem.unused_tokens else None
    if unused is not None and command == "train" and not unused.startswith("-"):
        return f"settings are flags, as in --model {unused}; to list them: paceline train --help"
    missing = problem.argument if isinstance(problem, MissingArgumentError) else None
    if missing is not None and missing.name.strip("-").upper() == "RUN":
        return f"to list the runs: paceline runs; then: paceline {command} NAME"
    return f"to list its flags: paceline {command} --help" if command else "to list all commands: paceline --help"


def _report(problem: Exception, environ: Mapping[str, str], *, verbose: bool) -> int:
    """Report the error to the launcher, which shows the failures of all ranks in order, or else to the user."""
    code = problem.exit_code if isinstance(problem, PacelineError) else ExitCode.FAILED
    if report_failure(problem, environ):
        return code
    if isinstance(problem, PacelineError):
        hint = "" if problem.hint is None else f"\n  hint: {problem.hint}"
        say(f"{problem.message}{hint}", level=logging.ERROR)
        if verbose and problem.__cause__ is not None:
            traceback.print_exception(problem.__cause__)
        return code
    cause = None if verbose else first_cause(problem)
    if cause is None:
        raise problem
    notes = " ".join(getattr(problem, "__notes__", []))
    say(f"{cause.text}{f'{chr(10)}  {notes}' if notes else ''}\n  hint: {SHOW_ALL}", level=logging.ERROR)
    return code
