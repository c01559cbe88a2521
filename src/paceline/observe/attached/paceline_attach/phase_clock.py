"""The clock of a rank of a foreign script. Each moment is in exactly one phase, some of them decided afterwards."""

import time

PHASES = (
    "data", "copy", "forward", "backward", "grad_sync", "update", "start", "evaluate", "save", "record", "rest",
)  # fmt: skip
"""The phases of a run, with those of `records.phases.CLOCK_PHASES`, and the time that none of them covers."""
DECIDED = {"talk": "record"}


Span = tuple[str, float, int | None]
"""A stretch of time whose purpose, training or evaluation, is not known yet: its kind, seconds, and loader.

Its kind is a phase, or "talk" for a collective that the script calls itself. A tuple, because it is made in every step.
"""


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
        self._pending.append((kind, self.now - before, loader))

    def end_phase(self, phase: str) -> None:
        """Add the time since the last end to a phase."""
        before, self.now = self.now, time.perf_counter()
        self.totals[phase] += self.now - before

    def decide_for_evaluation(self) -> None:
        """A model was called without gradients: everything since the last step was for an evaluation."""
        for kind, seconds, _ in self._take():
            is_start_up = not self._has_trained and not self._has_evaluated and kind == "rest"
            self.totals["save" if kind == "save" else "start" if is_start_up else "evaluate"] += seconds
        self._has_evaluated = True

    def decide_for_training(self) -> None:
        """A training step has started with the last batch: what came before it was start-up or an evaluation."""
        pending = self._take()
        loaders = [loader for kind, _, loader in pending if kind == "data"]
        before = None
        if not self._has_trained:
            before = "evaluate" if self._has_evaluated else "start"
        elif self._has_evaluated or (len(loaders) > 1 and _has_repeats(loaders)):
            before = "evaluate"
        if before is not None:
            pending = self._take_until_last_batch(pending, before)
        for kind, seconds, _ in pending:
            self.totals[DECIDED.get(kind, kind)] += seconds
        self._has_trained, self._has_evaluated = True, False

    def _take_until_last_batch(self, pending: list[Span], phase: str) -> list[Span]:
        """Count what came before the last batch as this phase, and return the rest."""
        fetches = [index for index, span in enumerate(pending) if span[0] == "data"]
        first = fetches[-1] if fetches else len(pending)
        for kind, seconds, _ in pending[:first]:
            self.totals["save" if kind == "save" else phase] += seconds
        return pending[first:]

    def count_rest_as(self, phase: str) -> None:
        """Count the pending time between seams as this phase, because it led to it."""
        for kind, seconds, _ in self._take():
            self.totals[phase if kind == "rest" else DECIDED.get(kind, kind)] += seconds

    def finish(self) -> None:
        """Decide about the time after the last step: an evaluation, if batches were fetched."""
        self.end_span("rest")
        pending = self._take()
        fetches = [index for index, span in enumerate(pending) if span[0] == "data"]
        evaluates = self._has_evaluated or _has_repeats([pending[index][2] for index in fetches])
        for index, (kind, seconds, _) in enumerate(pending):
            is_evaluation = evaluates and fetches and index <= fetches[-1] and kind != "save"
            self.totals["evaluate" if is_evaluation else DECIDED.get(kind, kind)] += seconds

    def _take(self) -> list[Span]:
        pending, self._pending = self._pending, []
        return pending


def _has_repeats(loaders: list[int | None]) -> bool:
    """Tell whether a loader gave several batches: only one of them can belong to the next step."""
    return len(set(loaders)) < len(loaders)
