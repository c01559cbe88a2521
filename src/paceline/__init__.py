"""Paceline: train one PyTorch model the same way on one device, one node or many.

import paceline
result = paceline.train(paceline.Config(model="resnet20", data="digits", epochs=5))
print(result.test.top1)
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.core.config import Config
    from paceline.core.errors import PacelineError
    from paceline.core.metrics import Scores
    from paceline.data.batch_order import Order
    from paceline.engine.entry import start_run, train
    from paceline.engine.own_run import Run
    from paceline.launching.launch import launch
    from paceline.records.entries import RunResult
    from paceline.tasks.task import Metric, Task
    from paceline.tasks.teacher import Ema
    from paceline.trackers.base import Tracker, scalars

    __version__: str

__all__ = [
    "Config", "Ema", "Metric", "Order", "PacelineError", "Run", "RunResult", "Scores", "Task", "Tracker", "__version__",
    "launch", "scalars", "start_run", "train",
]  # fmt: skip

_HOMES = {
    "Config": "paceline.core.config",
    "Order": "paceline.data.batch_order",
    "PacelineError": "paceline.core.errors",
    "Run": "paceline.engine.own_run",
    "RunResult": "paceline.records.entries",
    "Scores": "paceline.core.metrics",
    "Ema": "paceline.tasks.teacher",
    "Metric": "paceline.tasks.task",
    "Task": "paceline.tasks.task",
    "Tracker": "paceline.trackers.base",
    "launch": "paceline.launching.launch",
    "scalars": "paceline.trackers.base",
    "start_run": "paceline.engine.entry",
    "train": "paceline.engine.entry",
}


def __getattr__(name: str) -> object:
    """Import a public name on first use: `paceline --help` needs none of them."""
    if name == "__version__":
        return import_module("importlib.metadata").version("paceline")  # a tenth of a second that few need
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
