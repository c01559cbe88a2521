"""What happens inside the ranks of a case: training, planned deaths, and faults that the checker must catch."""

import io
import os
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from random import Random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.core.config import Config
from paceline.core.start import Start
from paceline.core.stopping import StopRequest
from paceline.engine import balance, checkpoint_folder, loop, passes
from paceline.engine.balance import Balance
from paceline.engine.loop import Training
from paceline.engine.objective import Objective
from paceline.engine.own_start import load_loop, started_on
from paceline.engine.passes import GradientPass
from paceline.engine.rank import Startup
from paceline.engine.run_steps import RunSteps
from paceline.parallel import gradient_buckets
from paceline.parallel.exact import reducer
from paceline.parallel.exact.bucket import Bucket
from paceline.parallel.team import Team
from paceline.records.folder import RunFolder
from tests.campaign.cases import Interruption
from tests.ranks.runs import StopAt, train_rank

FLIPPED_STEP = 3
NUM_SHARDS = 4
"""Shards of the case into which faults are planted."""


def train_case(
    team: Team,
    settings: dict[str, Any],
    resume: Path | None = None,
    end: Interruption | None = None,
    fault: str | None = None,
    bucket_bytes: int = gradient_buckets.FIRST,
) -> Path:
    """Train as one rank, and return the run folder."""
    warnings.simplefilter("ignore")
    is_signal = end is not None and end.moment == "on a signal"
    doom = nullcontext() if end is None or is_signal or end.rank != team.world.rank else dying(end)
    stop_rank, stop_at = (end.rank, end.step) if end is not None and is_signal else (None, 0)
    planted = nullcontext() if fault is None else FAULTS[fault](team)
    with ExitStack() as stack:
        for limit in ("FIRST", "LARGEST"):
            stack.enter_context(replaced(gradient_buckets, limit, bucket_bytes))
            stack.enter_context(replaced(balance, "EVERY" if limit == "LARGEST" else limit, 1))
        stack.enter_context(replaced(Balance, "_per_shard", planted_seconds))
        for context in (doom, planted, redirect_stdout(io.StringIO())):
            stack.enter_context(context)
        if "loop" in settings:
            return run_loop(team, settings, resume, stop_at if team.world.rank == stop_rank else None)
        return train_rank(team, settings, resume, stop_rank, stop_at).folder


def run_loop(team: Team, settings: dict[str, Any], resume: Path | None, stop_at: int | None) -> Path:
    """Train with a loop of a user as one rank, and return the run folder."""
    stop = StopRequest() if stop_at is None else StopAt(stop_at)
    startup = Startup(Config(**settings), team, Start())
    with started_on(startup, stop, None if resume is None else RunFolder(resume)) as run:
        load_loop(settings["loop"])(run)
    assert run.result is not None
    return run.result.folder


def planted_seconds(self: Balance, _seconds: float, _num_shards: int) -> float:
    """Return the time per shard of a rank whose speed changes at every step."""
    return Random(f"{self._step}/{self._team.world.rank}").choice([1.0, 2.0, 5.0])


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


def dying(end: Interruption) -> Any:
    """Return the context in which this process ends at the moment that was chosen."""
    if end.moment == "in a save":
        return replaced(checkpoint_folder, "write_manifest", dying_writer(checkpoint_folder.write_manifest, end.step))
    if end.moment == "in a backward pass":
        return dying_in_backward(end)
    if end.moment == "before a step":
        return replaced(GradientPass, "micro_batches", dying_pass(GradientPass.micro_batches, end.step))
    return replaced(RunSteps, "record", dying_record(RunSteps.record, end.step))


@contextmanager
def dying_in_backward(end: Interruption) -> Iterator[None]:
    """End in a backward pass; where shards move, a rank may have none in a step: then after its update."""
    with (
        replaced(GradientPass, "micro_batches", noting_step(GradientPass.micro_batches)),
        replaced(GradientPass, "backward", dying_backward(GradientPass.backward, end.step)),
        replaced(RunSteps, "record", dying_record(RunSteps.record, end.step)),
    ):
        yield


def dying_pass(honest: Callable[..., Any], last: int) -> Callable[..., Any]:
    def micro_batches(self: GradientPass, step: int, *more: Any) -> Any:
        if step == last:
            die()
        return honest(self, step, *more)

    return micro_batches


def noting_step(honest: Callable[..., Any]) -> Callable[..., Any]:
    def micro_batches(self: GradientPass, step: int, *more: Any) -> Any:
        vars(self)["step_now"] = step
        return honest(self, step, *more)

    return micro_batches


def dying_record(honest: Callable[..., None], last: int) -> Callable[..., None]:
    """Die after an update, before anything is known of it."""

    def record(self: RunSteps, step: int, *more: Any, **named: Any) -> None:
        if step == last:
            die()
        honest(self, step, *more, **named)

    return record


def dying_backward(honest: Callable[..., Any], step: int) -> Callable[..., Any]:
    def backward(self: GradientPass, *words: Any) -> None:
        assert self.reducer is not None
        if vars(self)["step_now"] != step or self.reducer._num_left > 0:
            honest(self, *words)
            return
        trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        countdown = iter(range(len(trained) // 2, -1, -1))
        for parameter in trained:  # any of them may be unused
            parameter.register_hook(countdown_hook(countdown))
        honest(self, *words)  # the last shard, whose gradients leave
        die()  # fewer than half have a gradient

    return backward


def countdown_hook(countdown: Iterator[int]) -> Callable[[Tensor], None]:
    def count(_gradient: Tensor) -> None:
        if next(countdown) == 0:
            die()

    return count


def dying_writer(honest: Callable[..., None], step: int) -> Callable[..., None]:
    """Die when the tensors of a checkpoint are written, but not yet its manifest."""

    def write_manifest(folder: Path, values: Mapping[str, Any]) -> None:
        if values["step"] == step:
            die()
        honest(folder, values)

    return write_manifest


class FloatBucket(Bucket):
    """Sums as stock DDP does: in floating point, each rank its own shards, then gloo's all-reduce."""

    def begin(self, *, wide: bool) -> None:
        super().begin(wide=wide)
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
    return replaced(passes, "seed_generators", lambda _bits, _device, **_which: None)


def flipped_bit(team: Team) -> Any:
    honest = Training.train_step

    def train_step(self: Training, step: int, parts: list[loop.MicroBatch]) -> float:
        lr = honest(self, step, parts)
        if step + 1 == FLIPPED_STEP and team.world.rank == 1:
            weight = next(iter(self.job.model.parameters())).detach().view(-1)
            weight[:1].view(torch.int32).bitwise_xor_(1)
        return lr

    return replaced(Training, "train_step", train_step)


def unweighted(_team: Team) -> Any:
    """Average the means of unequal shards, as scripts on plain DDP do."""
    honest = Objective.weighted

    def weighted(self: Objective, losses: Mapping[str, Tensor], number: int) -> Tensor:
        return honest(self, losses, number) * (self._batch_size / NUM_SHARDS / max(1, self._samples[number]))

    return replaced(Objective, "weighted", weighted)


FAULTS: dict[str, Callable[[Team], Any]] = {
    "floating-point sums": floating_point,
    "two threads": two_threads,
    "randomness consumed per rank": own_stream,
    "one flipped bit on one rank": flipped_bit,
    "unweighted ragged batch": unweighted,
}
