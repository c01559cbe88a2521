"""Parts that installed packages offer by a short name: entry points for trackers, tasks, data sets and models."""

from typing import TYPE_CHECKING, Any, Literal

from paceline.core.errors import PacelineError
from paceline.core.plugin import is_plugin, load_plugin

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Kind = Literal["trackers", "tasks", "data", "models"]
"""A group of entry points is called paceline.KIND."""


def find_entry(kind: Kind, name: str) -> "EntryPoint | None":
    """Return the entry point of this name; None if no installed package has one."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - a tenth of a second that few need

    return next(iter(entry_points(group=f"paceline.{kind}", name=name)), None)


def entry_names(kind: Kind) -> list[str]:
    """Return the names that installed packages offer."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - see above

    return sorted({entry.name for entry in entry_points(group=f"paceline.{kind}")})


def is_own_part(kind: Kind, name: str) -> bool:
    """Tell whether a name is code in a file or module, such as my.py:build, or an entry point."""
    return is_plugin(name) or find_entry(kind, name) is not None


def load_part(kind: Kind, name: str, error: type[PacelineError]) -> Any:
    """Import the code of such a name; problems are raised as `error`."""
    entry = None if is_plugin(name) else find_entry(kind, name)
    if entry is None:
        return load_plugin(name, error)
    try:
        return entry.load()
    except Exception as cause:
        package = "a package" if entry.dist is None else entry.dist.name
        raise error(
            f"{name} ({entry.value} of {package}) cannot be imported: {type(cause).__name__}: {cause}",
            hint=f"install {package} again, or leave {name} out",
        ) from cause
