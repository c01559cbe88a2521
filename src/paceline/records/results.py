"""The result of a run as a file, for whoever started its ranks as processes."""

import dataclasses
import json
from pathlib import Path

from paceline.core.metrics import Score
from paceline.records.entries import RunResult, State
from paceline.records.writer import write_json


def write_result(path: Path, result: RunResult) -> None:
    """Write a result so that `read_result` gives it back."""
    write_json(path, dataclasses.asdict(result) | {"folder": str(result.folder)})


def read_result(path: Path) -> RunResult:
    """Return the result that a lead wrote."""
    values = json.loads(path.read_text(encoding="utf-8"))
    scores = {key: None if values[key] is None else Score(**values[key]) for key in ("best", "test")}
    return RunResult(**(values | scores | {"folder": Path(values["folder"]), "state": State(values["state"])}))
