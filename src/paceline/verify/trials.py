"""The trials of `paceline verify`, and the first difference between a trial and the reference."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from paceline.compare.contents import Contents, compare_contents
from paceline.compare.tensors import Comparison
from paceline.core.batch_plan import refuse_more_ranks_than_shards
from paceline.core.config import Config
from paceline.core.errors import ConfigError, SettingError
from paceline.core.units import plural

ORDER_TOLERANCE = 1e-3
"""Tolerance of --exact order after a few steps, relative to the largest value of a tensor: summing gradients in another
order changes no value by more."""
TENSORS = ("weights", "buffers", "optimizer", "average")
"""Sections of a checkpoint that --exact order compares: not the integer counts of correct predictions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kill:
    """A rank to kill just before it would save `step`, and the world size of the resume."""

    number: int
    """Index from 1: several kills may be equal by chance."""
    rank: int
    step: int
    save_every: int
    resume_size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """A world size, with or without a kill and a resume."""

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
class FirstDifference:
    """The first difference between a trial and the reference, or between the ranks of one trial."""

    step: int
    part: str
    entry: Comparison
    ranks: str | None = None
    """The ranks that differ from each other within one trial."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialResult:
    """The comparison of a trial with the reference."""

    trial: Trial
    num_steps: int
    """Number of compared steps."""
    worst: float
    """The largest relative difference over these steps."""
    first: FirstDifference | None
    """None if every step is equal."""
    by_design: tuple[str, ...] = ()
    """What makes the trial different from the reference by design: --exact order does not cover it."""

    @property
    def fails(self) -> bool:
        """Tell whether the trial differs where its settings promise that it does not."""
        return self.first is not None and not self.by_design


def check_trials(settings: Config, worlds: Sequence[int], *, kills: int, tolerance: float | None) -> None:
    """Refuse world sizes, kills and tolerances that make no sense."""
    if not worlds or min(worlds) < 1 or len(set(worlds)) != len(worlds):
        raise SettingError("worlds", "must be different world sizes of at least 1, such as 1,2,4")
    refuse_more_ranks_than_shards(settings, max(worlds))
    if kills > 0 and settings.steps == 1:
        problem = "--steps 1 with --kills leaves no checkpoint to resume from"
        raise ConfigError(problem, hint="use --steps 2 or more, or --kills 0")
    if kills < 0:
        raise SettingError("kills", f"is {kills}, but must be at least 0")
    if kills == 0 and len(worlds) == 1:
        raise ConfigError("with one world size and no kill there is nothing to compare", hint="use --worlds 1,2")
    if tolerance is not None and (settings.exact == "bitwise" or not tolerance >= 0):
        raise SettingError(
            "tolerance", f"is {tolerance}, but --exact bitwise allows none, and less than 0 means nothing"
        )
    if settings.mode in {"single", "dp"}:
        raise ConfigError(f"--mode {settings.mode} is one process at any world size", hint="drop --mode")


def order_tolerance(settings: Config, tolerance: float | None) -> float | None:
    """Return the largest relative difference that --exact allows; None for bitwise."""
    if settings.exact == "bitwise":
        return None
    return ORDER_TOLERANCE if tolerance is None else tolerance


def plan_trials(worlds: Sequence[int], *, steps: int, kills: int, random: Random) -> list[Trial]:
    """Return the reference, a trial for each other world size, and `kills` trials that are killed and resumed."""
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


def reference_of(trial: Trial, worlds: Sequence[int], by_design: Sequence[str]) -> tuple[Trial, Trial]:
    """Return a trial as it can be judged, and what to compare it with.

    Where the result depends on the number of ranks by design, a killed run resumes on the same number, and is compared
    with the run that was not killed.
    """
    if not by_design or trial.kill is None:
        return trial, Trial(world_size=worlds[0])
    kill = replace(trial.kill, resume_size=trial.world_size)
    return replace(trial, kill=kill), Trial(world_size=trial.world_size)


def judge_trial(
    trial: Trial,
    steps: Sequence[int],
    read: Callable[[int], tuple[Contents, Contents]],
    *,
    tolerance: float | None,
) -> TrialResult:
    """Compare a trial with the reference, step by step, up to the first difference.

    `read` returns the reference and the trial after a step. Without a tolerance every bit of every section counts.
    """
    worst = 0.0
    for number, step in enumerate(steps, start=1):
        pair = [contents if tolerance is None else _tensors_of(contents) for contents in read(step)]
        comparison = compare_contents(*pair, tolerance=tolerance)
        worst = max(worst, comparison.worst_relative)
        if not comparison.agrees:
            part, entry = next(found for found in comparison.unequal() if _counts(found[1], tolerance))
            return TrialResult(
                trial=trial, num_steps=number, worst=worst, first=FirstDifference(step=step, part=part, entry=entry)
            )
    return TrialResult(trial=trial, num_steps=len(steps), worst=worst, first=None)


def _tensors_of(contents: Contents) -> Contents:
    parts = {name: part for name, part in contents.parts.items() if name in TENSORS}
    return Contents(name=contents.name, parts=parts, notes=contents.notes)


def _counts(entry: Comparison, tolerance: float | None) -> bool:
    return tolerance is None or entry.status != "close"
