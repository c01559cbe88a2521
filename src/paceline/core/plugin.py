"""The user's own code: turns "my.py:build" into the function or class it names."""

import importlib.util
import inspect
import sys
import sysconfig
import zlib
from collections.abc import Callable, Iterable, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

from paceline.core.errors import PacelineError, suggestion

INSTALLED = frozenset({"site-packages", "dist-packages"})
"""Folders of installed packages, of any Python installation."""
NOT_OWN = frozenset({"paceline", "__main__", "__mp_main__"})
"""Modules that are not part of a model: ours, and the calling script, which torch gives a second name."""


def is_plugin(name: str) -> bool:
    """Tell whether `name` points into a Python file rather than into a list of known names."""
    path, separator, _ = name.partition(":")
    return path.endswith(".py") or (bool(separator) and "/" in path)


def load_plugin(name: str, error: type[PacelineError], *, kind: Any = Callable) -> Any:
    """Import the file of "my.py:build" and return its `build`, of this kind; problems are raised as `error`."""
    file, _, attribute = name.partition(":")
    if not attribute:
        raise error(f"{name} does not name a function", hint=f"write {file}:build")
    path = Path(file).expanduser()
    if not path.is_file():
        raise error(f"{file} does not exist", hint=f"looked for {path.resolve()}")
    module = _import_file(path, error)
    found = getattr(module, attribute, None)
    if found is None or (kind is Callable and not callable(found)):
        callables = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        raise error(f"{file} has no function or class {attribute}", hint=suggestion(attribute, callables))
    return found


def call_plugin(name: str, function: Callable[..., Any], offered: Mapping[str, Any], error: type[PacelineError]) -> Any:
    """Call the user's function with the offered arguments that it accepts."""
    parameters = inspect.signature(function).parameters.values()
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    accepted = {parameter.name for parameter in parameters}
    arguments = {key: value for key, value in offered.items() if takes_all or key in accepted}
    try:
        return function(**arguments)
    except PacelineError:
        raise
    except Exception as cause:
        raise error(
            f"{name} raised {type(cause).__name__}: {cause}",
            hint=f"{code_place(cause)}; it was called with {arguments}",
        ) from cause


def code_files(names: Iterable[str]) -> dict[str, Path]:
    """Return the user's code behind these names, once they are loaded: their files and the modules next to them.

    Each file has the path that the user typed, and a module a path relative to it, so that a later start finds it.
    """
    found: dict[str, Path] = {}
    for name in filter(is_plugin, names):
        typed = Path(name.partition(":")[0])
        folder = typed.expanduser().resolve().parent
        for path in [typed.expanduser().resolve(), *_modules_below(folder)]:
            found[str(typed.parent / path.relative_to(folder))] = path
    return dict(sorted(found.items()))


def _modules_below(folder: Path) -> list[Path]:
    """Return the files of the imported modules in a folder that are neither installed nor part of Paceline.

    The script that calls Paceline is left out: another script may evaluate or resume the run.
    """
    standard = Path(sysconfig.get_path("stdlib")).resolve()
    files = [
        Path(file).resolve()
        for name, module in list(sys.modules.items())
        if (file := getattr(module, "__file__", None)) and name.partition(".")[0] not in NOT_OWN
    ]
    own = [file for file in files if file.suffix == ".py" and file.is_file() and file.is_relative_to(folder)]
    return [file for file in own if not (file.is_relative_to(standard) or INSTALLED.intersection(file.parts))]


class _Source(SourceFileLoader):
    """Always compiles the source: Python takes bytecode for current if the size and the second of the edit match."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _import_file(path: Path, error: type[PacelineError]) -> Any:
    """Import a file under a unique name, so that worker processes can unpickle its classes."""
    place = zlib.crc32(str(path.resolve()).encode())  # another folder may have a file of the same name
    module_name = f"paceline_plugin_{path.stem}_{place:08x}"
    spec = importlib.util.spec_from_file_location(module_name, path, loader=_Source(module_name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as cause:
        del sys.modules[module_name]
        raise error(f"{path} cannot be imported: {type(cause).__name__}: {cause}", hint=code_place(cause)) from cause
    return module


def code_place(cause: BaseException) -> str:
    """Return the file and line where the user's code failed."""
    trace = cause.__traceback__
    if isinstance(cause, SyntaxError):
        return f"{cause.filename}, line {cause.lineno}"
    if trace is None:
        return "no traceback"
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno}"
