"""The facts and functions of a job that its run folder, records and checkpoints need, whoever wrote its loop."""

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from paceline.core.batch_plan import BatchPlan
from paceline.core.config import Config
from paceline.engine.progress import Progress
from paceline.engine.scoring import Scoring
from paceline.parallel.modes import ModeChoice
from paceline.parallel.team import Team


class RecordedJob(Protocol):
    """A job that is recorded and saved in a run folder."""

    @property
    def config(self) -> Config:
        """The settings."""
        ...

    @property
    def device(self) -> torch.device:
        """The device of this rank."""
        ...

    @property
    def plan(self) -> BatchPlan:
        """The steps and their samples."""
        ...

    @property
    def choice(self) -> ModeChoice:
        """How the ranks share the work."""
        ...

    @property
    def scoring(self) -> Scoring:
        """How sums become scores."""
        ...

    @property
    def model(self) -> nn.Module:
        """All that is trained."""
        ...

    @property
    def num_devices(self) -> int:
        """Number of devices of all ranks."""
        ...

    @property
    def num_parameters(self) -> int:
        """Number of trained parameters."""
        ...

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients."""
        ...

    def average_buffers(self, team: Team, /) -> None:
        """Average the buffers over the ranks before they are used or saved. Collective: every rank must call it."""
        ...

    def replicated(self, *, averaged: bool) -> dict[str, Tensor]:
        """Return the tensors that must have the same bits on every rank; `averaged`: buffers were just averaged."""
        ...

    def unreadable(self, team: Team, /) -> list[str] | None:
        """Return the samples that could not be read; None where nobody knows. Collective: every rank must call it."""
        ...

    def unused_parameters(self) -> list[str]:
        """Return the parameters that have never had a gradient."""
        ...

    def capture(self, progress: Progress) -> dict[str, Any]:
        """Return the contents of a checkpoint."""
        ...
