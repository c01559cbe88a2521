"""A pass of a loop of the user: the micro-batches of a step for the parameters of one optimizer, or of all."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from paceline.core.config import Config
from paceline.core.errors import TaskError
from paceline.core.units import plural
from paceline.engine.batches import MicroBatch
from paceline.engine.capture import receive_tensors
from paceline.engine.clock import Clock
from paceline.engine.own_parts import OwnParts
from paceline.engine.passes import NOTHING, GradientPass
from paceline.parallel.buffers import PLAIN_STEP, GhostStep, StepContext
from paceline.parallel.exact.bucket import Slot
from paceline.parallel.exact.reducer import Reducer
from paceline.parallel.gradient_sum import GradientSum
from paceline.parallel.module_state import ModuleState
from paceline.parallel.team import Team


class OwnPass(GradientPass):
    """The gradients of some optimizers of a loop of the user."""

    def __init__(
        self, name: str, optimizers: Mapping[str, Optimizer], parts: OwnParts, config: Config, team: Team
    ) -> None:
        scaler = torch.amp.GradScaler(team.device.type, enabled=config.precision == "fp16")
        super().__init__(name, parts.root, config, scaler)
        self.optimizers = optimizers
        self._parts, self._team = parts, team
        self.parameters = {key: each for own in optimizers for key, each in parts.trained[own].items()}
        self._others = [
            each for own, all_own in parts.trained.items() if own not in optimizers for each in all_own.values()
        ]
        self.sums: GradientSum | None = None
        if config.exact == "bitwise":
            with self.only_own_gradients():
                slots = {key: Slot.of(key, each) for key, each in self.parameters.items()}
                state = ModuleState(parts.root)
                self.reducer = Reducer(parts.root, config, team, slots, state, overlaps=False)
        else:
            self.sums = GradientSum(self.parameters, team)
        self.calls: list[int] = []
        """Calls of run.backward in each micro-batch of this step so far."""
        self.waiting: set[str] = set()
        """The optimizers whose gradient was not applied yet."""

    @contextmanager
    def only_own_gradients(self) -> Iterator[None]:
        """Let only the parameters of this pass require gradients."""
        for each in self._others:
            each.requires_grad = False
        try:
            yield
        finally:
            for each in self._others:
                each.requires_grad = True

    def context(self, num_micro_batches: int) -> AbstractContextManager[StepContext]:
        """Return the context of a step; its `micro_batch(weight)` is entered around every micro-batch."""
        self.calls = []
        if self.reducer is not None:
            return self.reducer.step(num_micro_batches)
        assert self.sums is not None
        self.sums.begin()
        if self._config.batch_norm == "ghost":
            return GhostStep(self._parts.root, self._team, scale=1.0)
        return PLAIN_STEP

    def syncing(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Return the context of a micro-batch."""
        self.calls.append(0)
        if is_last and self.sums is not None:
            self.sums.arm()
        return NOTHING

    def micro_batches(
        self, step: int, parts: Sequence[MicroBatch], number_of_pass: int = 0
    ) -> Iterator[tuple[int, MicroBatch]]:
        """Yield this rank's micro-batches, and then sum the gradient over the ranks. Collective."""
        with self.only_own_gradients():
            for number, part in super().micro_batches(step, parts, number_of_pass):
                yield number, part
                self._check_micro_batch(number, len(parts), step)
            self._finish(step)

    def backward(self, objective: Tensor, clock: Clock) -> None:
        """Add the gradient of a loss; a micro-batch may have several."""
        super().backward(objective, clock)
        self.calls[-1] += 1

    def _check_micro_batch(self, number: int, of: int, step: int) -> None:
        """Refuse a micro-batch that ended without run.backward."""
        if self.calls[-1] == 0:
            raise TaskError(
                f"micro-batch {number + 1} of {of} of step {step + 1} had no run.backward",
                hint="every micro-batch needs one, not loss.backward(); multiply the loss by 0 to leave one out",
            )

    def _finish(self, step: int) -> None:
        """Sum the gradient over the ranks, and check that all have computed it alike. Collective."""
        own = max(self.calls, default=None)
        if self.sums is not None:
            agree = self.sums.finish(own)
        else:
            numbers = torch.tensor([own or 0, (own or 0) ** 2, own is not None])
            self._team.add(numbers)
            agree = int(numbers[0]) ** 2 == int(numbers[1] * numbers[2])
        if not agree:
            self._refuse_other_calls(own, step)
        self.waiting = set(self.optimizers)

    def _refuse_other_calls(self, own: int | None, step: int) -> None:
        """Name the ranks that called backward another number of times. Collective: every rank must call it."""
        everyone = self._team.gather(own)
        first = next((rank for rank, calls in enumerate(everyone) if calls is not None), 0)
        for rank, calls in enumerate(everyone):
            if calls is not None and calls != everyone[first]:
                raise TaskError(
                    f"rank {rank} called run.backward {plural(calls, 'time')} per micro-batch in step {step + 1}, "
                    f"rank {first} {plural(everyone[first] or 0, 'time')}",
                    hint="do not decide by rank or by the values of one rank",
                )

    def update(self, name: str, clip: float | None) -> None:
        """Clip the gradient, update with an optimizer of this pass, and clear its gradients. Collective."""
        self.apply(self.optimizers[name], self._parts.trained[name], clip)
        self.waiting.discard(name)
        if not self.waiting:
            self.scaler.update()

    def capture(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return the state of the scaler, and the magnitudes of bitwise sums, by name."""
        held = {} if self.reducer is None else self.reducer.capture()
        return self.scaler.state_dict(), {f"{self.name}:{key}": value for key, value in held.items()}

    def restore(self, scaler: Mapping[str, Any] | None, magnitudes: Mapping[str, Tensor]) -> None:
        """Restore what `capture` returned."""
        if scaler:
            self.scaler.load_state_dict(dict(scaler))
        start = f"{self.name}:"
        own = {key.removeprefix(start): value for key, value in magnitudes.items() if key.startswith(start)}
        if self.reducer is not None and own:
            self.reducer.restore(own)


class OwnPasses:
    """The passes of a run, each made when it is first used."""

    def __init__(self, parts: OwnParts, config: Config, team: Team, saved: Mapping[str, Any] | None) -> None:
        """Receive the lead's state of earlier passes. Collective: every rank must call it."""
        self._parts, self._config, self._team = parts, config, team
        self._made: dict[str, OwnPass] = {}
        saved = saved or {}
        self._scalers: dict[str, Any] = dict(saved.get("scaler") or {})
        self._magnitudes = receive_tensors(saved.get("magnitudes") or {}, team)

    def get(self, optimizer: Optimizer | None) -> OwnPass:
        """Return the pass of an optimizer, or of all."""
        found = {name: each for name, each in self._parts.optimizers.items() if optimizer in (None, each)}
        if not found:
            raise TaskError("micro_batches got an optimizer that was not set up", hint="call run.setup on it first")
        name = "+".join(found)
        if name not in self._made:
            self._made[name] = OwnPass(name, found, self._parts, self._config, self._team)
            self._made[name].restore(self._scalers.get(name), self._magnitudes)
        return self._made[name]

    @property
    def waiting(self) -> list[str]:
        """The optimizers whose gradient was not applied yet."""
        return [name for each in self._made.values() for name in sorted(each.waiting)]

    def holding(self, name: str) -> OwnPass | None:
        """Return the pass that has a gradient for an optimizer."""
        return next((each for each in self._made.values() if name in each.waiting), None)

    def capture(self) -> dict[str, Any]:
        """Return the state of all passes; those that this start has not used yet keep theirs."""
        scalers, magnitudes = dict(self._scalers), dict(self._magnitudes)
        for name, each in self._made.items():
            scalers[name], own = each.capture()
            magnitudes |= own
        return {"scaler": scalers, "magnitudes": magnitudes or None}


def name_of(optimizer: Optimizer, parts: OwnParts) -> str:
    """Return the name of an optimizer."""
    for name, each in parts.optimizers.items():
        if each is optimizer:
            return name
    raise TaskError("run.step got an optimizer that was not set up", hint="call run.setup on it first")


def never_applied(name: str, step: int) -> TaskError:
    """Return the error for a gradient that is still waiting for its optimizer."""
    return TaskError(
        f"the gradient of {name} was never applied in step {step + 1}", hint=f"call run.step({name}) after its loop"
    )


def left_early(own: OwnPass, step: int) -> TaskError:
    """Return the error for a loop over micro-batches that has not come to its end."""
    return TaskError(
        f"the loop over the micro-batches of {own.name} was left early in step {step + 1}",
        hint="do not break out of it; multiply a loss by 0 to leave a micro-batch out",
    )
