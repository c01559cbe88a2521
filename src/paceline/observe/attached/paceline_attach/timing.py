"""Times the phases of a rank at the seams of torch, and writes them to the journal every few steps."""

import os
import time
from contextlib import suppress
from typing import Any

import torch

from . import journal
from .facts import machine_facts, size_facts
from .listener import Listener, listeners, progress
from .phase_clock import PHASES, PhaseClock

STEPS_PER_INTERVAL = 10
THREADS = "/proc/self/task"
SECONDS_BETWEEN_WRITES = 0.25
"""Intervals are written this rarely, and CPU time and run-queue waits read: each costs as much as a small step."""


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
        if getattr(iterator, "_num_yielded", 0) == 1:
            self._interval.starts_pass = True
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
        self._interval.add_loss(root)
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
            self._interval.end(self.clock, progress.steps + 1)

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
            self._interval.end(self.clock, progress.steps)
        self.clock.finish()
        self._interval.end(self.clock, progress.steps, kind="end")


class _Interval:
    """The steps since the last line of the journal."""

    def __init__(self) -> None:
        self._totals = dict.fromkeys(PHASES, 0.0)
        self._usage = (0.0, 0.0)
        self._written = float("-inf")
        self._kept: list[_Kept] = []
        self._sync = 0.0
        self.workers = 0
        self.starts_pass = False
        """Whether a batch since the last step was the first of its loader."""
        self._epoch = 0
        self._clear()

    def _clear(self) -> None:
        self.waits: list[float] = []
        self._samples: list[int] = []
        self._passes: list[int] = []
        self._lr = 0.0
        self._losses: list[Any] = []

    def add_loss(self, root: Any) -> None:
        """Keep the loss of a backward pass, unscaled; it is read when intervals are written, not to wait now."""
        loss = root if unscaled.loss is None else unscaled.loss
        unscaled.loss = None
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            self._losses.append(loss.detach())

    def count(self, clock: PhaseClock, optimizer: Any) -> None:
        """Count a step."""
        self.waits.append(round(clock.totals["grad_sync"] - self._sync, 7))
        self._sync = clock.totals["grad_sync"]
        self._samples.append(sum(progress.batches))
        self._passes.append(progress.passes)
        self._epoch += self.starts_pass
        self.starts_pass = False
        lr = optimizer.param_groups[0].get("lr", 0.0)
        self._lr = lr if isinstance(lr, float) else 0.0  # reading a tensor would wait for the device

    def end(self, clock: PhaseClock, step: int, kind: str = "interval") -> None:
        """End the interval and start the next; now and then, write those that have ended."""
        facts = {"samples": self._samples, "passes": self._passes, "lr": self._lr, "epoch": self._epoch}
        self._kept.append((kind, step, clock.totals.copy(), clock.now, self.waits, facts, self._losses))
        self._clear()
        if clock.now - self._written >= SECONDS_BETWEEN_WRITES or kind == "end":
            self._write(clock)

    def _write(self, clock: PhaseClock) -> None:
        kept, self._kept, self._written = self._kept, [], clock.now
        usage = time.process_time(), _cpu_wait()
        cpu, cpu_wait = ((now - before) / len(kept) for now, before in zip(usage, self._usage, strict=True))
        means = _means([losses for *_, losses in kept])
        for (kind, step, totals, now, waits, facts, _), loss in zip(kept, means, strict=True):
            journal.put(
                kind,
                step=step,
                phases={phase: round(totals[phase] - self._totals[phase], 6) for phase in PHASES},
                waits=waits,
                cpu=round(cpu, 6),
                cpu_wait=round(cpu_wait, 6),
                loss=loss,
                workers=self.workers,
                wall=round(now - clock.start, 6),
                **facts,
            )
            self._totals = totals
        self._usage = usage


_Kept = tuple[str, int, dict[str, float], float, list[float], dict[str, Any], list[Any]]
"""An interval that is not written yet: kind, step, totals and time at its end, waits, facts, losses."""


def _means(losses: list[list[Any]]) -> list[float | None]:
    """Return the mean loss of each interval, with one read from the device."""
    flat = [loss.reshape(()).float() for interval in losses for loss in interval]
    values = torch.stack(flat).tolist() if flat else []
    means: list[float | None] = []
    for interval in losses:
        own, values = values[: len(interval)], values[len(interval) :]
        means.append(sum(own) / len(own) if own else None)
    return means


def _cpu_wait() -> float:
    """Return the run-queue wait of the most delayed thread in seconds; 0 if the kernel does not provide it."""
    waited = 0
    with suppress(OSError):
        for thread in os.listdir(THREADS):
            with suppress(OSError, ValueError, IndexError), open(f"{THREADS}/{thread}/schedstat", "rb") as file:
                waited = max(waited, int(file.read().split()[1]))
    return waited / 1e9


class _Unscaled:
    """The loss that GradScaler has multiplied last, before it did."""

    loss: Any = None


unscaled = _Unscaled()


def _follow_scaler() -> None:
    scaler: Any = torch.amp.grad_scaler.GradScaler
    original = scaler.scale

    def scale(self: Any, outputs: Any) -> Any:
        unscaled.loss = outputs if isinstance(outputs, torch.Tensor) else None
        return original(self, outputs)

    scaler.scale = scale


def install() -> None:
    """Listen; a process that only starts others never trains, and so never writes."""
    _follow_scaler()
    listeners.append(Timing())
