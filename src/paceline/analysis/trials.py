"""What `paceline verify` tries, and what it finds: the first difference between a trial and the reference."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from paceline.analysis.contents import Contents, compare_contents
from paceline.analysis.tensors import Comparison
from paceline.core.units import plural

ORDER_TOLERANCE = 1e-3
"""What --exact order promises after a few steps: summing gradients in another order moves no value further than this
share of the largest value of its tensor."""
TENSORS = ("weights", "buffers", "optimizer", "average")
"""Parts of a checkpoint that --exact order compares: counts of right answers are whole numbers, never just close."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kill:
    """A rank that is killed just before it would have saved `step`, and the world size that goes on."""

    number: int
    """From 1 on: several kills may be the same by chance."""
    rank: int
    step: int
    save_every: int
    resume_size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One way to compute the same steps."""

    world_size: int
    kill: Kill | None = None

    @property
    def name(self) -> str:
        """A folder name."""
        first = f"{self.world_size}-{'rank' if self.world_size == 1 else 'ranks'}"
        return first if self.kill is None else f"kill-{self.kill.number}-of-{first}-then-{self.kill.resume_size}"

    def __str__(self) -> str:
        ranks = plural(self.world_size, "rank")
        if self.kill is None:
            return ranks
        lost = f"rank {self.kill.rank} killed in step {self.kill.step}"
        return f"{ranks}, {lost}, resumed on {plural(self.kill.resume_size, 'rank')}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Where a trial first left the reference, or its ranks each other."""

    step: int
    part: str
    entry: Comparison
    ranks: str | None = None
    """Who stands against whom, where the ranks of one trial differ."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A trial beside the reference."""

    trial: Trial
    num_steps: int
    """Steps that were compared."""
    worst: float
    """The largest relative difference of all of them."""
    first: Difference | None
    """None when every step is the same."""


def plan_trials(worlds: Sequence[int], *, steps: int, kills: int, random: Random) -> list[Trial]:
    """Return the reference, a trial for each other world size, and so many that are killed and go on elsewhere."""
    trials = [Trial(world_size=size) for size in worlds]
    for number in range(1, kills + 1):
        size = random.choice(worlds)
        others = [other for other in worlds if other != size] or [size]
        step = random.randint(min(2, steps), steps)
        every = random.choice([every for every in (1, 2, 3) if step % every == 0 and step // every >= 2] or [1])
        rank, resume_size = random.randrange(size), random.choice(others)
        kill = Kill(number=number, rank=rank, step=step, save_every=every, resume_size=resume_size)
        trials.append(Trial(world_size=size, kill=kill))
    return trials


def judge(
    trial: Trial,
    steps: Sequence[int],
    read: Callable[[int], tuple[Contents, Contents]],
    *,
    tolerance: float | None,
) -> Finding:
    """Compare a trial with the reference, step by step, up to the first difference.

    `read` gives the reference and the trial after a step. Without a tolerance every bit of every part counts.
    """
    worst = 0.0
    for number, step in enumerate(steps, start=1):
        pair = [contents if tolerance is None else _tensors_of(contents) for contents in read(step)]
        comparison = compare_contents(*pair, tolerance=tolerance)
        worst = max(worst, comparison.worst_relative)
        if not comparison.agrees:
            part, entry = next(found for found in comparison.unequal() if _counts(found[1], tolerance))
            return Finding(
                trial=trial, num_steps=number, worst=worst, first=Difference(step=step, part=part, entry=entry)
            )
    return Finding(trial=trial, num_steps=len(steps), worst=worst, first=None)


def _tensors_of(contents: Contents) -> Contents:
    parts = {name: part for name, part in contents.parts.items() if name in TENSORS}
    return Contents(name=contents.name, parts=parts, notes=contents.notes)


def _counts(entry: Comparison, tolerance: float | None) -> bool:
    return tolerance is None or entry.status != "close"
