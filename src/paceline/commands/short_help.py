"""`paceline train --help`: the flags that everybody needs, on one screen; --help-all has the others."""

import textwrap
from collections.abc import Sequence

from cyclopts import App, Argument

from paceline.core.errors import ExitCode
from paceline.core.units import terminal_columns

FLAGS = (
    "--data", "--model", "--epochs", "--global-batch", "--lr", "--precision", "--nproc", "--name", "--resume",
    "--recipe",
)  # fmt: skip
ALL = "--help-all"
INDENT = 4
WIDEST = 100
EXAMPLES = (
    "paceline train --model resnet20 --data digits --epochs 5",
    "paceline train --nproc 2",
    "paceline train --model my.py:build --data my.py:data --lr 0.05",
    "paceline train --resume runs/digits-resnet20",
)


def wants_short_help(args: Sequence[str]) -> bool:
    """Tell whether somebody asks how to train."""
    ours = args[: args.index("--")] if "--" in args else args
    return ours[:1] == ["train"] and any(word in {"--help", "-h"} for word in ours)


def print_short_help(app: App) -> int:
    """Print the usual flags."""
    print(short_help(app, columns=min(terminal_columns(), WIDEST)))
    return ExitCode.FINISHED


def short_help(app: App, *, columns: int) -> str:
    """Return the usual flags with their help, and where the others are."""
    arguments = app["train"].assemble_argument_collection(parse_docstring=True)
    lines = ["Usage: paceline train [FLAGS]", "", "Train a model, or resume a run.", ""]
    for flag in FLAGS:
        (argument,) = (one for one in arguments if flag in one.names)
        lines += [f"  {_name(flag, argument)}", *_wrapped(str(argument.parameter.help), columns)]
    lines += ["", "Examples:", *(f"  {example}" for example in EXAMPLES), ""]
    others = sum(argument.show for argument in arguments) - len(FLAGS)
    text = f"{others} more flags: paceline train {ALL}. Ctrl-C finishes the step, saves, and prints how to resume."
    return "\n".join([*lines, *textwrap.wrap(text, columns)])


def _name(flag: str, argument: Argument) -> str:
    """Return the flag, its short form, and its default."""
    short = [name for name in argument.names if len(name) == 2]
    default = argument.field_info.default
    is_plain = isinstance(default, str | int | float) and not isinstance(default, bool)
    return ", ".join([flag, *short]) + (f"  (default: {default})" if is_plain else "")


def _wrapped(text: str, columns: int) -> list[str]:
    first = " ".join(text.split())
    return textwrap.wrap(first, columns, initial_indent=" " * INDENT, subsequent_indent=" " * INDENT)
