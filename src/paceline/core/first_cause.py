"""What a person reads when their own code fails: the exception and where in their files, in one paragraph."""

import inspect
import linecache
import os
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

from paceline.core.errors import DataError, PacelineError
from paceline.core.plugin import is_own_file

VERBOSE_VARIABLE = "_PACELINE_VERBOSE"
"""Set where --verbose was given; starts with an underscore because it is not a setting."""
LONGEST = 600
"""Characters of a message that are shown."""
PLACES = "paceline_places"
MOST_PLACES = 3
LOST_WORKER = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\)")


class FirstCause(NamedTuple):
    """An exception, and the lines of the user's code that it passed, the innermost first."""

    message: str
    places: list[str]

    @property
    def text(self) -> str:
        """The paragraph."""
        return "\n".join([self.message, *(f"  {place}" for place in self.places)])


def first_cause(problem: BaseException) -> FirstCause | None:
    """Return what to tell the user about an exception in their own code; None if it came from elsewhere."""
    places = getattr(problem, PLACES, None) or own_places(problem)
    return FirstCause(describe_exception(problem), places[:MOST_PLACES]) if places else None


def describe_exception(problem: BaseException) -> str:
    """Return the type and message of an exception in one line of limited length."""
    words = " ".join(str(problem).split())
    if len(words) > LONGEST:
        words = f"{words[:LONGEST]}… ({len(words) - LONGEST:,} more characters)"
    return f"{type(problem).__name__}: {words}" if words else type(problem).__name__


def own_places(problem: BaseException) -> list[str]:
    """Return the lines of the user's code in the traceback of an exception, the innermost first."""
    places = []
    for frame, line in traceback.walk_tb(problem.__traceback__):
        code = frame.f_code
        if is_own_file(code.co_filename):
            source = linecache.getline(code.co_filename, line, frame.f_globals).strip()
            places.append(f"{code.co_filename}, line {line}, in {code.co_name}{f': {source}' if source else ''}")
    return places[::-1]


def keep_places(problem: Exception) -> Exception:
    """Attach to an exception where it passed the user's code: another process gets it without its traceback."""
    with_places: Any = problem
    setattr(with_places, PLACES, own_places(problem))
    return problem


def explain_lost_worker(problem: BaseException) -> DataError | None:
    """Return the error for a loader worker that has exited, of which torch's own says little; None for any other.

    Torch raises it wherever the training process is at that moment.
    """
    found = LOST_WORKER.search(str(problem)) if isinstance(problem, RuntimeError) else None
    if found is None:
        return None
    return DataError(
        f"a loader worker (process {found[1]}) exited without an error report (killed, or out of memory?)",
        hint="see dmesg; with --workers 0 your data set is read in the training process",
    )


@contextmanager
def exits_reported(report: Callable[[PacelineError], object]) -> Iterator[None]:
    """Report an `os._exit` that the user's code calls in the block, also in a loader worker, before it happens."""
    real = os._exit

    def leave(code: int) -> NoReturn:
        here = inspect.currentframe()
        caller = None if here is None else here.f_back
        if caller is not None and is_own_file(caller.f_code.co_filename):
            report(
                PacelineError(
                    f"your code ended the process with os._exit({code})",
                    hint=f"see {caller.f_code.co_filename}, line {caller.f_lineno}",
                )
            )
        real(code)

    os._exit = leave
    try:
        yield
    finally:
        os._exit = real
