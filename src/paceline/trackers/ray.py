"""Ray Train: the scores of every epoch and test go to `ray.train.report`, which Ray Tune and its dashboard read."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from paceline.core.errors import ConfigError
from paceline.records.entries import Entry, EpochRecord, EvalRecord, RunResult
from paceline.trackers.base import RunInfo, scalars


class RayTrain:
    """Reports on every rank: `ray.train.report` waits until all workers have called it. Collective."""

    name = "ray"

    def __init__(self) -> None:
        if find_spec("ray") is None:
            raise ConfigError("--track ray needs the ray package", hint="pip install 'paceline[ray]'")
        self._train: Any = import_module("ray.train")
        try:
            self._train.get_context().get_world_rank()
        except Exception as cause:  # its kind depends on the version
            raise ConfigError(
                "--track ray works in the workers of Ray Train only",
                hint="call paceline.train in a TorchTrainer (examples/ray_train.py), or drop --track ray",
            ) from cause

    def open(self, run: RunInfo) -> None:
        """Do nothing: Ray knows the run."""

    def record(self, entry: Entry) -> None:
        """Report an epoch or an evaluation."""
        if isinstance(entry, EpochRecord | EvalRecord):
            self._train.report(scalars(entry) | {"step": entry.step, "epoch": entry.epoch})

    def close(self, result: RunResult | None) -> None:
        """Do nothing: Ray sees the end of the worker."""
