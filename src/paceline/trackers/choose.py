"""Which trackers a run has: the console and the files always, others by name."""

import sys
from collections.abc import Callable, Sequence

from paceline.trackers.base import Tracker
from paceline.trackers.console import console_for
from paceline.trackers.files import JsonLines, LogFile, PhaseLines
from paceline.trackers.tensorboard import TensorBoard
from paceline.trackers.wandb import WandB


def choose_trackers(names: Sequence[str], *, say: Callable[[str], None]) -> list[Tracker]:
    """Return the trackers, the console first."""
    trackers: list[Tracker] = [console_for(sys.stdout), LogFile(), JsonLines(), PhaseLines()]
    if "tensorboard" in names:
        trackers.append(TensorBoard())
    if "wandb" in names:
        trackers.append(WandB(say))
    return trackers
