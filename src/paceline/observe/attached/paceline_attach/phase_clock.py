"""The clock of a rank of a foreign script. Each moment is in exactly one phase, some of them decided afterwards."""

import time
from dataclasses import dataclass

PHASES = (
    "data", "copy", "forward", "backward", "grad_sync", "update", "start", "evaluate", "save", "record", "rest",
)  # fmt: skip
"""The phases of a run, with those of `records.phases.CLOCK_PHASES`, and the time that none of them covers."""
DECIDED = {"talk": "record"}


@dataclass(slots=True)
class Span:
    """A stretch of time whose purpose, training or evaluation, is not known yet."""

    kind: str
    """A phase, or "talk" for a collective that the script calls itself."""
    seconds: float
    loader: int | None

    @property
    def phase(self) -> str:
        """Its phase in a training step."""
        return DECIDED.get(self.kind, self.kind)


class PhaseClock:
    """Splits the time since the start of the process."""

    def __init__(self, age: float) -> None:
        self.now = self.start = time.perf_counter() - age
        self.totals: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self._pending: list[Span] = []
        self._has_trained = False
        self._has_evaluated = False
        """Since the last step."""

    def end_span(self, kind: str, loader: int | None = None) -> None:
        """End a span; what it was for is decided later."""
        before, self.now = self.now, time.perf_counter()
        self._pending.append(Span(kind, self.now - before, loader))

    def end_phase(self, phase: str) -> None:
        """Add the time since the last end to a phase."""
        before, self.now = self.now, time.perf_counter()
        self.totals[phase] += self.now - before

    def decide_for_evaluation(self) -> None:
        """A model was called without gradients: everything since the last step was for an evaluation."""
        for span in self._take():
            is_start_up = not self._has_trained and not self._has_evaluated and span.kind == "rest"
            self.totals["save" if span.kind == "save" else "start" if is_start_up else "evaluate"] += span.seconds
        self._has_evaluated = True

    def decide_for_training(self) -> None:
        """A training step has started with the last batch: what came before it was start-up or an evaluation."""
        pending = self._take()
        fetches = [index for index, span in enumerate(pending) if span.kind == "data"]
        before = None
        if not self._has_trained:
            before = "evaluate" if self._has_evaluated else "start"
        elif self._has_evaluated or _has_repeats([pending[index].loader for index in fetches]):
            before = "evaluate"
        first = fetches[-1] if fetches else len(pending)
        for index, span in enumerate(pending):
            is_before = before is not None and index < first and span.kind != "save"
            self.totals[before if is_before and before else span.phase] += span.seconds
        self._has_trained, self._has_evaluated = True, False

    def count_rest_as(self, phase: str) -> None:
        """Count the pending time between seams as this phase, because it led to it."""
        for span in self._take():
            self.totals[phase if span.kind == "rest" else span.phase] += span.seconds

    def finish(self) -> None:
        """Decide about the time after the last step: an evaluation, if batches were fetched."""
        self.end_span("rest")
        pending = self._take()
        fetches = [index for index, span in enumerate(pending) if span.kind == "data"]
        evaluates = self._has_evaluated or _has_repeats([pending[index].loader for index in fetches])
        for index, span in enumerate(pending):
            is_evaluation = evaluates and fetches and index <= fetches[-1] and span.kind != "save"
            self.totals["evaluate" if is_evaluation else span.phase] += span.seconds

    def _take(self) -> list[Span]:
        pending, self._pending = self._pending, []
        return pending


def _has_repeats(loaders: list[int | None]) -> bool:
    """Tell whether a loader gave several batches: only one of them can belong to the next step."""
    return len(set(loaders)) < len(loaders)
