"""What runs leave behind, compared to the last bit: their final checkpoint, and their records without times."""

from pathlib import Path
from typing import Any

import torch

from paceline.engine.checkpoint import Checkpoints, load_checkpoint
from paceline.records.folder import RunFolder
from paceline.records.reader import read_metrics

VARYING = {"samples_per_s", "seconds", "phases", "utilisation", "time"}
"""What depends on the time in a record of metrics.jsonl."""


def final_state(folder: Path) -> dict[str, Any]:
    """Return the last checkpoint of a run without the settings, which hold the name of the run."""
    state = load_checkpoint(Checkpoints(folder / "checkpoints", keep=1).named("last"))
    return {key: value for key, value in state.items() if key != "config"}


def untimed_records(folder: Path) -> list[dict[str, Any]]:
    """Return the records of a run without what depends on the time."""
    return [
        {key: value for key, value in record.items() if key not in VARYING}
        for record in read_metrics(RunFolder(folder))
    ]


def differences(first: Any, second: Any, path: str = "") -> list[str]:
    """Return the paths of all values that differ between two states, to the last bit."""
    if isinstance(first, torch.Tensor):
        same = first.dtype == second.dtype and first.shape == second.shape and torch.equal(first, second)
        return [] if same else [path]
    if isinstance(first, dict):
        if first.keys() != second.keys():
            return [f"{path}: {sorted(map(str, first.keys() ^ second.keys()))}"]
        return [found for key in first for found in differences(first[key], second[key], f"{path}/{key}")]
    if isinstance(first, list | tuple):
        pairs = enumerate(zip(first, second, strict=True))
        return [found for index, pair in pairs for found in differences(*pair, f"{path}/{index}")]
    return [] if first == second else [f"{path}: {first} != {second}"]
