"""What happens inside the ranks of a case: training, planned deaths, and faults that the checker must catch."""

import io
import os
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.engine import checkpoint, loop
from paceline.engine.loop import Training
from paceline.parallel.exact import bucket, reducer
from paceline.parallel.exact.bucket import Bucket
from paceline.parallel.team import Team
from tests.campaign.cases import Kill
from tests.ranks.runs import train_rank

FLIPPED_STEP = 3


def train_case(
    team: Team,
    settings: dict[str, Any],
    resume: Path | None = None,
    kill: Kill | None = None,
    fault: str | None = None,
    bucket_bytes: int = bucket.FIRST,
) -> Path:
    """Train as one rank, and return the run folder."""
    warnings.simplefilter("ignore")
    doom = nullcontext() if kill is None or kill.rank != team.world.rank else dying(kill)
    planted = nullcontext() if fault is None else FAULTS[fault](team)
    limits = replaced(bucket, "FIRST", bucket_bytes), replaced(bucket, "LARGEST", bucket_bytes)
    with doom, planted, limits[0], limits[1], redirect_stdout(io.StringIO()):
        return train_rank(team, settings, resume).folder


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Put another thing in the place of one while the block runs."""
    honest = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, honest)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying(kill: Kill) -> Any:
    """Return the context in which this process ends at the moment that was chosen."""
    if kill.moment == "in a save":
        return replaced(checkpoint, "write_json", dying_writer(checkpoint.write_json, kill.step))
    if kill.moment == "in a backward pass":
        return replaced(Training, "backward", dying_backward(Training.backward, kill.step))
    return replaced(Training, "train_step", dying_step(Training.train_step, kill))


def dying_step(honest: Callable[..., float], kill: Kill) -> Callable[..., float]:
    def train_step(self: Training, step: int, parts: list[loop.MicroBatch]) -> float:
        if kill.moment == "before a step" and step == kill.step:
            die()
        lr = honest(self, step, parts)
        if step == kill.step:
            die()
        return lr

    return train_step


def dying_backward(honest: Callable[..., Any], step: int) -> Callable[..., Any]:
    def backward(self: Training, part: loop.MicroBatch) -> Any:
        assert self.job.reducer is not None
        if self.progress.step == step and self.job.reducer._num_left == 0:  # the last shard, whose gradients leave
            parameters = list(self.job.model.parameters())
            parameters[len(parameters) // 2].register_hook(lambda _gradient: die())
        return honest(self, part)

    return backward


def dying_writer(honest: Callable[..., None], step: int) -> Callable[..., None]:
    """Die when the checkpoint has its name but not yet its manifest."""

    def write_json(path: Path, value: Any) -> None:
        if value["step"] == step:
            die()
        honest(path, value)

    return write_json


class FloatBucket(Bucket):
    """Sums as stock DDP does: in floating point, each rank its own shards, then gloo's all-reduce."""

    def begin(self) -> None:
        super().begin()
        self.floats = torch.zeros(self.size, dtype=self.fixed.dtype)

    def add(self, gradients: Mapping[str, Tensor], *, is_last: bool) -> None:
        self.floats += self._collect(gradients)
        super().add(gradients, is_last=is_last)

    def give(self, targets: Mapping[str, Tensor], seen: Tensor) -> None:
        super().give(targets, seen)
        if dist.is_initialized():
            dist.all_reduce(self.floats)
        for slot in self.slots:
            targets[slot.name].grad = slot.view(self.floats).to(slot.dtype)


def floating_point(_team: Team) -> Any:
    return replaced(reducer, "Bucket", FloatBucket)


def two_threads(_team: Team) -> Any:
    honest = Training.train_step

    def train_step(self: Training, step: int, parts: list[loop.MicroBatch]) -> float:
        torch.set_num_threads(2)
        try:
            return honest(self, step, parts)
        finally:
            torch.set_num_threads(1)

    return replaced(Training, "train_step", train_step)


def own_stream(team: Team) -> Any:
    """Let every rank consume random numbers of its own."""
    torch.manual_seed(team.world.rank)
    return replaced(loop, "seed_generators", lambda _bits, _device, **_which: None)


def flipped_bit(team: Team) -> Any:
    honest = Training.train_step

    def train_step(self: Training, step: int, parts: list[loop.MicroBatch]) -> float:
        lr = honest(self, step, parts)
        if step + 1 == FLIPPED_STEP and team.world.rank == 1:
            weight = next(iter(self.job.model.parameters())).detach().view(-1)
            weight[:1].view(torch.int32).bitwise_xor_(1)
        return lr

    return replaced(Training, "train_step", train_step)


def unweighted(team: Team) -> Any:
    """Average the means of unequal shares, as scripts on plain DDP do."""
    honest = Training.slices

    def places(self: Training, batch_size: int) -> list[loop.BatchSlice]:
        found = honest(self, batch_size)
        return [part._replace(weight=1 / (team.world.size * len(found))) for part in found]

    return replaced(Training, "slices", places)


FAULTS: dict[str, Callable[[Team], Any]] = {
    "floating-point sums": floating_point,
    "two threads": two_threads,
    "randomness consumed per rank": own_stream,
    "one flipped bit on one rank": flipped_bit,
    "unweighted ragged batch": unweighted,
}
