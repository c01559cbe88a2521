"""Your own code given as an object, as in Config(model=Net): a name under which this process finds it again."""

import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

from paceline.core.errors import ConfigError, PacelineError

CALLED = "__main__.py"
"""Stands for the notebook or script that called Paceline, whose code other processes cannot import."""
INSTALLED = frozenset({"site-packages", "dist-packages"})
OBJECTS: dict[str, Any] = {}
SETTINGS_OF_CODE = ("data", "collate", "task", "model", "loop", "optimizer", "schedule")
"""Settings that may be code; others that take names are lists."""


def name_objects(config: Any) -> None:
    """Replace objects among the settings by names."""
    for setting in SETTINGS_OF_CODE:
        value = getattr(config, setting)
        if value is not None and not isinstance(value, str):
            object.__setattr__(config, setting, _named(setting, value))


def is_called_code(name: str) -> bool:
    """Tell whether a name stands for code of the notebook or script that called Paceline."""
    return name.partition(":")[0] == CALLED


def find_object(name: str, error: type[PacelineError]) -> Any:
    """Return the object of a name, or None if a file has it; code of another notebook or script is refused."""
    if name not in OBJECTS and is_called_code(name):
        own = name.partition(":")[2]
        hint = f"define it here too and give it, as in Config(model={own}); or keep it in a file: my.py:{own}"
        raise error(f"{own} was defined in a notebook or script, which this process has not run", hint=hint)
    return OBJECTS.get(name)


def refuse_called_code(names: Iterable[str]) -> None:
    """Refuse code of a notebook or script where other processes must import it."""
    for name in names:
        if is_called_code(name):
            own = name.partition(":")[2]
            raise ConfigError(
                f"{own} is defined in this notebook or script, but each rank is a process of its own",
                hint=f'write it to a file, in a notebook with %%writefile my.py, and give "my.py:{own}"',
            )


def _named(setting: str, value: Any) -> str:
    if hasattr(value, "parameters") and not isinstance(value, type):
        kind = type(value).__name__
        hint = f"give the class or a function, as in {setting}={kind}: every start and rank builds its own"
        raise ConfigError(f"{setting} is an object of type {kind}", hint=hint)
    is_data = setting == "data" and hasattr(value, "__getitem__") and not isinstance(value, type)
    if is_data:
        name, found = f"{CALLED}:{type(value).__name__}", partial(_returned, value)
    elif callable(value):
        name, found = _place(value), value
    else:
        raise ConfigError(
            f"{setting} is an object of type {type(value).__name__}",
            hint=f'give a name such as "my.py:build", a class or a function: {setting}=build',
        )
    OBJECTS[name] = found
    return name


def _returned(value: Any) -> Any:
    return value


def _place(value: Any) -> str:
    """Return the file and the name of a class or function, if other processes can import it from there."""
    own = getattr(value, "__qualname__", type(value).__name__).rpartition(".")[2].strip("<>")
    module = getattr(value, "__module__", "__main__")
    file = getattr(sys.modules.get(module), "__file__", None)
    is_whole = isinstance(value, type | FunctionType) and value.__qualname__ == own
    if module == "__main__" or file is None or not is_whole:
        return f"{CALLED}:{own}"
    if INSTALLED.intersection(Path(file).parts) and "." in module:
        return f"{module}:{own}"
    path = Path(file).resolve()
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}:{own}"
