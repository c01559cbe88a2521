"""What a case of the campaign is, and how chance makes one."""

from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Literal

from paceline.core.setting_types import Interval
from paceline.parallel.gradient_buckets import FIRST
from tests.campaign import subjects
from tests.campaign.modules import parts_of
from tests.campaign.parts import NOT_SHARDED, Part

Moment = Literal["on a signal", "before a step", "in a backward pass", "after an update", "in a save"]
KILLS: tuple[Moment, ...] = ("before a step", "in a backward pass", "after an update", "in a save")
MODULES = Path(__file__).with_name("modules.py")
SUBJECTS = Path(subjects.__file__)
MODULE = "module"
BUCKETS = (64, 1024, FIRST)
"""Bytes. A whole model fits into the last, so that nothing leaves before the end of a backward pass."""
NUM_TRAINED = 113
"""Training samples that the splits leave of those of modules.py."""
RATES = {"sgd": 0.05, "adam": 0.002, "adamw": 0.002}


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a run or a part of it runs."""

    mode: str
    world_size: int
    workers: int
    balance: bool
    """Whether shards move between ranks, by planted times that change at every step."""

    def __str__(self) -> str:
        moving = ", shards move" if self.balance else ""
        return f"{self.mode} W={self.world_size} workers={self.workers}{moving}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Interruption:
    """A rank that is killed with SIGKILL or asked to stop, and where the run resumes."""

    step: int
    rank: int
    moment: Moment
    resume: Place


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One run to compare with a run on one rank."""

    number: int
    campaign: int
    """The seed of the campaign, which the module follows from, too."""
    subject: str
    """What is trained: a random module with image classification, another task, or a loop of a user."""
    place: Place
    shards: int
    optimizer: str
    seed: int
    global_batch: int
    steps: int
    ema: float | None
    clip: float | None
    save_every: int
    bucket_bytes: int
    """Size of the first bucket; the run that the case is compared with has one bucket."""
    interruption: Interruption | None

    @property
    def parts(self) -> list[type[Part]]:
        """The parts of the module."""
        return [] if self.subject != MODULE else parts_of(self.campaign, self.number)

    @property
    def refused(self) -> str | None:
        """What a refusal must name; None where there must be none."""
        return next((part.refused for part in self.parts if part.refused is not None), None)

    def settings(self, runs_dir: Path, place: Place) -> dict[str, Any]:
        """Return the settings of a run; only where it runs and writes differs between the runs of a case."""
        usual = {
            "log_every": 2,
            "balance": place.balance,
            "optimizer": self.optimizer,
            "lr": RATES[self.optimizer],
            "ema": self.ema,
            "clip": self.clip,
        }
        if self.subject in subjects.LOOPS:
            own: dict[str, Any] = {"loop": f"{SUBJECTS}:{self.subject}", "log_every": 1}
        elif self.subject in subjects.TASKS:
            data, model, task = subjects.TASKS[self.subject]
            task = f"{SUBJECTS}:{task}" if hasattr(subjects, task) else task
            own = usual | {"data": f"{SUBJECTS}:{data}", "model": f"{SUBJECTS}:{model}", "task": task}
        else:
            module = f"{MODULES}:module_{self.campaign}_{self.number}"
            own = usual | {"model": module, "data": f"{MODULES}:samples"}
        return own | {
            "exact": "bitwise",
            "mode": place.mode,
            "shards": self.shards,
            "seed": self.seed,
            "global_batch": self.global_batch,
            "steps": self.steps,
            "save_every": Interval(self.save_every, "step"),
            "workers": place.workers,
            "threads": 1,
            "device": "cpu",
            "track": (),
            "keep": 20,
            "runs_dir": runs_dir,
        }

    def __str__(self) -> str:
        trained = ", ".join(part.__name__ for part in self.parts) or self.subject
        facts = f"{self.place} V={self.shards}, {trained}; {self.optimizer}"
        facts += f", buckets of {self.bucket_bytes} bytes"
        if self.interruption is None:
            return facts
        end = self.interruption
        return f"{facts}, rank {end.rank} ended {end.moment} ({end.step}), resumed on {end.resume}"


ALONE = Place(mode="single", world_size=1, workers=0, balance=False)


def make_case(seed: int, number: int, subject: str | None = None) -> Case:
    """Return the case that a seed and a number stand for; with a subject, that one in place of the drawn one."""
    drawn = Random(f"subject {seed}/{number}")
    others = drawn.choice([*subjects.TASKS, *subjects.LOOPS])
    return _fitted(_module_case(seed, number), subject or drawn.choice([MODULE, others]))


def _fitted(case: Case, subject: str) -> Case:
    """Return the case with another subject, and without what that one does not support."""
    is_loop = subject in subjects.LOOPS
    if subject == MODULE:
        return case

    def fit(place: Place) -> Place:
        mode = "ddp" if place.mode == "fsdp" and (is_loop or subject in subjects.NOT_SHARDED) else place.mode
        return replace(place, mode=mode, balance=place.balance and not is_loop and subject != "contrastive")

    end = case.interruption
    end = None if end is None else replace(end, resume=fit(end.resume))
    return replace(case, subject=subject, place=fit(case.place), ema=None if is_loop else case.ema, interruption=end)


def _module_case(seed: int, number: int) -> Case:
    """Return the case of a random module."""
    random = Random(f"{seed}/{number}")
    modes = ["ddp"] if any(part in NOT_SHARDED for part in parts_of(seed, number)) else ["ddp", "fsdp"]
    shards = random.choice([2, 4, 6, 8])
    place = _make_place(random, modes, shards)
    global_batch = random.choice([size for size in range(2 * shards, 46) if NUM_TRAINED % size != 1])
    steps = -(-NUM_TRAINED // global_batch) + random.randint(0, 2)  # with the last, smaller batch of an epoch
    save_every = random.randint(1, 2)
    interruption = _make_interruption(random, place, steps, save_every, _make_place(random, modes, shards))
    return Case(
        number=number,
        campaign=seed,
        subject=MODULE,
        place=place,
        shards=shards,
        optimizer=random.choice(list(RATES)),
        seed=random.randrange(1000),
        global_batch=global_batch,
        steps=steps,
        ema=random.choice([None, None, 0.9]),
        clip=random.choice([None, None, 0.5]),
        save_every=save_every,
        bucket_bytes=random.choice(BUCKETS),
        interruption=interruption,
    )


def _make_place(random: Random, modes: list[str], shards: int) -> Place:
    world_size = random.choice([size for size in (1, 2, 2, 3, 3, 4, 5, 6) if size <= shards])
    mode = "single" if world_size == 1 else random.choice(modes)
    workers = random.choice([0] * 9 + [1])
    return Place(
        mode=mode, world_size=world_size, workers=workers, balance=mode == "ddp" and random.choice([True, False])
    )


def _make_interruption(random: Random, place: Place, steps: int, save_every: int, resume: Place) -> Interruption | None:
    kind = random.choices(["none", "signal", "kill"], weights=[5, 4, 1])[0]
    if kind == "none" or steps < 2 * save_every + 2:
        return None
    step, rank = random.randint(save_every + 1, steps - 2), random.randrange(place.world_size)
    moment = "on a signal" if kind == "signal" else random.choice(KILLS)
    if moment == "in a save":  # which is the lead's work
        step, rank = save_every * random.randint(2, steps // save_every), 0
    return Interruption(step=step, rank=rank, moment=moment, resume=resume)
