"""The published JSON schema: it is current, real run folders fit it in every file, and damaged records do not."""

import copy
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from paceline.records.folder import RunFolder
from paceline.records.json_schema import run_folder_schema

jsonschema: Any = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
PUBLISHED = Path(__file__).parents[2] / "docs" / "run-folder.schema.json"
OTHERS = re.compile(
    r"log\.txt|model\.txt|ranks/.*\.(log|stack|collectives|pt)|tensorboard/.*|.*\.safetensors|.*\.sha256|checkpoints/(best|last)|code/.*"
)
"""Files that are text, tensors or of another program."""


def schemas() -> dict[str, Any]:
    return json.loads(PUBLISHED.read_text(encoding="utf-8"))["$defs"]


def values_of(path: Path) -> list[Any]:
    """Return the values in a file: of a .jsonl file one per line."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".toml":
        return [tomllib.loads(text)]
    return [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else [json.loads(text)]


def schema_of(name: str) -> Any:
    found = [schema for path, schema in schemas().items() if re.fullmatch(re.escape(path).replace(r"\*", r"\d+"), name)]
    assert len(found) == 1, f"{name} has {len(found)} schemas"
    return found[0]


def check_folder(folder: RunFolder) -> set[str]:
    """Validate every file of a run folder, and return the names of those with a schema."""
    checked = set()
    for path in sorted(folder.path.rglob("*")):
        name = str(path.relative_to(folder.path))
        if path.is_dir() or OTHERS.fullmatch(name):
            continue
        validator = jsonschema.Draft202012Validator(schema_of(name))
        for value in values_of(path):
            validator.validate(value)
        checked.add(name)
    return checked


def test_the_published_schema_is_that_of_the_readers():
    assert json.loads(PUBLISHED.read_text(encoding="utf-8")) == json.loads(json.dumps(run_folder_schema()))
    for schema in schemas().values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_every_file_of_a_run_fits(finished_run):
    names = check_folder(finished_run)
    assert {"config.toml", "attempt.json", "environment.json", "metrics.jsonl", "phases.jsonl"} <= names
    assert {"ranks/rank-000.json"} <= names
    assert any(name.endswith("manifest.json") for name in names)


def test_every_file_of_a_profiled_run_of_another_task_fits(small_run):
    folder = RunFolder(
        small_run(
            data="alice", model="gpt-nano", context=16, steps=2, epochs=1, profile=True, global_batch=8, workers=0
        ).folder
    )
    assert "profile.json" in check_folder(folder)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("attempt.json", {"pid": "12"}),
        ("metrics.jsonl", {"kind": "other"}),
        ("metrics.jsonl", {"loss": ["1"]}),
        ("phases.jsonl", {"kind": "step"}),
        ("ranks/rank-000.json", {"state": "SLEEPING"}),
        ("config.toml", {"epochs": "ten"}),
        ("config.toml", {"epochz": 10}),
    ],
)
def test_a_record_with_a_fault_does_not_fit(finished_run, name, fault):
    value = copy.deepcopy(values_of(finished_run.path / name)[0])
    validator = jsonschema.Draft202012Validator(schema_of(name))
    validator.validate(value)
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(value | fault)
