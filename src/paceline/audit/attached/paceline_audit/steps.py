"""Evidence of training steps: what goes into the model, whether the replicas agree, what is evaluated."""

import time
from typing import Any

import torch
from paceline_attach import journal
from paceline_attach.callsite import callsite, callsites
from paceline_attach.listener import Listener, progress
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from . import early
from .digests import MOST_BYTES_OF_BATCH, digest, digest_all
from .gradients import Gradients, is_shard, norm_of

MOST_EVALUATIONS = 60
STEPS_IN_FULL = 3
"""Steps after which every tensor is compared; later ones compare all weights as one."""


class Steps(Listener):
    """Follows the passes and updates of this process."""

    def __init__(self, samples: Any) -> None:
        self._samples = samples
        self._passes: list[dict[str, Any]] = []
        self._input: dict[str, Any] = {}
        self._num_evaluations = 0
        self._names: dict[int, str] = {}
        self._has_stack = False
        self._began = 0.0
        self.unscaled: Any = None
        """The loss before GradScaler multiplied it."""
        self.gradients = Gradients()
        self.weights: set[int] = set()
        """Addresses of the optimizer's weights."""

    def wrapped(self, model: Any) -> None:
        """Note the kinds of layers."""
        self._names |= {id(parameter): name for name, parameter in model.module.named_parameters()}
        journal.put("layers", **_layers(model))

    def forward_starts(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, training: bool) -> None:
        """Note the input and the generator of a training pass, and the state of the model in an evaluation."""
        if torch.is_grad_enabled():
            tensor = next((value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)), None)
            drops = any(isinstance(layer, _DropoutNd) and layer.p > 0 and layer.training for layer in model.modules())
            self._input = {
                "input": None if tensor is None else digest(tensor, MOST_BYTES_OF_BATCH),
                "generator": digest(torch.get_rng_state()) if drops else None,
                "training": model.module.training,  # Lightning leaves the wrapper itself in eval mode
            }
        elif not training and self._num_evaluations < MOST_EVALUATIONS:
            self._num_evaluations += 1
            ignored = {id(p) for p in _ignored(model)}
            journal.put(
                "evaluates",
                step=progress.steps,
                weights=digest_all(p for p in model.parameters() if id(p) not in ignored),
                buffers=digest_all(_statistics(model)),
                site=callsite(3),
                training=model.module.training,
                loader=self._samples.last,
                **_layers(model),
            )

    def backward_starts(self, root: Any) -> None:
        """Note the loss."""
        if self.unscaled is not None:
            root, self.unscaled = self.unscaled, None
        loss = float(root.detach().float()) if isinstance(root, torch.Tensor) and root.numel() == 1 else None
        function = getattr(root, "grad_fn", None)
        kind = {"function": type(function).__name__, "reduction": _reduction(function)}
        self._passes.append({"loss": loss, **kind, "site": callsite(3), **self._input})
        self._input = {}
        if not self._has_stack:
            self._has_stack = True
            journal.put("training_lines", stack=callsites(3))

    def backward_ends(self) -> None:
        """Remember the gradients, to see whether the script changes them before the update."""
        self.gradients.remember()

    def step_starts(self, optimizer: Any) -> None:
        """Compare the gradients with what the passes, the scaler and clipping left."""
        self.gradients.compare(optimizer)

    def step_ends(self, optimizer: Any) -> None:
        """Note the passes of a step and the weights after it."""
        given = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        ignored = {id(p) for model in progress.wrapped_models() for p in _ignored(model)}
        parameters = [parameter for parameter in given if id(parameter) not in ignored]
        number, full = progress.steps + 1, progress.steps < STEPS_IN_FULL
        models = progress.wrapped_models()
        journal.put(
            "step",
            step=number,
            passes=self._passes,
            synced=progress.synced,
            fetches=self._samples.fetches,
            regraded=self.gradients.are_changed,
            sharded=any(map(is_shard, parameters)),
            shapes=str([tuple(p.shape) for p in parameters]) if full else None,
            samples=progress.batches,
            lr=[float(group.get("lr", 0.0)) for group in optimizer.param_groups][:4],
            optimizer=type(optimizer).__name__,
            weights=digest_all(parameters),
            tensors=[digest(parameter) for parameter in parameters] if full else None,
            names=[self._names.get(id(parameter), f"#{i}") for i, parameter in enumerate(parameters)] if full else None,
            unused=[self._names.get(id(p), "?") for p in parameters if p.requires_grad and p.grad is None][:20],
            norm=norm_of(parameters),
            buffers=digest_all(_statistics(models[0])) if models else None,
            seconds=round(time.perf_counter() - self._began, 6) if self._began else None,
            serial=early.state.serial,
        )
        self._passes = []
        self.weights = {p.data_ptr() for p in parameters if not is_shard(p)}
        self._began = time.perf_counter()

    def exiting(self) -> None:
        """Say which trained parameters have no gradient, where an exception ended the step."""
        models = progress.wrapped_models()
        if models and progress.passes:
            missing = [name for name, p in models[0].module.named_parameters() if p.requires_grad and p.grad is None]
            journal.put("without_gradient", names=missing[:20])


def _layers(model: Any) -> dict[str, int]:
    layers = list(model.modules())
    return {
        "norms": sum(isinstance(layer, _BatchNorm) for layer in layers),
        "synced_norms": sum(isinstance(layer, torch.nn.SyncBatchNorm) for layer in layers),
        "dropouts": sum(isinstance(layer, _DropoutNd) and layer.p > 0 for layer in layers),
    }


def _statistics(model: Any) -> list[Any]:
    """Return the running statistics of batch norm."""
    return [buffer for layer in model.modules() if isinstance(layer, _BatchNorm) for buffer in layer.buffers()]


def _ignored(model: Any) -> list[Any]:
    """Return the parameters that a script takes out of DistributedDataParallel on purpose."""
    names = set(getattr(model, "parameters_to_ignore", ()))
    return [parameter for name, parameter in model.module.named_parameters() if name in names] if names else []


def _reduction(function: Any) -> str:
    """Return how a loss was made of its samples, by its last operation: mean, sum, scaled or unknown."""
    name, saved = type(function).__name__, getattr(function, "_saved_reduction", None)
    if name.startswith(("Div", "Mul")):
        return "scaled"
    if saved in {1, 2}:
        return "mean" if saved == 1 else "sum"
    return "mean" if name.startswith("Mean") else "sum" if name.startswith("Sum") else "unknown"
