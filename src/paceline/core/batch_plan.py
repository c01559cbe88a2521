"""The batch plan: the number of steps, and the samples of a step for each rank."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.core.config import Config
from paceline.core.errors import ConfigError
from paceline.core.units import count, plural


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchPlan:
    """The user sets the global batch; everything else follows from it and the world size."""

    num_samples: int
    global_batch: int
    accumulate: int
    world_size: int
    total_steps: int
    shards: int | None = None
    """Shards of the global batch, the same at every world size; None if the batch is not sharded."""
    shards_by_rank: tuple[int, ...] | None = None
    """Number of shards of each rank; None for equal numbers."""

    @classmethod
    def make(cls, config: Config, *, num_samples: int, world_size: int) -> "BatchPlan":
        """Compute the plan; an impossible one raises ConfigError."""
        if config.global_batch > num_samples:
            raise ConfigError(
                f"--global-batch {count(config.global_batch)} is larger than the {count(num_samples)} training samples",
                hint=f"use --global-batch {num_samples} or less",
            )
        if config.global_batch < world_size:
            raise ConfigError(
                f"--global-batch {count(config.global_batch)} is too small for {world_size} ranks",
                hint=f"use --global-batch {world_size} or more, or fewer ranks",
            )
        refuse_more_ranks_than_shards(config, world_size)
        steps_per_epoch = -(-num_samples // config.global_batch)
        return cls(
            num_samples=num_samples,
            global_batch=config.global_batch,
            accumulate=config.micro_batches,
            world_size=world_size,
            total_steps=config.epochs * steps_per_epoch if config.steps is None else config.steps,
            shards=config.fixed_shards,
        )

    @property
    def steps_per_epoch(self) -> int:
        """Steps that cover every training sample once; the last batch may be smaller."""
        return -(-self.num_samples // self.global_batch)

    def epoch_of(self, step: int) -> int:
        """The epoch, counted from 1, that the last of the first `step` steps belongs to."""
        return -(-step // self.steps_per_epoch)

    @property
    def trial_samples(self) -> int | None:
        """Samples that a run trains on when it ends within its first epoch; None for a longer run."""
        return self.total_steps * self.global_batch if self.total_steps < self.steps_per_epoch else None

    def samples_done(self, step: int) -> int:
        """Samples seen by all ranks together in the first `step` steps."""
        epochs, rest = divmod(step, self.steps_per_epoch)
        return epochs * self.num_samples + min(rest * self.global_batch, self.num_samples)

    def batch_size(self, step: int) -> int:
        """Samples in the global batch of a step, counted from the start of the run."""
        start = step % self.steps_per_epoch * self.global_batch
        return min(self.global_batch, self.num_samples - start)

    def num_shards(self, batch_size: int) -> int:
        """Return the number of shards of a batch of this size: fewer if a shard would have a single sample.

        Batch norm over vectors needs two. So a small last batch has shards of two, if all others have.
        """
        assert self.shards is not None
        least = 2 if self.global_batch >= 2 * self.shards else 1
        return min(self.shards, max(1, batch_size // least))

    def micro_batches(self, batch_size: int, rank: int) -> dict[int, range]:
        """Return a rank's micro-batches of a global batch of this size: positions in the batch by index, in order.

        Ranks get equal slices, one sample more for the first ones. Where there are fixed shards, a rank computes whole
        shards; otherwise its slice is cut into `accumulate` micro-batches. Empty ones are left out.
        """
        indices = self.micro_batch_indices(rank)
        if self.shards is not None:
            num_shards = self.num_shards(batch_size)
            found = [_slice(batch_size, index, num_shards) if index < num_shards else range(0) for index in indices]
        else:
            own = _slice(batch_size, rank, self.world_size)
            inner = [_slice(len(own), index, self.accumulate) for index in range(self.accumulate)]
            found = [range(own.start + part.start, own.start + part.stop) for part in inner]
        return {index: part for index, part in zip(indices, found, strict=True) if part}

    def micro_batch_indices(self, rank: int) -> list[int]:
        """Indices of a rank's micro-batches, counted over all ranks, in the order in which it computes them."""
        if self.shards_by_rank is not None:
            start = sum(self.shards_by_rank[:rank])
            return list(range(start, start + self.shards_by_rank[rank]))
        num_parts = self.world_size * self.accumulate if self.shards is None else self.shards
        return list(range(rank * num_parts // self.world_size, (rank + 1) * num_parts // self.world_size))

    def balanced(self, seconds: Sequence[float]) -> "BatchPlan":
        """Return the plan whose slowest rank finishes first, given the seconds that each rank needs for a shard.

        Every rank keeps a shard, so that its speed stays known. A gain of less than a tenth changes nothing: it may be
        noise.
        """
        assert self.shards is not None
        numbers = [1] * self.world_size
        for _ in range(self.shards - self.world_size):
            numbers[min(range(self.world_size), key=lambda rank: (numbers[rank] + 1) * seconds[rank])] += 1
        now = [len(self.micro_batch_indices(rank)) for rank in range(self.world_size)]
        then, before = (max(n * each for n, each in zip(counts, seconds, strict=True)) for counts in (numbers, now))
        return replace(self, shards_by_rank=tuple(numbers)) if then < 0.9 * before else self

    def __str__(self) -> str:
        per_rank = -(-self.global_batch // self.world_size)
        parts = f" in {self.accumulate} micro-batches" if self.accumulate > 1 else ""
        ranks = f" = {self.world_size} ranks × {count(per_rank)}" if self.world_size > 1 else ""
        if self.shards is not None:
            parts = f" in {self.num_shards(self.global_batch)} shards"
            ranks = f" on {self.world_size} ranks" if self.world_size > 1 else ""
        return (
            f"{count(self.global_batch)} samples/step{ranks}{parts}, {plural(self.steps_per_epoch, 'step')}/epoch, "
            f"{plural(self.total_steps, 'step')} in total"
        )


def refuse_more_ranks_than_shards(config: Config, world_size: int) -> None:
    """Refuse more ranks than shards: some would never have a shard."""
    shards = config.fixed_shards
    if shards is not None and world_size > shards:
        raise ConfigError(
            f"{world_size} ranks are more than the {shards} shards of the batch",
            hint=f"use fewer ranks, or start a new run with --shards {world_size} or more",
        )


def _slice(total: int, index: int, parts: int) -> range:
    """Return the index-th of `parts` nearly equal slices of range(total), the larger ones first."""
    base, extra = divmod(total, parts)
    start = index * base + min(index, extra)
    return range(start, start + base + (index < extra))
