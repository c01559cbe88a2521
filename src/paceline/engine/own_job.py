"""The job of a loop of the user: what its run folder, records and checkpoints need to know."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from paceline.core.batch_plan import BatchPlan
from paceline.core.config import Config
from paceline.core.errors import TaskError
from paceline.core.metrics import Sums
from paceline.core.schedule import LrPlan
from paceline.core.units import count
from paceline.engine.capture import replicated_tensors
from paceline.engine.own_parts import OwnParts
from paceline.engine.own_pass import OwnPasses
from paceline.engine.progress import Progress
from paceline.engine.scoring import Scoring, Tally
from paceline.models.summary import num_parameters
from paceline.parallel.buffers import average_buffers, own_buffers
from paceline.parallel.device import describe_device, describe_threads
from paceline.parallel.exact.determinism import fingerprint
from paceline.parallel.modes import ModeChoice, choose_mode
from paceline.parallel.team import Team
from paceline.records.environment import cpu_name
from paceline.records.folder import RunFolder
from paceline.tasks.task import Metric, Task


class OwnTask(Task):
    """Stands for the losses of run.backward and the numbers of run.log, which become known during the run."""

    def __init__(self, metrics: Mapping[str, Metric] | None = None) -> None:
        self._known = dict(metrics or {})
        self.metrics = self._known

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """Never called: the loop computes its losses."""
        raise NotImplementedError

    def add_ratio(self, name: str) -> None:
        """Take (sum, count) pairs of this name as a metric."""
        self._known.setdefault(name, Metric(sums=_never))


def _never(_outputs: Any, _targets: Any) -> Any:
    raise NotImplementedError


class OwnMeter:
    """Collects the losses and logged numbers of this rank."""

    def __init__(self) -> None:
        self._tally, self._samples = Tally(), 0
        self._attempt: list[tuple[str, tuple[Any, ...]]] = []
        self.names: set[str] = set()
        """The names since the last record."""

    def add(self, name: str, total: Tensor | float, number: Tensor | int) -> None:
        """Take a sum and its count, which count once the pass is complete."""
        value = total.detach().double() if isinstance(total, Tensor) else float(total)
        self._attempt.append((name, (value, int(number))))

    def drop(self) -> None:
        """Forget what was added since `keep`: the pass is computed again."""
        self._attempt.clear()

    def keep(self) -> None:
        """Count what was added."""
        for name, parts in self._attempt:
            self._tally.add(name, parts)
            self.names.add(name)
        self._attempt.clear()

    def add_samples(self, number: int) -> None:
        """Count samples."""
        self._samples += number

    def take(self) -> Sums:
        """Return the sums since the last call."""
        sums, self._samples = Sums(parts=self._tally.take(), samples=self._samples), 0
        return sums


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnJob:
    """The objects of a run with a loop of the user."""

    config: Config
    device: torch.device
    plan: BatchPlan
    lr_plan: LrPlan
    choice: ModeChoice
    parts: OwnParts
    passes: OwnPasses
    task: OwnTask
    scoring: Scoring
    code: dict[str, str]
    task_name: str = "own loop"

    @property
    def model(self) -> nn.Module:
        """All modules, each under its name."""
        return self.parts.root

    @property
    def num_devices(self) -> int:
        """Number of devices of all ranks."""
        return self.plan.world_size

    @property
    def num_parameters(self) -> int:
        """Number of trained parameters."""
        return sum(each.numel() for own in self.parts.trained.values() for each in own.values())

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients."""
        return sum(each.nbytes for own in self.parts.trained.values() for each in own.values())

    def average_buffers(self, team: Team) -> None:
        """Average the buffers over the ranks before they are used or saved. Collective: every rank must call it."""
        if self.config.exact != "bitwise":
            average_buffers(self.parts.root, team)

    def replicated(self, *, averaged: bool) -> dict[str, Tensor]:
        """Return the tensors that must have the same bits on every rank; `averaged`: buffers were just averaged."""
        own = () if averaged or self.plan.shards is not None else own_buffers(self.parts.root)
        return replicated_tensors(self.parts.root, self.parts.optimizers, {}, own_buffers=own)

    def unreadable(self, _team: Team) -> None:
        """Return None: the data are the user's."""
        return

    def unused_parameters(self) -> list[str]:
        """Return the parameters that have never had a gradient: optimizers with memory keep none of them."""
        return [
            name
            for key, optimizer in self.parts.optimizers.items()
            if optimizer.state
            for name, parameter in self.parts.trained[key].items()
            if not optimizer.state.get(parameter)
        ]

    def capture(self, progress: Progress) -> dict[str, Any]:
        """Return the contents of a checkpoint, which do not depend on the world size."""
        bitwise = self.config.exact == "bitwise"
        return self.parts.capture() | self.passes.capture() | {
            "ema": None,
            "progress": progress.as_dict(),
            "config": self.config.as_dict(),
            "code": self.code,
            "data_digests": {},
            "fingerprint": fingerprint(self.config, self.device) if bitwise else None,
        }  # fmt: skip


def make_own_job(
    parts: OwnParts, team: Team, saved: Mapping[str, Any] | None, *, code: dict[str, str], num_samples: int
) -> OwnJob:
    """Return the job of the parts that were set up, over data of this many samples. Collective."""
    config, task = parts.config, OwnTask()
    plan = BatchPlan.make(config, num_samples=num_samples, world_size=team.world.size)
    return OwnJob(
        config=config,
        device=team.device,
        plan=plan,
        lr_plan=LrPlan.make(config, plan),
        choice=choose_mode(config, team.world, devices=1),
        parts=parts,
        passes=OwnPasses(parts, config, team, saved),
        task=task,
        scoring=Scoring(task),
        code=code,
    )


def own_header(job: OwnJob, team: Team, folder: RunFolder) -> Iterator[str]:
    """Yield the lines of the header."""
    config, world = job.config, team.world
    ranks = "1 rank" if world.size == 1 else f"{world.size} ranks, started by {world.launcher}"
    parts = {name: count(num_parameters(module)) for name, module in job.parts.root.named_children()}
    yield f"run      {folder.path}"
    threads = describe_threads(team.num_sharing)
    yield f"device   {describe_device(team.device, cpu_name())}, {threads}, {config.precision}"
    yield f"world    {ranks}"
    yield f"loop     {config.loop}: {', '.join(f'{name} with {number} parameters' for name, number in parts.items())}"
    yield f"data     {count(job.plan.num_samples)} samples"
    yield f"batch    {job.plan}"
    if config.exact == "bitwise":
        yield f"exact    bitwise: the same bits at every world size from 1 to {job.plan.shards}"


def check_names(names: set[str] | None, team: Team, step: int) -> None:
    """Refuse ranks that logged other names; None on a rank without samples. Collective: every rank must call it."""
    everyone = team.gather(None if names is None else sorted(names))
    known = sorted({name for own in everyone if own is not None for name in own})
    for rank, own in enumerate(everyone):
        missing = [] if own is None else [name for name in known if name not in own]
        if missing:
            raise TaskError(
                f"the scores changed at step {step}: {', '.join(missing)} is missing on rank {rank}",
                hint="log the same names every time, on every rank",
            )
