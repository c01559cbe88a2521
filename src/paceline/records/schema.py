"""The schema of the records in a run folder, checked in one place: what does not fit is no record."""

import dataclasses
import json
import math
import types
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict, Union, get_args, get_origin, get_type_hints

from paceline.records.old_keys import rename_old_keys


@dataclasses.dataclass(frozen=True, slots=True)
class Between:
    """The limits of a number."""

    least: float
    most: float


Count = Annotated[int, Between(0, 2**53)]
Pid = Annotated[int, Between(1, 2**31 - 1)]
Moment = Annotated[float, Between(0, 2**33)]
"""Seconds since 1970, within what a calendar can show."""


class RankState(TypedDict):
    """The state file of a rank."""

    state: Literal["READY", "TRAINING", "FINISHED", "STOPPED", "FAILED"]
    rank: Count
    host: str
    pid: Pid
    time: Moment
    pid_start: NotRequired[str | None]
    step: NotRequired[Count]
    doing: NotRequired[str]
    detail: NotRequired[str]


class Owner(TypedDict):
    """The process of the newest attempt to train a run."""

    token: str
    host: str
    pid: Pid
    pid_start: str | None
    time: Moment


class Environment(TypedDict):
    """The environment of one start of a run; it has other facts too."""

    time: Moment
    launches: NotRequired[list[str]]
    world_size: NotRequired[Count]
    train_samples: NotRequired[Count]
    rank_dependent: NotRequired[list[str]]
    packages: NotRequired[dict[str, str]]
    variables: NotRequired[dict[str, str]]
    command: NotRequired[list[str]]
    seconds: NotRequired[float]
    cpu_seconds: NotRequired[float]


class FileEntry(TypedDict):
    """A file in a manifest."""

    sha256: str
    bytes: Count


class TensorEntry(TypedDict):
    """A tensor in a manifest."""

    dtype: str
    shape: list[Count]
    hash: str
    split: NotRequired[bool]


class PartEntry(TypedDict):
    """The files and tensors of one part of a checkpoint."""

    files: list[str]
    tensors: dict[str, TensorEntry]


class Manifest(TypedDict):
    """The manifest of a checkpoint, or of a sealed folder, which has no parts and no state."""

    format: int | str
    files: dict[str, FileEntry]
    best_step: NotRequired[Count | None]
    parts: NotRequired[dict[str, PartEntry]]
    tensors: NotRequired[dict[str, dict[str, TensorEntry]]]
    state: NotRequired[dict[str, Any]]


class OldManifest(TypedDict):
    """The manifest of a checkpoint of format 1."""

    format: int
    sha256: str
    bytes: Count
    best_step: NotRequired[Count | None]


class StepLine(TypedDict):
    """An interval of training in metrics.jsonl; its task names the scores."""

    kind: Literal["step"]
    step: Count
    epoch: Count


class EpochLine(TypedDict):
    """An epoch in metrics.jsonl."""

    kind: Literal["epoch"]
    step: Annotated[int, Between(1, 2**53)]
    epoch: Annotated[int, Between(1, 2**53)]
    samples_per_s: float


class EvalLine(TypedDict):
    """An evaluation in metrics.jsonl."""

    kind: Literal["eval"]
    step: Count
    epoch: Count
    split: str


MetricLine = StepLine | EpochLine | EvalLine
Check = Callable[[Any], bool]
"""Tells whether a value fits."""
SCORE = frozenset({"loss", "samples"})
"""What every score has, besides the metrics of its task."""


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text; any text that is none, NaN or nested too deeply raises ValueError."""
    try:
        return json.loads(text)
    except RecursionError as cause:
        raise ValueError("nested too deeply") from cause


def parse_as(schema: Any, text: str | bytes) -> dict[str, Any]:
    """Return the record of a JSON text; raise ValueError if it does not fit the schema."""
    value = parse_json(text)
    if not isinstance(value, dict):
        raise ValueError(f"it is {type(value).__name__}, not an object")  # noqa: TRY004 - callers expect one error
    record = rename_old_keys(value)
    if not fits(record, schema):
        raise ValueError("a value is missing or of another type")
    return record


def parse_metric(text: str | bytes) -> dict[str, Any]:
    """Return a line of metrics.jsonl; raise ValueError if it is none."""
    record = parse_as(MetricLine, text)
    if not all(_is_flat(value) for value in record.values()) or not _has_whole_scores(record):
        raise ValueError("a score is missing or of another type")
    return record


def read_as(schema: Any, path: Path) -> dict[str, Any] | None:
    """Return the record of a JSON file; None if it is missing, torn or not one."""
    try:
        return parse_as(schema, path.read_bytes())
    except (OSError, ValueError):
        return None


def file_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file that may not exist; a FIFO or device is no file."""
    if path.is_file():
        with path.open("rb") as lines:
            yield from lines


def fits(value: Any, hint: Any) -> bool:
    """Tell whether a value read from JSON has the type of an annotation; a number must be finite."""
    return _check_of(hint)(value)


@cache
def _check_of(hint: Any) -> Check:
    """Return the check of an annotation, built once: a long run has a million records."""
    if hint is Any:
        return lambda _value: True
    inner = get_args(hint)
    if get_origin(hint) is Annotated:
        base, limits = _check_of(inner[0]), inner[1]
        return lambda value: base(value) and limits.least <= value <= limits.most
    if get_origin(hint) is Literal:
        return lambda value: any(type(value) is type(choice) and value == choice for choice in inner)
    if get_origin(hint) in {Union, types.UnionType}:
        checks = [_check_of(each) for each in inner]
        return lambda value: any(check(value) for check in checks)
    return _plain_check(hint) if get_origin(hint) is None else _container_check(get_origin(hint), inner)


def _container_check(origin: Any, inner: tuple[Any, ...]) -> Check:
    check = _check_of(inner[1] if origin is dict else inner[0])
    if origin is NotRequired:
        return check
    if origin is dict:
        return lambda value: isinstance(value, dict) and all(map(check, value.values()))
    return lambda value: isinstance(value, list) and all(map(check, value))


def _plain_check(hint: Any) -> Check:
    if hint is None or hint is type(None):
        return lambda value: value is None
    if hint is float:
        return _is_number
    if hint is int:
        return lambda value: isinstance(value, int) and not isinstance(value, bool)
    if hint in {str, bool}:
        return lambda value: isinstance(value, hint)
    hints, required = _fields(hint)
    checks = [(name, _check_of(inner)) for name, inner in hints.items()]
    return lambda value: (
        isinstance(value, dict)
        and required <= value.keys()
        and all(check(value[name]) for name, check in checks if name in value)
    )


def _is_number(value: Any) -> bool:
    if type(value) is float:
        return math.isfinite(value)
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an int that no float holds
        return False


@cache
def _fields(kind: type) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the annotations of a TypedDict or dataclass, and the names that a record must have."""
    hints = get_type_hints(kind, include_extras=True)
    if not dataclasses.is_dataclass(kind):
        return hints, getattr(kind, "__required_keys__")  # noqa: B009 - only a TypedDict has it
    fields = dataclasses.fields(kind)
    return hints, frozenset(field.name for field in fields if field.default is dataclasses.MISSING)


def _is_flat(value: Any) -> bool:
    """Tell whether a value is a number, a text, None, or named numbers."""
    return value is None or FLAT(value)


def _has_whole_scores(record: Mapping[str, Any]) -> bool:
    prefixes = {"", "train_", "valid_"}
    held_out = {"valid_"} | ({""} if record["kind"] == "eval" else set())  # a loop of the user may score no loss there
    groups = [
        {prefix + name for name in (SCORE - {"loss"} if prefix in held_out else SCORE)}
        for prefix in prefixes
        if f"{prefix}samples" in record
    ]
    return all(fits(record.get(name), float) for group in groups for name in group)


FLAT = _check_of(float | str | bool | dict[str, float])
