"""Times the phases of a rank at the seams of torch, and writes them to the journal every few steps."""

import os
import resource
import time
from contextlib import suppress
from typing import Any

from . import journal
from .facts import machine_facts, size_facts
from .listener import Listener, listeners, progress
from .phase_clock import PHASES, PhaseClock

STEPS_PER_INTERVAL = 10
THREADS = "/proc/self/task"


class Timing(Listener):
    """The clock of this process; it starts with the first sign that the process trains."""

    def __init__(self) -> None:
        self._clock: PhaseClock | None = None
        self._interval = _Interval()
        self._computed = False
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Start again in a forked process."""
        self._clock = None

    @property
    def clock(self) -> PhaseClock:
        """The clock of this process."""
        if self._clock is None:
            self._clock = PhaseClock(max(0.0, time.time() - journal.born()))
            self._interval = _Interval()
        return self._clock

    def joined(self) -> None:
        """Start the clock."""
        self.clock.end_span("rest")

    def fetching(self, iterator: Any) -> None:
        """The time until here belongs to what comes next."""
        del iterator
        self.clock.end_span("rest")

    def fetched(self, iterator: Any, batch: Any) -> None:
        """The wait for a batch ends."""
        del batch
        self.clock.end_span("data", id(iterator))
        self._interval.workers = getattr(iterator, "_num_workers", 0)

    def copying(self) -> None:
        """The time until here belongs to what comes next."""
        self.clock.end_span("rest")

    def copied(self) -> None:
        """The copy ends."""
        self.clock.end_span("copy")

    def forward_starts(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, training: bool) -> None:
        """Now it is known what the last batch was for."""
        del model, args, kwargs
        self.clock.end_span("rest")
        if training:
            self.clock.decide_for_training()
        else:
            self.clock.decide_for_evaluation()

    def forward_ends(self, *, training: bool) -> None:
        """The forward pass of the wrapped model ends; the loss follows."""
        self.clock.end_phase("forward" if training else "evaluate")

    def backward_starts(self, root: Any) -> None:
        """The forward phase ends; without a wrapped model, all since the batch was the forward pass."""
        del root
        self.clock.end_span("rest")
        if progress.in_forward:
            self.clock.count_rest_as("forward")
        else:
            before = self.clock.totals["rest"]
            self.clock.decide_for_training()
            self.clock.totals["forward"] += self.clock.totals["rest"] - before
            self.clock.totals["rest"] = before
        self._computed = False

    def gradients_computed(self) -> None:
        """The backward phase ends."""
        if self._clock is not None:
            self._clock.end_phase("backward")
            self._computed = True

    def backward_ends(self) -> None:
        """The gradients are averaged."""
        self.clock.end_phase("grad_sync" if self._computed else "backward")

    def step_starts(self, optimizer: Any) -> None:
        """Clipping and unscaling belong to the update."""
        del optimizer
        self.clock.end_span("rest")
        if progress.passes:
            self.clock.count_rest_as("update")

    def updated(self, optimizer: Any) -> None:
        """The update ends."""
        del optimizer
        if progress.passes:
            self.clock.count_rest_as("update")
            self.clock.end_phase("update")

    def step_ends(self, optimizer: Any) -> None:
        """Write the interval if it is complete."""
        if progress.steps == 0:
            parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
            journal.put("trains", optimizer=type(optimizer).__name__, **size_facts(parameters), **machine_facts())
        self._interval.count(self.clock, optimizer)
        if len(self._interval.waits) == STEPS_PER_INTERVAL:
            self._interval.write(self.clock, progress.steps + 1)

    def collective_starts(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The time until here belongs to what comes next."""
        del name, args, kwargs
        self.clock.end_span("rest")

    def collective_ends(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A collective of the script itself ends."""
        del name, args, kwargs
        self.clock.end_span("talk")

    def saving(self, value: Any, target: Any) -> None:
        """The time until here belongs to what comes next."""
        del value, target
        self.clock.end_span("rest")

    def saved(self) -> None:
        """A checkpoint is written."""
        self.clock.end_span("save")

    def exiting(self) -> None:
        """Write what is left."""
        if self._clock is None or not progress.steps:
            return
        if self._interval.waits:
            self._interval.write(self.clock, progress.steps)
        self.clock.finish()
        self._interval.write(self.clock, progress.steps, kind="end")


class _Interval:
    """The steps since the last line of the journal."""

    def __init__(self) -> None:
        self._totals = dict.fromkeys(PHASES, 0.0)
        self._usage = (0.0, 0.0)
        self._sync = 0.0
        self.workers = 0
        self._clear()

    def _clear(self) -> None:
        self.waits: list[float] = []
        self._samples: list[int] = []
        self._passes: list[int] = []
        self._lr = 0.0

    def count(self, clock: PhaseClock, optimizer: Any) -> None:
        """Count a step."""
        self.waits.append(round(clock.totals["grad_sync"] - self._sync, 7))
        self._sync = clock.totals["grad_sync"]
        self._samples.append(sum(progress.batches))
        self._passes.append(progress.passes)
        lr = optimizer.param_groups[0].get("lr", 0.0)
        self._lr = lr if isinstance(lr, float) else 0.0  # reading a tensor would wait for the device

    def write(self, clock: PhaseClock, step: int, kind: str = "interval") -> None:
        """Write the interval, and start the next."""
        usage = _cpu_seconds(), _cpu_wait()
        journal.put(
            kind,
            step=step,
            phases={phase: round(clock.totals[phase] - self._totals[phase], 6) for phase in PHASES},
            waits=self.waits,
            cpu=round(usage[0] - self._usage[0], 6),
            cpu_wait=round(usage[1] - self._usage[1], 6),
            samples=self._samples,
            passes=self._passes,
            lr=self._lr,
            workers=self.workers,
            wall=round(clock.now - clock.start, 6),
        )
        self._totals, self._usage = dict(clock.totals), usage
        self._clear()


def _cpu_seconds() -> float:
    use = resource.getrusage(resource.RUSAGE_SELF)
    return use.ru_utime + use.ru_stime


def _cpu_wait() -> float:
    """Return the run-queue wait of the most delayed thread in seconds; 0 if the kernel does not provide it."""
    waited = 0
    with suppress(OSError):
        for thread in os.listdir(THREADS):
            with suppress(OSError, ValueError, IndexError), open(f"{THREADS}/{thread}/schedstat", "rb") as file:
                waited = max(waited, int(file.read().split()[1]))
    return waited / 1e9


def install() -> None:
    """Listen; a process that only starts others never trains, and so never writes."""
    listeners.append(Timing())
