"""Parse the arguments of a command without running it, and find the files with its settings."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cyclopts import App, Argument, CycloptsError

from paceline.commands.defaults import DEFAULT_RUNS
from paceline.core.errors import SettingError
from paceline.core.load import Layers
from paceline.core.recipes import find_recipe
from paceline.records.auto_resume import is_auto
from paceline.records.mirror import open_run


def settings_files(arguments: Mapping[str, Argument]) -> list[Path]:
    """Return the files with settings: --config, --recipe, and the config.toml of the run to --resume.

    With --resume auto the command itself has all settings, because it may be the first start.
    """
    files = [Path(token.value) for token in _tokens(arguments, "config")]
    files += [find_recipe(token.value).path for token in _tokens(arguments, "recipe")]
    runs_dir = next((Path(token.value) for token in _tokens(arguments, "runs_dir")), DEFAULT_RUNS)
    resumed = [token.value for token in _tokens(arguments, "resume") if not is_auto(token.value)]
    return files + [open_run(Path(name), runs_dir).config for name in resumed]


def parse_args_of(
    command: Callable[..., Any], name: str, args: Sequence[str], environ: Mapping[str, str]
) -> inspect.BoundArguments:
    """Return the arguments that a command would be called with; invalid ones raise ConfigError."""
    layers = Layers(environ, settings_files)
    app = App(name="paceline", config=layers)
    app.command(command, name=name)
    try:
        _, arguments, _ = app.parse_args([name, *args], exit_on_error=False, print_error=False)
    except (CycloptsError, SettingError) as problem:
        raise layers.explain(problem) from problem
    return arguments


def _tokens(arguments: Mapping[str, Argument], name: str) -> list:
    return list(arguments[name].tokens) if name in arguments else []
