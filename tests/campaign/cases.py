"""What a case of the campaign is, and how chance makes one."""

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal

from paceline.core.setting_types import Interval
from paceline.parallel.exact.bucket import FIRST

Moment = Literal["before a step", "in a backward pass", "after an update", "in a save"]
MOMENTS: tuple[Moment, ...] = ("before a step", "in a backward pass", "after an update", "in a save")
OWN = Path(__file__).with_name("models.py")
MODELS = {"plain": f"{OWN}:plain", "dropout": f"{OWN}:dropped", "batch norm": f"{OWN}:normed", "both": "cnn"}
"""By what they have of batch norm and dropout."""
BUCKETS = (64, 1024, FIRST)
"""Bytes. A whole model fits into the last, so that nothing leaves before the end of a backward pass."""
NUM_SAMPLES = 1293
"""Training samples of the digits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kill:
    """A rank that ends with SIGKILL, and who goes on."""

    step: int
    rank: int
    moment: Moment
    resume_size: int
    resume_workers: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One run to compare with a run on one rank."""

    number: int
    model: str
    shards: int
    world_size: int
    workers: int
    optimizer: str
    seed: int
    global_batch: int
    steps: int
    ema: float | None
    clip: float | None
    save_every: int
    bucket_bytes: int
    """Size of the first bucket; the run that the case is compared with has one bucket."""
    kill: Kill | None

    def settings(self, runs_dir: Path, workers: int) -> dict[str, Any]:
        """Return the settings of a run; only where it writes and who loads differ between the runs of a case."""
        rates = {"sgd": 0.05, "adamw": 0.002}
        return {
            "model": MODELS[self.model],
            "exact": "bitwise",
            "shards": self.shards,
            "optimizer": self.optimizer,
            "lr": rates[self.optimizer],
            "seed": self.seed,
            "global_batch": self.global_batch,
            "steps": self.steps,
            "ema": self.ema,
            "clip": self.clip,
            "save_every": Interval(self.save_every, "step"),
            "workers": workers,
            "augment": "crop1,flip",
            "threads": 1,
            "device": "cpu",
            "track": (),
            "log_every": 2,
            "keep": 20,
            "runs_dir": runs_dir,
        }

    def __str__(self) -> str:
        facts = f"W={self.world_size} V={self.shards} workers={self.workers} {self.model}, {self.optimizer}"
        facts += f", buckets of {self.bucket_bytes} bytes"
        if self.kill is None:
            return facts
        kill = self.kill
        return f"{facts}, rank {kill.rank} killed {kill.moment} ({kill.step}), resumed on W={kill.resume_size}"


def make_case(seed: int, number: int, *, killed: bool) -> Case:
    """Return the case that a seed and a number stand for."""
    random = Random(f"{seed}/{number}")
    global_batch = random.randint(150, 260)
    steps_per_epoch = -(-NUM_SAMPLES // global_batch)
    steps = steps_per_epoch + random.randint(0, 2)  # the last, smaller batch of an epoch is in every case
    save_every = random.randint(1, 3)
    world_size = random.choice([1, 2, 3, 4] if killed else [2, 3, 4])
    return Case(
        number=number,
        model=random.choice(list(MODELS)),
        shards=random.choice([4, 6, 8]),
        world_size=world_size,
        workers=random.choice([0, 1, 2]),
        optimizer=random.choice(["sgd", "adamw"]),
        seed=random.randrange(1000),
        global_batch=global_batch,
        steps=steps,
        ema=random.choice([None, None, 0.9]),
        clip=random.choice([None, None, 0.5]),
        save_every=save_every,
        bucket_bytes=random.choice(BUCKETS),
        kill=_make_kill(random, world_size, steps, save_every) if killed else None,
    )


def _make_kill(random: Random, world_size: int, steps: int, save_every: int) -> Kill:
    moment = random.choice(MOMENTS)
    step = random.randint(save_every + 1, steps - 1)  # there is a checkpoint before it
    rank = random.randrange(world_size)
    if moment == "in a save":  # which is the lead's work
        step, rank = save_every * random.randint(2, steps // save_every), 0
    others = [size for size in (1, 2, 3, 4) if size != world_size]
    return Kill(
        step=step,
        rank=rank,
        moment=moment,
        resume_size=random.choice(others),
        resume_workers=random.choice([0, 1, 2]),
    )
