"""Where the phases of Paceline begin and end, so that an entry says whether it happened inside a training step."""

from collections.abc import Callable
from typing import Any

from tests.sim.entries import LOG


def _watch_loop(module: Any) -> None:
    module.Training.train_step = LOG.phased(module.Training.train_step, "step")
    module.Training.after_step = LOG.phased(module.Training.after_step, "after step")
    module.evaluate = LOG.phased(module.evaluate, "evaluate")


def _watch_run(module: Any) -> None:
    module.JobRun.save = LOG.phased(module.JobRun.save, "save")
    module.evaluate = LOG.phased(module.evaluate, "evaluate")


def _use_sim_future(module: Any) -> None:
    from tests.sim.nccl import SimFuture

    module.Future = SimFuture


AFTER_IMPORT: dict[str, Callable[[Any], None]] = {
    "paceline.engine.loop": _watch_loop,
    "paceline.engine.run": _watch_run,
    "paceline.parallel.ddp_hooks": _use_sim_future,
}
"""Changes of modules of Paceline, made when they have been imported."""
