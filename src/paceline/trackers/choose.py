"""Which trackers a run has: the console and the files always, others by name."""

import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec

from paceline.core.config_rules import TRACKERS
from paceline.core.entry_points import load_part
from paceline.core.errors import ConfigError
from paceline.core.plugin import call_plugin
from paceline.trackers.base import Tracker
from paceline.trackers.console import Quiet, console_for
from paceline.trackers.files import JsonLines, LogFile, PhaseLines
from paceline.trackers.ray import RayTrain
from paceline.trackers.tensorboard import TensorBoard
from paceline.trackers.wandb import WandB

METHODS = ("open", "record", "close")


def choose_trackers(
    names: Sequence[str], *, say: Callable[[str], None], is_lead: bool = True, quiet: bool = False
) -> list[Tracker]:
    """Return the trackers of a rank, the console first; those of other ranks than the lead are collective."""
    collective: list[Tracker] = [RayTrain()] if "ray" in names else []
    return [*(_trackers_of_lead(names, say=say, quiet=quiet) if is_lead else []), *collective]


def _trackers_of_lead(names: Sequence[str], *, say: Callable[[str], None], quiet: bool) -> list[Tracker]:
    trackers: list[Tracker] = [
        Quiet(sys.stdout) if quiet else console_for(sys.stdout),
        LogFile(),
        JsonLines(),
        PhaseLines(),
    ]
    if "tensorboard" in names or ("auto" in names and find_spec("tensorboard") is not None):
        trackers.append(TensorBoard())
    if "wandb" in names:
        trackers.append(WandB(say))
    return trackers + [_load(name) for name in names if name not in TRACKERS]


def _load(name: str) -> Tracker:
    """Return the user's tracker: what "my.py:Tracker" or an entry point names, called without arguments."""
    tracker = call_plugin(name, load_part("trackers", name, ConfigError), {}, ConfigError)
    missing = [method for method in METHODS if not callable(getattr(tracker, method, None))]
    if missing:
        raise ConfigError(
            f"{name} is no tracker: {type(tracker).__name__} has no method {' and no '.join(missing)}",
            hint="a tracker has open(run), record(entry) and close(result)",
        )
    return tracker
