"""A global batch in a loop of the user: its micro-batches on this rank, pass by pass."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.optim import Optimizer

from paceline.core.errors import TaskError
from paceline.core.keys import mix
from paceline.core.units import plural
from paceline.data.tree import Tree, align_leaves, moved
from paceline.engine.batches import MicroBatch
from paceline.engine.clock import COPY, GRAD_SYNC
from paceline.engine.passes import OUTSIDE

if TYPE_CHECKING:
    from paceline.engine.own_run import Run


class Batch:
    """The global batch of a step."""

    def __init__(self, run: "Run", step: int, size: int, micro_batches: list[MicroBatch]) -> None:
        self._run, self._micro_batches = run, micro_batches
        self.step = step
        """Steps before this one, since the start of the run."""
        self.size = size
        """Samples of the global batch, over all ranks."""
        self._num_passes = 0

    @property
    def epoch(self) -> int:
        """The epoch, counted from 0."""
        return self.step // self._run.steps_per_epoch

    @property
    def ends_epoch(self) -> bool:
        """Whether it is the last batch of its epoch."""
        return (self.step + 1) % self._run.steps_per_epoch == 0

    @property
    def has_samples(self) -> bool:
        """Whether this rank computes any samples of the batch."""
        return any(each.weight for each in self._micro_batches)

    @property
    def own_samples(self) -> int:
        """Samples of this rank."""
        return sum(each.num_samples for each in self._micro_batches if each.weight)

    def total(self, count: Callable[[Tree], int | Tensor]) -> int:
        """Return the sum of a count over all micro-batches of all ranks. Collective: every rank must call it."""
        own = 0
        for each in self._micro_batches:
            found = count(each.batch) if each.weight else 0
            number = found.item() if isinstance(found, Tensor) else found
            if not isinstance(number, int) or number < 0:
                raise TaskError(
                    f"count returned {number} in step {self.step + 1}, rank {self._run.team.world.rank}",
                    hint="return how many targets count: an integer of at least 0",
                )
            own += number
        total = torch.tensor([own])
        self._run.team.add(total)
        if not total.item():
            raise TaskError(
                f"step {self.step + 1} has nothing to learn from: the count is 0 in all {plural(self.size, 'sample')}",
                hint="remove samples without targets, or use a larger --global-batch",
            )
        return int(total.item())

    def __iter__(self) -> Iterator[Tree]:
        return self.micro_batches()

    def micro_batches(self, optimizer: Optimizer | None = None) -> Iterator[Tree]:
        """Yield this rank's micro-batches in a pass for the parameters of an optimizer, or of all. Collective.

        The pass ends with the sum of the gradients of all ranks. With --exact bitwise, its micro-batches may come a
        second time, where gradients exceeded the range of their sums.
        """
        run, number_of_pass = self._run, self._num_passes
        own = run.enter_pass(self, optimizer)
        self._num_passes += 1
        for number, each in own.micro_batches(self.step, self._micro_batches, number_of_pass):
            if number == 0:
                run.meter.drop()  # the first time there is nothing to drop
            run.current, run.num_draws = each, 0
            batch = moved(align_leaves(each.batch), run.device, torch.preserve_format)
            run.clock.end_phase(COPY)
            try:
                yield batch
            finally:
                run.current = None
        run.meter.keep()
        run.leave_pass(self)
        run.clock.end_phase(GRAD_SYNC)

    def draw(self, *shape: int) -> Tensor:
        """Return normal random numbers, a row per sample of the current micro-batch."""
        run, each = self._run, self._run.current
        assert each is not None
        key = mix(run.config.seed, self.step, self._num_passes, OUTSIDE, run.num_draws)
        run.num_draws += 1
        generator = torch.Generator().manual_seed(key >> 1)
        rows = torch.randn(self.size, *shape, generator=generator)[each.first : each.first + each.num_samples]
        return rows.clone().to(run.device)
