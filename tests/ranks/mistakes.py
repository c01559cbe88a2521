"""Training with a mistake planted, and what the run recorded."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from paceline.parallel.team import Team
from paceline.records.folder import RunFolder
from paceline.records.reader import read_metrics
from tests.ranks.runs import train_rank

Plant = Callable[[], AbstractContextManager[Any]]


def train_with(team: Team, plant: Plant, settings: dict[str, Any], *more: Any) -> Any:
    """Train with a mistake planted."""
    with plant():
        return train_rank(team, settings, *more)


def folder_of(results: list[Any]) -> Path:
    return results[0].folder


def epochs_of(folder: Path) -> list[dict[str, Any]]:
    return [record for record in read_metrics(RunFolder(folder)) if record["kind"] == "epoch"]


def steps_of(folder: Path) -> list[dict[str, Any]]:
    return [record for record in read_metrics(RunFolder(folder)) if record["kind"] == "step"]
