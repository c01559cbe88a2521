"""The errors that Paceline explains: each has a message, a hint what to type next, and an exit code."""

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches
from enum import IntEnum
from itertools import takewhile


class ExitCode(IntEnum):
    """Exit codes of commands."""

    FINISHED = 0
    FAILED = 1
    DIFFERENT = 1  # a comparison found differences, as with diff
    BAD_INPUT = 2
    DIVERGED = 3
    INTERRUPTED = 130
    TERMINATED = 143


class PacelineError(Exception):
    """A problem with a known cause: shown as one message and one hint, never as a traceback."""

    exit_code: int = ExitCode.FAILED

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if hint is not None:
            self.add_note(f"hint: {hint}")  # shown below a traceback, in a script or a notebook


class ConfigError(PacelineError):
    """A setting is unknown, malformed or contradicts another."""

    exit_code = ExitCode.BAD_INPUT


def flag(setting: str) -> str:
    """Return the flag of a setting: "--global-batch" for "global_batch"."""
    return "--" + setting.replace("_", "-")


class SettingError(ConfigError):
    """A value is out of range; a caller that knows where it was set adds the place in front."""

    def __init__(self, setting: str, problem: str, *, place: str | None = None, hint: str | None = None) -> None:
        super().__init__(f"{place or flag(setting)} {problem}", hint=hint)
        self.setting = setting
        self.problem = problem


class DataError(PacelineError):
    """The data set cannot be found, read or trusted."""

    exit_code = ExitCode.BAD_INPUT


class ModelError(PacelineError):
    """The model cannot be built, or does not fit the data."""

    exit_code = ExitCode.BAD_INPUT


class TaskError(PacelineError):
    """The task cannot be built, or its loss, count or metrics are not what they must be."""

    exit_code = ExitCode.BAD_INPUT


class RunError(PacelineError):
    """A run folder is missing, in use, finished or of another run."""

    exit_code = ExitCode.BAD_INPUT


class InUseError(RunError):
    """Another process trains the run."""


class FinishedError(RunError):
    """A run has nothing left to do."""


class OvertakenError(RunError):
    """A newer attempt trains the run, so this one may no longer write to its folder."""


class CheckpointError(PacelineError):
    """A checkpoint is damaged, missing or could not be written."""


class StorageError(PacelineError):
    """Files in an object store could not be read or written."""


class ComparisonError(PacelineError):
    """Two things cannot be compared, as opposed to being different."""

    exit_code = ExitCode.BAD_INPUT


class RanksError(PacelineError):
    """The ranks did not find each other, do not agree, or one of them stopped answering."""


class LostRankError(RanksError):
    """Another rank exited, so this one stops too: not the first cause of a failure."""


class StoppedError(PacelineError):
    """A signal arrived while this process waited for others, and there was nothing to save yet."""

    def __init__(self, number: int, waiting: str) -> None:
        super().__init__(f"stopped while {waiting}")
        self.signal = number
        self.exit_code = 128 + number


class DivergedError(PacelineError):
    """The loss stopped being a finite number."""

    exit_code = ExitCode.DIVERGED


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name closest to `name`, preferring a common prefix among equals; None if nothing is close."""
    folded = {candidate.casefold(): candidate for candidate in known}
    matches = get_close_matches(name.casefold(), folded, n=5, cutoff=0.5)

    def closeness(match: str) -> tuple[float, int]:
        ratio = SequenceMatcher(None, match, name.casefold()).ratio()
        shared = takewhile(lambda pair: pair[0] == pair[1], zip(match, name.casefold(), strict=False))
        return round(ratio, 1), len(list(shared))

    return folded[max(matches, key=closeness)] if matches else None


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return a hint: the nearest name, then all known names."""
    known = sorted(known)
    listed = "known: " + ", ".join(known)
    close = nearest(name, known)
    return listed if close is None else f"did you mean {close}? ({listed})"
