"""Ray Train: the scores of every epoch and test go to `ray.train.report`, which Ray Tune and its dashboard read."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from paceline.core.errors import ConfigError
from paceline.records.entries import Entry, EpochRecord, EvalRecord, RunResult
from paceline.trackers.base import RunInfo, scalars

POINTER = "run.txt"
"""The file of a Ray checkpoint, beside which Ray keeps scores: it names the run folder, with the real checkpoints."""


class RayTrain:
    """Reports on every rank: `ray.train.report` waits until all workers have called it. Collective."""

    name = "ray"

    def __init__(self) -> None:
        if find_spec("ray") is None:
            raise ConfigError("--track ray needs the ray package", hint="pip install 'paceline[ray]'")
        self._train: Any = import_module("ray.train")
        try:
            self._is_lead = self._train.get_context().get_world_rank() == 0
        except Exception as cause:  # its kind depends on the version
            raise ConfigError(
                "--track ray works in the workers of Ray Train only",
                hint="call paceline.train in a TorchTrainer (examples/ray_train.py), or drop --track ray",
            ) from cause

    def open(self, run: RunInfo) -> None:
        """Store where the run is."""
        self._folder = run.folder.path.absolute()

    def record(self, entry: Entry) -> None:
        """Report an epoch or an evaluation."""
        if isinstance(entry, EpochRecord | EvalRecord):
            with TemporaryDirectory(prefix="paceline-") as place:
                Path(place, POINTER).write_text(f"{self._folder}\n", encoding="utf-8")
                checkpoint = self._train.Checkpoint.from_directory(place) if self._is_lead else None
                self._train.report(scalars(entry) | {"step": entry.step, "epoch": entry.epoch}, checkpoint=checkpoint)

    def close(self, result: RunResult | None) -> None:
        """Do nothing: Ray sees the end of the worker."""
