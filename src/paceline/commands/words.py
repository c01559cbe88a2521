"""Reading the words of a command without running it, and finding the files that its settings come from."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cyclopts import App, Argument, CycloptsError

from paceline.core.errors import SettingError
from paceline.core.load import Layers
from paceline.core.recipes import find_recipe
from paceline.records.folder import find_run


def settings_files(arguments: Mapping[str, Argument]) -> list[Path]:
    """Return the files that settings come from: --config, --recipe, and the run that --resume goes on with."""
    files = [Path(token.value) for token in _tokens(arguments, "config")]
    files += [find_recipe(token.value).path for token in _tokens(arguments, "recipe")]
    runs_dir = next((Path(token.value) for token in _tokens(arguments, "runs_dir")), Path("runs"))
    return files + [find_run(Path(token.value), runs_dir).config for token in _tokens(arguments, "resume")]


def read_words(
    command: Callable[..., Any], name: str, words: Sequence[str], environ: Mapping[str, str]
) -> inspect.BoundArguments:
    """Return the arguments that these words would give a command, or say what is wrong with them."""
    layers = Layers(environ, settings_files)
    app = App(name="paceline", config=layers)
    app.command(command, name=name)
    try:
        _, arguments, _ = app.parse_args([name, *words], exit_on_error=False, print_error=False)
    except (CycloptsError, SettingError) as problem:
        raise layers.explain(problem) from problem
    return arguments


def _tokens(arguments: Mapping[str, Argument], name: str) -> list:
    return list(arguments[name].tokens) if name in arguments else []
