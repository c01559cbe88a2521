"""The user's own code: turns "my.py:build" or "package.module:build" into the function or class it names."""

import importlib.util
import inspect
import re
import sys
import sysconfig
import traceback
import zlib
from collections.abc import Callable, Iterable, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

from paceline.core.errors import PacelineError, suggestion
from paceline.core.live_code import INSTALLED, find_object, is_called_code

NOT_OWN = frozenset({"paceline", "__main__", "__mp_main__"})
"""Modules that are not part of a model: ours, and the calling script, which torch gives a second name."""
MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+:\w*")
"""A name in a module of a package; "timm:resnet18" has no dot, and is a name in a list."""


def is_plugin(name: str) -> bool:
    """Tell whether `name` points into a Python file or module rather than into a list of known names."""
    path, separator, _ = name.partition(":")
    return path.endswith(".py") or (bool(separator) and "/" in path) or _is_module(name)


def _is_module(name: str) -> bool:
    return not name.partition(":")[0].endswith(".py") and MODULE.fullmatch(name) is not None


def plugin_path(name: str) -> Path:
    """Return the path of the code as the user typed it; of a module, where it is in the working directory."""
    typed = name.partition(":")[0]
    return Path(*typed.split(".")).with_suffix(".py") if _is_module(name) else Path(typed).expanduser()


def load_plugin(name: str, error: type[PacelineError], *, kind: Any = Callable) -> Any:
    """Import the code of "my.py:build" and return its `build`, of this kind; problems are raised as `error`."""
    if (given := find_object(name, error)) is not None:
        return given
    file, _, attribute = name.partition(":")
    if not attribute:
        raise error(f"{name} does not name a function", hint=f"write {file}:build")
    module = _import_module(file, error) if _is_module(name) else _import_file(Path(file).expanduser(), error)
    found = getattr(module, attribute, None)
    if found is None or (kind is Callable and not callable(found)):
        callables = [
            key
            for key, value in vars(module).items()
            if getattr(value, "__module__", "") == module.__name__ or (_is_module(name) and isinstance(value, type))
        ]
        raise error(f"{file} has no function or class {attribute}", hint=suggestion(attribute, callables))
    return found


def accepted_arguments(function: Callable[..., Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    """Return the offered arguments that a function accepts by name."""
    parameters = inspect.signature(function).parameters.values()
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    accepted = {parameter.name for parameter in parameters}
    return {key: value for key, value in offered.items() if takes_all or key in accepted}


def call_plugin(name: str, function: Callable[..., Any], offered: Mapping[str, Any], error: type[PacelineError]) -> Any:
    """Call the user's function with the offered arguments that it accepts."""
    arguments = accepted_arguments(function, offered)
    try:
        return function(**arguments)
    except PacelineError:
        raise
    except Exception as cause:
        raise error(
            f"{name} raised {type(cause).__name__}: {cause}",
            hint=f"{code_place(cause, function)}; it was called with {arguments}{_not_taken(offered, arguments)}",
        ) from cause


def _not_taken(offered: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    """Return the names of the arguments that the function could also take."""
    names = [name for name in offered if name not in arguments]
    return f"; it may also take {', '.join(names)}" if names else ""


def code_files(names: Iterable[str]) -> dict[str, Path]:
    """Return the user's code behind these names, once they are loaded: their files and the modules next to them.

    Each file has the path that the user typed, and a module a path relative to it, so that a later start finds it.
    """
    found: dict[str, Path] = {}
    for name in filter(is_plugin, names):
        if is_called_code(name):
            continue
        if _is_module(name):
            found |= _module_files(name.partition(":")[0])
            continue
        typed = Path(name.partition(":")[0])
        folder = typed.expanduser().resolve().parent
        for path in [typed.expanduser().resolve(), *_modules_below(folder)]:
            found[str(typed.parent / path.relative_to(folder))] = path
    return dict(sorted(found.items()))


def _module_files(module_name: str) -> dict[str, Path]:
    """Return the loaded files of a module's package, relative to the working directory; none if it is installed."""
    package = sys.modules.get(module_name.partition(".")[0])
    here = Path.cwd()
    files = {path for folder in getattr(package, "__path__", ()) for path in _modules_below(Path(folder).resolve())}
    return {str(path.relative_to(here) if path.is_relative_to(here) else path): path for path in files}


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


def _package_of(path: Path) -> str:
    """Return the package that a file lies in, with a dot, so that its relative imports work; "" outside of packages.

    Its root is imported from its own file, without a change to `sys.path`, where every folder beside it would count as
    a module. A module of the same name elsewhere would answer for it, so then the file is imported alone.
    """
    folder, names = path.resolve().parent, []
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    if not names:
        return ""
    init = folder / names[0] / "__init__.py"
    if names[0] not in sys.modules and importlib.util.find_spec(names[0]) is None:
        _execute(names[0], init)
    found = importlib.util.find_spec(names[0])
    is_ours = found is not None and found.origin is not None and Path(found.origin).resolve() == init
    return ".".join(names) + "." if is_ours else ""


def _import_module(name: str, error: type[PacelineError]) -> Any:
    """Import a module: an installed one, or else one of a package in the working directory."""
    root = name.partition(".")[0]
    try:
        if root not in sys.modules and importlib.util.find_spec(root) is None:
            sys.path.append(str(Path.cwd()))  # the last place, which hides no other module
            importlib.invalidate_caches()
        return importlib.import_module(name)
    except Exception as cause:
        if (
            isinstance(cause, ModuleNotFoundError)
            and cause.name is not None
            and f"{name}.".startswith(f"{cause.name}.")
        ):
            hint = f"looked in {Path.cwd()} and in the packages of {sys.prefix}; a file is written my.py:build"
            raise error(f"there is no module {name}", hint=hint) from cause
        raise error(f"{name} cannot be imported: {type(cause).__name__}: {cause}", hint=code_place(cause)) from cause


def _import_file(path: Path, error: type[PacelineError]) -> Any:
    """Import a file under a unique name, so that worker processes can unpickle its classes."""
    if not path.is_file():
        raise error(f"{path} does not exist", hint=f"looked for {path.resolve()}")
    place = zlib.crc32(str(path.resolve()).encode())  # another folder may have a file of the same name
    try:
        return _execute(f"{_package_of(path)}paceline_plugin_{path.stem}_{place:08x}", path)
    except Exception as cause:
        raise error(f"{path} cannot be imported: {type(cause).__name__}: {cause}", hint=code_place(cause)) from cause


def _execute(module_name: str, path: Path) -> Any:
    """Run a file as the module of this name; `__init__.py` is a package."""
    spec = importlib.util.spec_from_file_location(
        module_name,
        path,
        loader=_Source(module_name, str(path)),
        submodule_search_locations=[str(path.parent)] if path.name == "__init__.py" else None,
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception:
        del sys.modules[module_name]
        raise
    return module


def code_place(cause: BaseException, function: Callable[..., Any] | None = None) -> str:
    """Return the file and line where the user's code failed: the last line outside of installed packages.

    A call that failed before the user's code ran is placed at the function that was called.
    """
    trace = cause.__traceback__
    if isinstance(cause, SyntaxError):
        return f"{cause.filename}, line {cause.lineno}"
    if trace is None:
        return "no traceback"
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(trace)]
    own = [place for place in frames if is_own_file(place[0])]
    code = getattr(function, "__code__", None)
    if not own and isinstance(code, CodeType):
        return f"{code.co_filename}, line {code.co_firstlineno}"
    file, line = (own or frames)[-1]
    return f"{file}, line {line}"


def is_own_file(file: str) -> bool:
    """Tell whether a file is neither installed, nor of Python, nor ours."""
    path = Path(file).resolve()
    foreign = (Path(sysconfig.get_path("stdlib")).resolve(), Path(__file__).resolve().parents[1])
    return not (INSTALLED.intersection(path.parts) or file.startswith("<") or any(map(path.is_relative_to, foreign)))
