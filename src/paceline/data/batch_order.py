"""Paceline's order of samples as a batch sampler for any DataLoader, without the rest of Paceline."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from torch.utils.data import Sampler

from paceline.core.batch_plan import BatchPlan
from paceline.core.errors import ConfigError
from paceline.data.order import epoch_order


@dataclass(kw_only=True, eq=False)
class Order(Sampler[list[int]]):
    """A batch sampler whose global batches are the same at every world size, and whose state is one number: `step`.

    Each iteration yields this rank's slices of the global batches from `step` to the end of its epoch. The training
    loop counts: `order.step += 1` after each batch. The sampler cannot, since the workers of a DataLoader read ahead.
    """

    num_samples: int
    global_batch: int
    """Samples per step over all ranks. The slices of two ranks differ by one sample at most."""
    seed: int = 0
    rank: int = 0
    world_size: int = 1
    step: int = 0
    """Steps done since the start of training: the state to save and to restore, at any world size."""
    drop_last: bool = False
    """Leave out the last batch of an epoch if it is smaller than the others."""
    _plan: BatchPlan = field(init=False, repr=False)
    _read_from: int | None = field(init=False, repr=False, default=None)
    """The step from which the newest iteration began, once it has reached the end of its epoch."""

    def __post_init__(self) -> None:
        self._check_arguments()
        whole = self.num_samples // self.global_batch * self.global_batch
        self._plan = BatchPlan(
            num_samples=whole if self.drop_last else self.num_samples,
            global_batch=self.global_batch,
            accumulate=1,
            world_size=self.world_size,
            total_steps=0,  # a sampler has no end
        )
        smallest = self.batch_size(self._plan.steps_per_epoch - 1)
        if smallest < self.world_size:
            raise ConfigError(
                f"the last batch of an epoch has {smallest} of {self.num_samples} samples, "
                f"too few for {self.world_size} ranks",
                hint="use drop_last=True, or another global_batch",
            )

    def _check_arguments(self) -> None:
        if not 1 <= self.global_batch <= self.num_samples:
            raise ConfigError(
                f"global_batch={self.global_batch} does not fit num_samples={self.num_samples}",
                hint=f"use global_batch from 1 to {self.num_samples}",
            )
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(
                f"rank={self.rank} is not one of {self.world_size} ranks",
                hint="pass rank=dist.get_rank(), world_size=dist.get_world_size()",
            )
        if self.step < 0:
            raise ConfigError(f"step={self.step} is negative", hint="pass the number of steps done")

    @property
    def epoch(self) -> int:
        """Epoch of the next step, counted from 0."""
        return self.step // self._plan.steps_per_epoch

    def __len__(self) -> int:
        """Return the number of steps in an epoch, those done included."""
        return self._plan.steps_per_epoch

    def batch_size(self, step: int) -> int:
        """Return the samples of all ranks in the global batch of a step; only the last of an epoch may have fewer."""
        return self._plan.batch_size(step)

    def __iter__(self) -> Iterator[list[int]]:
        if self.step == self._read_from:
            raise ConfigError(
                f"the epoch of step {self.step} was read to its end, but order.step is still {self.step}",
                hint="add order.step += 1 after each batch",
            )
        return self._batches(self.step)

    def _batches(self, first: int) -> Iterator[list[int]]:
        """Yield this rank's samples of each step from `first` to the end of the epoch."""
        epoch, start = divmod(first, len(self))
        order = epoch_order(seed=self.seed, epoch=epoch, num_samples=self.num_samples)
        for step in range(start, len(self)):
            (own,) = self._plan.micro_batches(self.batch_size(step), self.rank).values()
            begin = step * self.global_batch
            yield order[begin + own.start : begin + own.stop].tolist()
        self._read_from = first

    def state_dict(self) -> dict[str, int]:
        """Return the state: the number of steps done."""
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue after the steps of a state that was saved at any world size."""
        self.step = state["step"]
        self._read_from = None
