"""The weights that a run starts from: --init takes them from a file or another run, tensor by tensor, by name."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from paceline.core.errors import CheckpointError, ConfigError, ModelError
from paceline.core.units import plural
from paceline.engine.capture import describe_state, restore_model
from paceline.engine.job import Job
from paceline.engine.weight_files import locate, read_weights
from paceline.parallel.team import Team

NUM_SHOWN = 3
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Match:
    """How the tensors of a file fit a model."""

    found: dict[str, Tensor]
    """The tensors that the model takes, under its names."""
    head: tuple[str, ...]
    """Tensors of the last layer, which --head new draws from the seed."""
    missing: tuple[str, ...]
    """Tensors of the model that the file does not have: they are drawn from the seed."""
    left_out: tuple[str, ...]
    """Tensors of the file that the model does not have."""

    def __str__(self) -> str:
        total = len(self.found) + len(self.head) + len(self.missing)
        parts = [f"{len(self.found)} of {plural(total, 'tensor')}"]
        parts += [f"new head: {_some(self.head)}"] if self.head else []
        parts += [f"missing, drawn from the seed: {_some(self.missing)}"] if self.missing else []
        parts += [f"left out of the file: {_some(self.left_out)}"] if self.left_out else []
        return "; ".join(parts)


def load_initial_weights(job: Job, team: Team) -> str:
    """Fill the model and its averages from the file of --init, and return a report. Collective.

    Only the lead needs to see the file.
    """
    config = job.config
    assert config.init is not None
    state: dict[str, Tensor] = {}
    report = ""
    if team.is_lead:
        path = _located(config.init, config.runs_dir)
        shapes = {name: tuple(tensor.shape) for name, tensor in job.model.state_dict().items()}
        head = head_names(job.model, config.model) if config.head == "new" else ()
        match = match_weights(shapes, read_weights(path), head=head, names=(str(path), config.model))
        state, report = match.found, f"--init {path}: {match}"
    state = describe_state(state, team)
    for model in [job.model, *(average.model for average in job.averages)]:
        restore_model(model, state, team)
    return team.from_lead(report)


def _located(text: str, runs_dir: Path) -> Path:
    path = Path(text).expanduser()
    try:
        return locate(path, runs_dir=runs_dir, checkpoint="best")
    except CheckpointError as cause:
        raise ConfigError(f"--init {text}: {cause.message}", hint=cause.hint) from cause


def head_names(model: nn.Module, name: str) -> tuple[str, ...]:
    """Return the names of the tensors of the last layer: the classifier that a model names, or its last parameters."""
    named = getattr(model, "get_classifier", None)  # timm
    modules = {prefix: module for prefix, module in model.named_modules() if any(True for _ in _own(module))}
    classifier: Any = named() if callable(named) else None
    head = next((prefix for prefix, module in modules.items() if module is classifier), list(modules)[-1])
    if not any(tensor.dim() > 1 for tensor in _own(modules[head])):
        raise ModelError(f"--head new: {name} has no last layer, only {head}", hint="drop --head new")
    others = {id(tensor) for prefix, module in modules.items() if prefix != head for tensor in _own(module)}
    if any(id(tensor) in others for tensor in _own(modules[head])):
        raise ModelError(
            f"--head new cannot renew {head} of {name}: it shares its weights with another layer",
            hint="drop --head new",
        )
    return tuple(key for key in model.state_dict() if key.startswith(f"{head}." if head else ""))


def _own(module: nn.Module) -> Iterable[Tensor]:
    return module.parameters(recurse=False)


def match_weights(
    shapes: Shapes, saved: Mapping[str, Tensor], *, head: tuple[str, ...], names: tuple[str, str]
) -> Match:
    """Match the tensors of a file to those of a model, or refuse a file of another architecture.

    `names` are those of the file and of the model.
    """
    saved = fitted_names(saved, shapes)
    wanted = {name: shape for name, shape in shapes.items() if name not in head}
    for name, shape in wanted.items():
        if name in saved and tuple(saved[name].shape) != shape:
            raise ModelError(
                f"{name} is {_shape_text(tuple(saved[name].shape))} in {names[0]}, but {_shape_text(shape)} "
                f"in {names[1]}",
                hint="if only the last layer differs, add --head new; else give weights of the same architecture",
            )
    found = {name: saved[name] for name in wanted if name in saved}
    missing = tuple(name for name in wanted if name not in saved)
    if len(found) <= len(missing):
        raise ModelError(
            f"{names[0]} has {len(found)} of the {len(wanted)} tensors of {names[1]}; {_some(missing)} are missing, "
            f"and it has {_some(sorted(saved))}",
            hint="give weights of the same architecture, or the --model that they belong to",
        )
    left_out = tuple(name for name in saved if name not in shapes)
    return Match(found=found, head=tuple(head), missing=missing, left_out=left_out)


def fitted_names(saved: Mapping[str, Tensor], wanted: Iterable[str]) -> dict[str, Tensor]:
    """Return the tensors without, or with, the prefix that makes most of their names those of the model.

    A model may be part of another one: "model.conv1.weight", "transformer.h.0.ln_1.weight".
    """
    wanted = set(wanted)
    prefixes = dict.fromkeys(f"{name.partition('.')[0]}." for name in saved)
    added = dict.fromkeys(f"{name.partition('.')[0]}." for name in wanted)
    renamed = [dict(saved)]
    renamed += [{name.removeprefix(prefix): tensor for name, tensor in saved.items()} for prefix in prefixes]
    renamed += [{prefix + name: tensor for name, tensor in saved.items()} for prefix in added]
    return max(renamed, key=lambda state: len(wanted.intersection(state)))


def _some(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - NUM_SHOWN} more" if len(names) > NUM_SHOWN else ""
    return ", ".join(names[:NUM_SHOWN]) + more


def _shape_text(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "a number"
