"""The batch plan: how many steps there are, and which images of a step belong to whom."""

from dataclasses import dataclass

from paceline.core.config import Config
from paceline.core.errors import ConfigError
from paceline.core.units import count, plural


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchPlan:
    """The global batch is what the user sets; everything else follows from it and the world size."""

    images: int
    global_batch: int
    accumulate: int
    world_size: int
    total_steps: int
    shards: int | None = None
    """Fixed parts of the global batch that are computed apart at every world size; None where there are none."""

    @classmethod
    def make(cls, config: Config, *, images: int, world_size: int) -> "BatchPlan":
        """Work out the plan, or say why there is none."""
        if config.global_batch > images:
            raise ConfigError(
                f"--global-batch {count(config.global_batch)} is larger than the {count(images)} training images",
                hint=f"use --global-batch {images} or less",
            )
        if config.global_batch < world_size:
            raise ConfigError(
                f"--global-batch {count(config.global_batch)} is too small for {world_size} ranks: one would be idle",
                hint=f"use --global-batch {world_size} or more, or fewer ranks",
            )
        refuse_more_ranks_than_shards(config, world_size)
        steps_per_epoch = -(-images // config.global_batch)
        return cls(
            images=images,
            global_batch=config.global_batch,
            accumulate=config.accumulate,
            world_size=world_size,
            total_steps=config.epochs * steps_per_epoch if config.steps is None else config.steps,
            shards=config.fixed_shards,
        )

    @property
    def steps_per_epoch(self) -> int:
        """Steps that cover every training image once; the last batch may be smaller."""
        return -(-self.images // self.global_batch)

    def epoch_of(self, step: int) -> int:
        """The epoch, counted from 1, that the last of the first `step` steps belongs to."""
        return -(-step // self.steps_per_epoch)

    @property
    def trial_images(self) -> int | None:
        """Images that a run trains on when it ends within its first epoch; None for a longer run."""
        return self.total_steps * self.global_batch if self.total_steps < self.steps_per_epoch else None

    def images_done(self, step: int) -> int:
        """Images seen by all ranks together in the first `step` steps."""
        epochs, rest = divmod(step, self.steps_per_epoch)
        return epochs * self.images + min(rest * self.global_batch, self.images)

    def batch_images(self, step: int) -> int:
        """Images in the global batch of a step, counted from the start of the run."""
        start = step % self.steps_per_epoch * self.global_batch
        return min(self.global_batch, self.images - start)

    def num_shards(self, images: int) -> int:
        """Fixed shards of a batch of so many images: fewer where one would have a single image.

        Batch norm over vectors cannot work with that. So a small last batch has shards of two, if all others have.
        """
        assert self.shards is not None
        least = 2 if self.global_batch >= 2 * self.shards else 1
        return min(self.shards, max(1, images // least))

    @property
    def middle(self) -> int:
        """The shard at which the batch's second half begins."""
        return (self.shards or 0) // 2

    def parts(self, images: int, rank: int) -> dict[int, range]:
        """Places of a global batch of so many images that a rank computes, by the number of the part and in its order.

        Ranks take equal shares, one image more for the first ones. Where there are fixed shards, a rank takes whole
        ones; otherwise it computes its share in `accumulate` parts. Empty parts are left out.
        """
        numbers = self.part_numbers(rank)
        if self.shards is not None:
            num_shards = self.num_shards(images)
            found = [_part(images, number, num_shards) if number < num_shards else range(0) for number in numbers]
        else:
            share = _part(images, rank, self.world_size)
            inner = [_part(len(share), part, self.accumulate) for part in range(self.accumulate)]
            found = [range(share.start + part.start, share.start + part.stop) for part in inner]
        return {number: part for number, part in zip(numbers, found, strict=True) if part}

    def part_numbers(self, rank: int) -> list[int]:
        """Numbers of the parts that a rank computes, counted over all ranks, in the order in which it does.

        Shards are computed from the ends of the batch to its middle, as their gradients are added up.
        """
        num_parts = self.world_size * self.accumulate if self.shards is None else self.shards
        numbers = range(rank * num_parts // self.world_size, (rank + 1) * num_parts // self.world_size)
        if self.shards is None:
            return list(numbers)
        return [n for n in numbers if n < self.middle] + [n for n in reversed(numbers) if n >= self.middle]

    def __str__(self) -> str:
        per_rank = -(-self.global_batch // self.world_size)
        parts = f" in {self.accumulate} micro-batches" if self.accumulate > 1 else ""
        ranks = f" = {self.world_size} ranks × {count(per_rank)}" if self.world_size > 1 else ""
        if self.shards is not None:
            parts = f" in {self.num_shards(self.global_batch)} shards"
            ranks = f" on {self.world_size} ranks" if self.world_size > 1 else ""
        return (
            f"{count(self.global_batch)} images a step{ranks}{parts}, {plural(self.steps_per_epoch, 'step')} an epoch, "
            f"{plural(self.total_steps, 'step')} in all"
        )


def refuse_more_ranks_than_shards(config: Config, world_size: int) -> None:
    """Refuse ranks that would have no shard in any step."""
    shards = config.fixed_shards
    if shards is not None and world_size > shards:
        raise ConfigError(
            f"{world_size} ranks cannot share {shards} shards",
            hint=f"use fewer ranks, or begin a run with --shards {world_size} or more",
        )


def _part(total: int, index: int, parts: int) -> range:
    """Return the index-th of `parts` nearly equal slices of range(total), the larger ones first."""
    base, extra = divmod(total, parts)
    start = index * base + min(index, extra)
    return range(start, start + base + (index < extra))
