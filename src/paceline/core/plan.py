"""The batch plan: how many steps there are, and which images of a step belong to whom."""

from collections.abc import Iterator
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

    @classmethod
    def make(cls, config: Config, *, images: int, world_size: int) -> "BatchPlan":
        """Work out the plan, or say why there is none."""
        if config.global_batch > images:
            raise ConfigError(
                f"--global-batch {count(config.global_batch)} is larger than the {count(images)} training images",
                hint=f"use --global-batch {images} or less",
            )
        steps_per_epoch = -(-images // config.global_batch)
        return cls(
            images=images,
            global_batch=config.global_batch,
            accumulate=config.accumulate,
            world_size=world_size,
            total_steps=config.epochs * steps_per_epoch if config.steps is None else config.steps,
        )

    @property
    def steps_per_epoch(self) -> int:
        """Steps that cover every training image once; the last batch may be smaller."""
        return -(-self.images // self.global_batch)

    @property
    def total_epochs(self) -> int:
        """Epochs begun in the whole run."""
        return -(-self.total_steps // self.steps_per_epoch)

    def images_done(self, step: int) -> int:
        """Images seen by all ranks together in the first `step` steps."""
        epochs, rest = divmod(step, self.steps_per_epoch)
        return epochs * self.images + min(rest * self.global_batch, self.images)

    def batch_images(self, step: int) -> int:
        """Images in the global batch of a step, counted from the start of the run."""
        start = step % self.steps_per_epoch * self.global_batch
        return min(self.global_batch, self.images - start)

    def share(self, step: int, rank: int) -> range:
        """Places of the global batch of a step that a rank computes: equal parts, one more for the first ranks."""
        return _part(self.batch_images(step), rank, self.world_size)

    def micro_batches(self, share: range) -> Iterator[range]:
        """The parts in which a rank computes its share; empty ones are left out."""
        for part in range(self.accumulate):
            inner = _part(len(share), part, self.accumulate)
            if inner:
                yield range(share.start + inner.start, share.start + inner.stop)

    def __str__(self) -> str:
        per_rank = -(-self.global_batch // self.world_size)
        parts = f" in {self.accumulate} parts" if self.accumulate > 1 else ""
        ranks = f" = {self.world_size} ranks × {count(per_rank)}" if self.world_size > 1 else ""
        return (
            f"{count(self.global_batch)} images a step{ranks}{parts}, {plural(self.steps_per_epoch, 'step')} an epoch, "
            f"{plural(self.total_steps, 'step')} in all"
        )


def _part(total: int, index: int, parts: int) -> range:
    """Return the index-th of `parts` nearly equal slices of range(total), the larger ones first."""
    base, extra = divmod(total, parts)
    start = index * base + min(index, extra)
    return range(start, start + base + (index < extra))
