"""What a loop of the user trains: modules, optimizers and anything else with a state, each under a name."""

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from paceline.core.config import Config
from paceline.core.errors import RunError, TaskError
from paceline.engine.capture import (
    capture_optimizer,
    capture_other_buffers,
    make_missing_buffers,
    receive_tensors,
    restore_model,
    restore_optimizer,
    restore_other_buffers,
)
from paceline.engine.model_setup import check_fit
from paceline.engine.saved_tensor import SavedTensor
from paceline.parallel.modes import convert_batch_norm
from paceline.parallel.replicas import check_replicas
from paceline.parallel.team import Team

P = TypeVar("P")


class OwnParts:
    """The parts that were set up so far."""

    def __init__(self, config: Config, team: Team, saved: Mapping[str, Any] | None) -> None:
        """`saved` is the checkpoint to restore the parts from."""
        self.config, self._team, self._saved = config, team, saved
        self.root = nn.Module()
        """Holds every module under its name."""
        self.optimizers: dict[str, Optimizer] = {}
        self.others: dict[str, Any] = {}
        self.trained: dict[str, dict[str, nn.Parameter]] = {}
        """The parameters of each optimizer, by their names in the root."""

    @property
    def names(self) -> list[str]:
        """The names of all parts, in the order of their kinds."""
        return [*(name for name, _ in self.root.named_children()), *self.optimizers, *self.others]

    def add(self, name: str, part: P) -> P:
        """Add a part, give it its state of the checkpoint, and return it. Collective: every rank must call it."""
        if not name.isidentifier() or hasattr(nn.Module(), name):
            raise TaskError(f'"{name}" cannot be the name of a part', hint="use letters, digits and _, such as net")
        if name in self.names:
            raise TaskError(f"two parts are called {name}", hint="give each part its own name")
        if isinstance(part, nn.Module):
            return self._add_module(name, part)
        if isinstance(part, Optimizer):
            self._add_optimizer(name, part)
        elif hasattr(part, "state_dict") and hasattr(part, "load_state_dict"):
            self.others[name] = part
            self._restore_other(name, part)
        else:
            raise TaskError(
                f"{name} is a {type(part).__name__}, which has no state_dict and load_state_dict",
                hint="set up modules, optimizers, and objects with a state",
            )
        return part

    def _add_module(self, name: str, module: Any) -> Any:
        module = convert_batch_norm(module.to(self._team.device), self.config, self._team)
        mismatches = check_replicas(module.state_dict().items(), self._team)
        if mismatches:
            other = next(rank for group in mismatches[0].groups for rank in group if 0 not in group)
            raise TaskError(
                f"rank {other} starts {name} with other weights than rank 0",
                hint="draw them with torch, after start_run, and not by rank",
            )
        self.root.add_module(name, module)
        if self._holds(name):
            assert self._saved is not None
            state, start = self._saved["model"], f"{name}."
            own = {key.removeprefix(start): value for key, value in state.items() if key.startswith(start)}
            make_missing_buffers(module, own) if own and any(True for _ in module.parameters()) else None
            check_fit(module, own, name=name)
            restore_model(module, own, self._team)
            others = (self._saved.get("buffers") or {}).get("model", {})
            held = {key.removeprefix(start): value for key, value in others.items() if key.startswith(start)}
            if held:
                restore_other_buffers(module, held, self._team)
        return module

    def _add_optimizer(self, name: str, optimizer: Optimizer) -> None:
        names = {id(value): key for key, value in self.root.named_parameters()}
        own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if any(id(parameter) not in names for parameter in own):
            raise TaskError(
                f"{name} has parameters of no module that was set up",
                hint='call run.setup("net", net) first, and make the optimizer from the module that it returns',
            )
        for other, taken in self.trained.items():
            shared = {id(each) for each in taken.values()}.intersection(map(id, own))
            if shared:
                raise TaskError(
                    f"{name} and {other} both have {names[shared.pop()]}", hint="give each parameter to one optimizer"
                )
        self.optimizers[name] = optimizer
        self.trained[name] = {names[id(each)]: each for each in own if each.requires_grad}
        if self._holds(name):
            assert self._saved is not None
            restore_optimizer(optimizer, self.root, self._saved["optimizer"], self._team)
            for group, settings in zip(optimizer.param_groups, self._saved["parts"][name], strict=True):
                group.update(self._received(settings))

    def _restore_other(self, name: str, part: Any) -> None:
        if self._holds(name):
            assert self._saved is not None
            part.load_state_dict(self._received(self._saved["parts"][name]))

    def _received(self, value: Any) -> Any:
        """Return plain values with the lead's tensors in them. Collective: every rank must call it."""
        if isinstance(value, torch.Tensor | SavedTensor):
            return receive_tensors({"": value}, self._team)[""]
        if isinstance(value, dict):
            return {key: self._received(each) for key, each in value.items()}
        return type(value)(map(self._received, value)) if isinstance(value, list | tuple) else value

    def _holds(self, name: str) -> bool:
        return self._saved is not None and name in self._saved["parts"]

    def check_complete(self) -> None:
        """Refuse a loop that sets up no optimizer, or other parts than the checkpoint has."""
        if not self.optimizers:
            raise TaskError(
                "the loop has set up no optimizer before run.batches",
                hint='call run.setup("opt", optimizer) first',
            )
        saved = self.names if self._saved is None else list(self._saved["parts"])
        missing = [name for name in self.names if name not in saved]
        extra = [name for name in saved if name not in self.names]
        if missing or extra:
            what = f"no {', '.join(missing)}" if missing else f"{', '.join(extra)} is not set up here"
            raise RunError(
                f"the checkpoint has {', '.join(saved)}, but {what}",
                hint="set up the same names as before, or start another run",
            )

    def capture(self) -> dict[str, Any]:
        """Return the contents of a checkpoint: of modules and optimizers under the names of their parameters."""
        memories: dict[str, Any] = {}
        parts: dict[str, Any] = {name: None for name, _ in self.root.named_children()}
        for name, optimizer in self.optimizers.items():
            memories |= capture_optimizer(optimizer, self.root)
            parts[name] = [_without_parameters(group) for group in optimizer.param_groups]
        parts |= {name: part.state_dict() for name, part in self.others.items()}
        buffers = capture_other_buffers(self.root)
        return {
            "model": self.root.state_dict(),
            "optimizer": memories,
            "buffers": {"model": buffers} if buffers else None,
            "parts": parts,
        }


def _without_parameters(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}
