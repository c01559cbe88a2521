"""A gradient pass: the micro-batches of a step in turn, until their gradient is known. Every loop computes with it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from paceline.core.config import Config
from paceline.core.errors import TaskError
from paceline.core.keys import mix
from paceline.data.seeding import seed_generators
from paceline.engine.batches import MicroBatch
from paceline.engine.clock import FORWARD, GRAD_SYNC, Clock
from paceline.parallel.buffers import StepContext, without_statistics
from paceline.parallel.exact.reducer import Reducer

OUTSIDE = 0x0075 << 32
"""In place of a micro-batch: random numbers outside of a pass, equal on all ranks."""
NOTHING = nullcontext()


class GradientPass:
    """The gradient of some parameters, summed over micro-batches and ranks.

        for number, micro_batch in gradients.micro_batches(step, micro_batches):
            gradients.backward(objective, clock)
        gradients.apply(optimizer, clip)

    With --exact bitwise all micro-batches come a second time where gradients exceeded the range of their sums.
    """

    reducer: Reducer | None = None
    """Sums gradients and buffer changes with --exact bitwise."""
    torch_only = False
    """Whether all random numbers of forward passes are torch's."""
    seeds_outside = True
    """Whether code outside of the pass may draw random numbers: they are equal on all ranks."""

    def __init__(self, name: str, model: nn.Module, config: Config, scaler: torch.amp.GradScaler) -> None:
        self.name = name
        self.scaler = scaler
        self._model = model
        self._config = config
        self._device = next(model.parameters()).device

    def context(self, num_micro_batches: int) -> AbstractContextManager[StepContext]:
        """Return the context of a step; its `micro_batch(weight)` is entered around every micro-batch."""
        raise NotImplementedError

    def syncing(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Return the context of a micro-batch: the last of this rank synchronises the gradient."""
        raise NotImplementedError

    def micro_batches(
        self, step: int, parts: Sequence[MicroBatch], number_of_pass: int = 0
    ) -> Iterator[tuple[int, MicroBatch]]:
        """Yield this rank's micro-batches with their numbers, each with its random numbers and buffers. Collective."""
        is_exact, last = False, len(parts) - 1
        while not is_exact:
            with self.context(len(parts)) as context:
                for number, part in enumerate(parts):
                    self.seed(step, part.position, number_of_pass)
                    # the reducer resets the state of the model itself
                    counts = part.weight or self.reducer is not None
                    with (
                        self.syncing(is_last=number == last),
                        context.micro_batch(part.weight),
                        NOTHING if counts else without_statistics(self._model),
                    ):
                        yield number, part
            is_exact = context.is_exact
        if self.seeds_outside:
            self.seed(step, OUTSIDE, number_of_pass)

    def seed(self, step: int, position: int, number_of_pass: int) -> None:
        """Seed the random generators for a micro-batch."""
        key = (number_of_pass,) if number_of_pass else ()
        bits = mix(self._config.seed, step, position, *key)
        seed_generators(bits, self._device, torch_only=self.torch_only)

    def backward(self, objective: Tensor, clock: Clock) -> None:
        """Add the gradient of a micro-batch."""
        clock.end_phase(FORWARD)
        if not objective.requires_grad:
            raise TaskError(
                f"the loss does not depend on any parameter of {self.name}",
                hint="was it computed under no_grad, or detached?",
            )
        scaled = self.scaler.scale(objective)
        clock.watch(scaled)
        scaled.backward()
        clock.end_phase(GRAD_SYNC)

    def apply(self, optimizer: Optimizer, parameters: Mapping[str, nn.Parameter], clip: float | None) -> None:
        """Clip the gradient of some parameters, and update them. Collective with shards of parameters."""
        if clip is not None:
            self.scaler.unscale_(optimizer)
            if self.reducer is None:
                torch.nn.utils.clip_grad_norm_(parameters.values(), clip)
            else:
                self.reducer.clip(clip, parameters)
        self.scaler.step(optimizer)
        optimizer.zero_grad(set_to_none=True)
