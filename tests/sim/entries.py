"""What the simulated GPU observed: entries with the phase, a description and the responsible line of Paceline."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import FrameType
from typing import Any, Literal, NamedTuple

Kind = Literal["sync", "mixed", "host", "rule", "lifetime", "note"]
"""sync: the host waits for the device. mixed: tensors of two devices in one operation. host: device memory read as host
memory. rule: arguments that CUDA kernels or NCCL refuse. lifetime: memory freed while another stream may use it."""
FAULTS: frozenset[Kind] = frozenset({"sync", "mixed", "host", "rule", "lifetime"})
PACKAGE = "paceline"


class Entry(NamedTuple):
    """One observation; `line` is the innermost line of Paceline that led to it."""

    kind: Kind
    phase: str
    text: str
    line: str


class Log:
    """The observations of this process, with their number."""

    def __init__(self) -> None:
        self.counts: Counter[Entry] = Counter()
        self.operations: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        """How often each phase was entered."""
        self.phase = "other"

    def add(self, kind: Kind, text: str, line: str | None = None) -> None:
        """Note an observation of the current phase."""
        self.counts[Entry(kind, self.phase, text, paceline_line() if line is None else line)] += 1

    @contextmanager
    def in_phase(self, name: str) -> Iterator[None]:
        """Count what happens in the block for this phase."""
        before, self.phase = self.phase, name
        try:
            yield
        finally:
            self.phase = before
            self.calls[name] += 1

    def phased(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Return a function that counts for this phase."""

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.in_phase(name):
                return function(*args, **kwargs)

        return call

    def take(self) -> dict[str, Any]:
        """Return everything since the last call as plain values."""
        entries = [[*entry, number] for entry, number in sorted(self.counts.items())]
        taken = {"entries": entries, "operations": dict(self.operations), "calls": dict(self.calls)}
        for counter in (self.counts, self.operations, self.calls):
            counter.clear()
        return taken


LOG = Log()


def paceline_line() -> str:
    """Return the innermost line of Paceline on the stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] == PACKAGE:
            return f"{frame.f_code.co_filename.rpartition(f'/{PACKAGE}/')[2]}:{frame.f_lineno}"
        frame = frame.f_back
    return "outside Paceline"
