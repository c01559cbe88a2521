"""Settings records in Python: a repr of what differs from the defaults, and an error that names a mistyped setting."""

import dataclasses
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from paceline.core.errors import ConfigError, suggestion

T = TypeVar("T")


def with_short_repr(record: type[T]) -> type[T]:
    """Give a dataclass a short repr, so that `help(paceline.train)` can be read, and hints for unknown settings."""
    setattr(record, "__repr__", _short_repr)  # noqa: B010 - a type checker would refuse the assignment
    setattr(record, "__init__", _hinting(record))  # noqa: B010
    return record


def _short_repr(self: Any) -> str:
    """Return the settings that are not the default."""
    own = [field for field in dataclasses.fields(self) if getattr(self, field.name) != field.default]
    return f"{type(self).__name__}({', '.join(f'{field.name}={getattr(self, field.name)!r}' for field in own)})"


def _hinting(record: type) -> Callable[..., None]:
    build = record.__init__
    known = [field.name for field in dataclasses.fields(record)]  # pyright: ignore[reportArgumentType]

    @wraps(build)
    def init(self: Any, *args: Any, **settings: Any) -> None:
        for name in settings:
            if name not in known:
                near = suggestion(name, known).split(" (known")[0]
                hint = near if near.startswith("did you mean") else f"list them with help(paceline.{record.__name__})"
                raise ConfigError(f"{name} is not a setting", hint=hint)
        build(self, *args, **settings)

    return init
