"""What an attached part may listen to, and the progress of the training that all parts share."""

import weakref
from dataclasses import dataclass, field
from typing import Any


class Listener:
    """Called at the seams of torch, on the main thread of a process, outermost calls only."""

    def joined(self) -> None:
        """The process has joined a process group."""

    def wrapping(self, module: Any) -> None:
        """DistributedDataParallel is about to wrap a module."""

    def wrapped(self, model: Any) -> None:
        """DistributedDataParallel has wrapped a module."""

    def fetching(self, iterator: Any) -> None:
        """A batch is wanted; may raise StopIteration to end the epoch."""

    def fetched(self, iterator: Any, batch: Any) -> None:
        """A batch has arrived; None at the end of the epoch."""

    def copying(self) -> None:
        """A tensor is about to be copied to a device."""

    def copied(self) -> None:
        """The copy has returned."""

    def forward_starts(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, training: bool) -> None:
        """The forward pass of the wrapped model starts."""

    def forward_ends(self, *, training: bool) -> None:
        """The forward pass has returned."""

    def backward_starts(self, root: Any) -> None:
        """A backward pass starts at this tensor."""

    def gradients_computed(self) -> None:
        """This rank has computed all gradients; averaging them may still take time."""

    def backward_ends(self) -> None:
        """The backward pass has returned."""

    def step_starts(self, optimizer: Any) -> None:
        """An optimizer is about to update the weights."""

    def updated(self, optimizer: Any) -> None:
        """An optimizer has updated the weights; not every update ends a step."""

    def step_ends(self, optimizer: Any) -> None:
        """The main optimizer has ended a step: `progress` has counted it."""

    def collective_starts(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The script calls a collective."""

    def collective_ends(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The collective has returned."""

    def saving(self, value: Any, target: Any) -> None:
        """torch.save is called."""

    def saved(self) -> None:
        """torch.save has returned."""

    def exiting(self) -> None:
        """The process ends in order."""


@dataclass
class ScriptProgress:
    """The training of this process."""

    steps: int = 0
    passes: int = 0
    """Backward passes since the last step."""
    synced: int = 0
    """Those in which gradients were averaged by DistributedDataParallel."""
    batches: list[int] = field(default_factory=list)
    """Samples of each of these passes."""
    samples: int = 0
    """Samples of the last forward pass."""
    in_forward: bool = False
    """Whether a wrapped model was called since the last backward pass."""
    models: list["weakref.ref[Any]"] = field(default_factory=list)
    optimizer: int | None = None
    """Identity of the optimizer whose updates count as steps."""

    def wrapped_models(self) -> list[Any]:
        """Return the DistributedDataParallel models that still exist."""
        return [model for reference in self.models if (model := reference()) is not None]

    def next_step(self) -> None:
        """Count a step."""
        self.steps += 1
        self.passes, self.synced, self.batches = 0, 0, []


progress = ScriptProgress()
listeners: list[Listener] = []
