"""The mistakes that Paceline explains: each says what is wrong, what to type next, and which exit code it is."""

from enum import IntEnum


class ExitCode(IntEnum):
    """What the shell is told."""

    FINISHED = 0
    FAILED = 1
    DIFFERENT = 1  # what a comparison says, as diff does
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


class ConfigError(PacelineError):
    """A setting is unknown, malformed or contradicts another."""

    exit_code = ExitCode.BAD_INPUT


class SettingError(ConfigError):
    """A value is out of range; whoever knows where it was set may say so in front."""

    def __init__(self, setting: str, problem: str, *, place: str | None = None, hint: str | None = None) -> None:
        super().__init__(f"{place or '--' + setting.replace('_', '-')} {problem}", hint=hint)
        self.setting = setting
        self.problem = problem


class DataError(PacelineError):
    """The data set cannot be found, read or trusted."""

    exit_code = ExitCode.BAD_INPUT


class ModelError(PacelineError):
    """The model cannot be built, or does not fit the data."""

    exit_code = ExitCode.BAD_INPUT


class RunError(PacelineError):
    """A run folder is missing, in use, finished or of another run."""

    exit_code = ExitCode.BAD_INPUT


class CheckpointError(PacelineError):
    """A checkpoint is damaged, missing or could not be written."""


class ComparisonError(PacelineError):
    """Two things cannot be compared, which is not the same as being different."""

    exit_code = ExitCode.BAD_INPUT


class RanksError(PacelineError):
    """The ranks did not find each other, do not agree, or one of them stopped answering."""


class LostRankError(RanksError):
    """Another rank went, and this one follows: not the first cause of a failure."""


class StoppedError(PacelineError):
    """A signal came while this process waited for others, and there was nothing to save yet."""

    def __init__(self, number: int, waiting: str) -> None:
        super().__init__(f"stopped while {waiting}")
        self.signal = number
        self.exit_code = 128 + number


class DivergedError(PacelineError):
    """The loss stopped being a finite number."""

    exit_code = ExitCode.DIVERGED
