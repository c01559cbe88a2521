"""The files of a run folder as a JSON schema, made from the same types that the readers check.

docs/run-folder.schema.json is its output: python -m paceline.records.json_schema > docs/run-folder.schema.json
"""

import dataclasses
import json
import sys
import types
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints

from paceline.core.config import Config
from paceline.core.setting_types import Interval
from paceline.records.folder import RunFolder
from paceline.records.manifest import MANIFEST
from paceline.records.phases import PhaseRecord, RankFacts
from paceline.records.profile import Profile
from paceline.records.schema import Between, Environment, EpochLine, EvalLine, Manifest, Owner, RankState, StepLine

DIALECT = "https://json-schema.org/draft/2020-12/schema"
PLAIN: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    Path: {"type": "string"},
    Interval: {"type": "string", "pattern": r"^\d+ (epoch|step)s?$"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    Any: {},
}
SCORES = {
    "anyOf": [
        {"type": ["number", "string", "boolean", "null"]},
        {"type": "object", "additionalProperties": {"type": "number"}},
    ]
}
"""Values of metrics.jsonl beside the fixed ones: the scores of the task, times by phase, utilisation."""


def run_folder_schema() -> dict[str, Any]:
    """Return one schema for all files of a run folder, each under its path, with * for a number."""
    folder = RunFolder(Path())
    lines = [_of(line) | {"additionalProperties": SCORES} for line in (StepLine, EpochLine, EvalLine)]
    phases = [_tagged("ranks", RankFacts), _tagged("phases", PhaseRecord)]
    profile = _of(Profile)
    profile["properties"]["version"] = {"type": "integer"}
    files = {
        folder.config: _of(Config) | {"required": [], "additionalProperties": False},
        folder.attempt: _of(Owner),
        folder.environment: {"type": "array", "items": _of(Environment), "minItems": 1},
        folder.metrics: {"anyOf": lines},
        folder.phases: {"anyOf": phases},
        folder.profile: profile,
        folder.rank(0): _of(RankState),
        folder.checkpoint(0) / MANIFEST: _of(Manifest),
    }
    named = {str(path).replace("00000000", "*").replace("000", "*"): schema for path, schema in files.items()}
    return {
        "$schema": DIALECT,
        "title": "The files of a Paceline run folder",
        "description": "By path. A .jsonl file has one such value per line; config.toml is TOML with these values.",
        "$defs": named,
    }


def _tagged(kind: str, record: type) -> dict[str, Any]:
    schema = _of(record)
    schema["properties"] = {"kind": {"const": kind}} | schema["properties"]
    return schema | {"required": ["kind", *schema["required"]]}


def _of(hint: Any) -> dict[str, Any]:
    """Return the schema of an annotation."""
    if hint in PLAIN:
        return dict(PLAIN[hint])
    origin, inner = get_origin(hint), get_args(hint)
    if origin is None:
        return _of_record(hint)
    if origin is Annotated:
        limits = [extra for extra in inner[1:] if isinstance(extra, Between)]
        return _of(inner[0]) | {key: value for each in limits for key, value in _limits(each).items()}
    if origin in {Union, types.UnionType}:
        return {"anyOf": [_of(each) for each in inner]}
    return _of_container(origin, inner)


def _of_container(origin: Any, inner: tuple[Any, ...]) -> dict[str, Any]:
    if origin is NotRequired:
        return _of(inner[0])
    if origin is Literal:
        return {"enum": list(inner)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _of(inner[1])}
    return {"type": "array", "items": _of(inner[0])}


def _limits(between: Between) -> dict[str, float]:
    return {"minimum": between.least, "maximum": between.most}


def _of_record(kind: Any) -> dict[str, Any]:
    """Return the schema of a TypedDict or dataclass, which may have other keys too."""
    hints = get_type_hints(kind, include_extras=True)
    if dataclasses.is_dataclass(kind):
        required = [field.name for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING]
    else:
        required = sorted(kind.__required_keys__)
    return {
        "type": "object",
        "properties": {name: _of(hint) for name, hint in hints.items()},
        "required": required,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run_folder_schema(), indent=1, ensure_ascii=False) + "\n")
