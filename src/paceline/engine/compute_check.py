"""Finds a rank that computes wrong gradients: another rank computes one of its micro-batches again."""

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.core.errors import ConfigError, RanksError
from paceline.core.keys import mix
from paceline.core.units import count, ranks_text
from paceline.core.world import World
from paceline.data.seeding import seed_generators
from paceline.data.tree import align_leaves, moved
from paceline.engine.batches import BatchSlice, load_steps
from paceline.engine.job import Job
from paceline.engine.objective import named_losses
from paceline.parallel.module_state import Snapshot
from paceline.parallel.replicas import short_hash
from paceline.parallel.team import Team

TOLERANCE = 1e-3
"""Relative difference of norms and sums of gradients that kernels may make, without --exact bitwise."""
FLOOR = 0.1
"""Fraction of the largest norm to which gradients with smaller norms are compared: a true gradient of 0 is noise."""
AUTOCAST_FLOOR = 1.0
"""The same for bf16 and fp16, whose noise is larger."""
NUM_SHOWN = 3
Digest = tuple[float, ...]
Digests = dict[str, Digest]
"""What a rank tells of each gradient."""


class Doubt(NamedTuple):
    """Two ranks that computed different gradients from the same samples and weights, and where they differ."""

    first: int
    second: int
    names: list[str]


class ComputeCheck:
    """Computes a micro-batch of each rank twice: there, and on another rank."""

    def __init__(self, job: Job, team: Team) -> None:
        self._job, self._team = job, team
        self._is_exact = job.config.exact == "bitwise"
        self._num_checks = 0

    def check(self, step: int, slices: Sequence[Sequence[BatchSlice]]) -> None:
        """Compute, compare, and raise an error that names the rank if gradients differ. Collective.

        `slices` are those of every rank in this step, which has been done.
        """
        doubts = self._compare(step, slices)
        if doubts and self._team.world.size > 2:
            doubts += self._compare(step, slices)  # by other pairs: the rank that is wrong is in most of them
        if doubts:
            hosts = self._team.gather(self._team.world.host)
            raise RanksError(
                describe_doubts(doubts, step + 1, hosts),
                hint="test the memory and the processor of that host, exclude it, and resume; the newest checkpoint "
                "may have wrong updates since the last check; to check every step: --check-compute 1",
            )

    def _compare(self, step: int, slices: Sequence[Sequence[BatchSlice]]) -> list[Doubt]:
        """Return the pairs of ranks that compute different gradients; other pairs each time. Collective."""
        size, rank = self._team.world.size, self._team.world.rank
        distance = 1 + self._num_checks % (size - 1)
        self._num_checks += 1
        own, theirs = (self._gradients(step, slices[each]) for each in (rank, (rank + distance) % size))
        told = self._team.gather((own, theirs))
        floor = FLOOR if self._job.config.precision == "fp32" else AUTOCAST_FLOOR
        return find_doubts(told, distance, tolerance=0.0 if self._is_exact else TOLERANCE, floor=floor)

    def _gradients(self, step: int, slices: Sequence[BatchSlice]) -> Digests | None:
        """Return what describes the gradients of the first micro-batch; None for a rank without samples.

        Leaves no trace: neither in the gradients of the step nor in buffers and frozen parameters.
        """
        if not slices:
            return None
        job, part = self._job, slices[0]
        config = dataclasses.replace(job.config, workers=0)
        ((_, (loaded,)),) = load_steps(
            job.splits.train, job.plan, range(step, step + 1), slices=[part], last_slices=[part], config=config,
            device=job.device,
        )  # fmt: skip
        before = Snapshot(job.model, with_frozen=True)
        seed_generators(mix(config.seed, step, part.position), job.device)
        batch = moved(align_leaves(loaded.batch), job.device, job.memory_format)
        with job.autocast():
            outputs, targets = job.task.forward(job.model, batch), job.task.targets(batch)
            losses = named_losses(job.task.loss(outputs, targets))
        trained = {name: value for name, value in job.model.named_parameters() if value.requires_grad}
        # no hook of ddp or of the reducer sees these
        found = torch.autograd.grad(list(losses.values()), list(trained.values()), allow_unused=True)
        before.restore()
        return {
            name: self._digest(gradient) for name, gradient in zip(trained, found, strict=True) if gradient is not None
        }

    def _digest(self, gradient: Tensor) -> Digest:
        if self._is_exact:
            return (float(short_hash(gradient) >> 12),)  # 52 bits, which a float holds
        values = gradient.detach().double()
        return (
            values.norm().item(),
            values.sum().item(),
            values.flatten()[:: max(1, values.numel() // 8)].sum().item(),
        )


def find_doubts(
    told: Sequence[tuple[Digests | None, Digests | None]], distance: int, *, tolerance: float, floor: float = FLOOR
) -> list[Doubt]:
    """Return the pairs of ranks that differ, from what each computed for itself and for the rank at a distance.

    Differences up to `tolerance` times the norm are accepted, and up to `tolerance` times `floor` times the largest.
    """
    doubts = []
    for rank, (_, theirs) in enumerate(told):
        other = (rank + distance) % len(told)
        own = told[other][0]
        if own is None or theirs is None:
            continue
        norms = (digest[0] for each in (own, theirs) for digest in each.values())
        least = floor * max((norm for norm in norms if math.isfinite(norm)), default=0.0)
        names = [
            name
            for name in own.keys() | theirs.keys()
            if not _equal(own.get(name), theirs.get(name), tolerance, least=least)
        ]
        if names:
            doubts.append(Doubt(other, rank, sorted(names)))
    return doubts


def _equal(first: Digest | None, second: Digest | None, tolerance: float, *, least: float) -> bool:
    """Compare two gradients; `least` is the smallest norm that the tolerance refers to."""
    if first is None or second is None or tolerance == 0:
        return first == second
    if not (math.isfinite(first[0]) and math.isfinite(second[0])):
        return math.isfinite(first[0]) == math.isfinite(second[0])  # a run that diverges does so on both
    scale = max(first[0], second[0], least)
    return all(abs(a - b) <= tolerance * scale for a, b in zip(first, second, strict=True))


def describe_doubts(doubts: Sequence[Doubt], step: int, hosts: Sequence[str]) -> str:
    """Return the sentence that names the rank that differs from all others, or all ranks that may be wrong."""
    names = sorted({name for doubt in doubts for name in doubt.names})
    shown = ", ".join(names[:NUM_SHOWN]) + (f" and {count(len(names) - NUM_SHOWN)} more" if names[NUM_SHOWN:] else "")
    involved = Counter(rank for doubt in doubts for rank in {doubt.first, doubt.second})
    most = max(involved.values())
    suspects = sorted(rank for rank, times in involved.items() if times == most)
    where = " and ".join(f"rank {rank} on {hosts[rank]}" for rank in suspects)
    if len(suspects) == 1:
        others = ranks_text(sorted(set(involved) - set(suspects)))
        return (
            f"{where} computes wrong gradients: {others} got others from the same samples and weights in step "
            f"{count(step)} ({shown})"
        )
    return (
        f"{where} compute different gradients from the same samples and weights in step {count(step)} ({shown}), so "
        "at least one of them is wrong"
    )


def refuse_unchecked(job: Job, world: World) -> None:
    """Refuse --check-compute where no other rank can compute a micro-batch alone."""
    if job.config.check_compute is None:
        return
    why: Mapping[str, bool] = {
        "needs at least two ranks": world.size == 1,
        "needs the whole model on every rank, which --mode fsdp shards": job.choice.mode == "fsdp",
        f"cannot repeat the loss of {job.task_name}, which compares the samples of all ranks": job.task.whole_batch,
        "cannot repeat a micro-batch with --batch-norm sync, which depends on all ranks": (
            job.config.batch_norm == "sync"
        ),
    }
    problem = next((text for text, applies in why.items() if applies), None)
    if problem is not None:
        raise ConfigError(f"--check-compute {job.config.check_compute} {problem}", hint="drop --check-compute")
