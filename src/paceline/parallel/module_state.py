"""The state of a module besides trained parameters: reset before every shard, and its changes added up."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from paceline.core.errors import ModelError
from paceline.parallel.exact.fixed_point import whole_blocks

Place = tuple[nn.Module, str]
"""A module and the name of a buffer or parameter of it."""


def as_real(tensor: Tensor) -> Tensor:
    """Return a tensor, or a view of its complex numbers as pairs of real ones."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def buffer_places(model: nn.Module) -> list[Place]:
    """Return the places of all buffers that hold a value, each once."""
    return [(module, name) for module in model.modules() for name, _ in module.named_buffers(recurse=False)]


def parameter_places(model: nn.Module, *, trained: bool) -> list[Place]:
    """Return the places of all parameters that are trained, or of all that are frozen."""
    return [
        (module, name)
        for module in model.modules()
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.requires_grad == trained
    ]


def current_values(places: Iterable[Place]) -> list[Tensor]:
    """Return the tensors in these places, complex ones as pairs of real numbers."""
    tensors = [getattr(module, name).detach() for module, name in places]
    return [as_real(tensor) for tensor in tensors]


class ModuleState:
    """Buffers of a model, and frozen parameters that its forward pass changes.

    A forward pass may change a tensor in place or assign another one. Changes are in fp64; unchanged values keep their
    exact bits. A place that is None until the first pass counts from zero.
    """

    def __init__(
        self, model: nn.Module, *, frozen: Sequence[Place] = (), late: Mapping[Place, Tensor] | None = None
    ) -> None:
        """`late` has an example for each place that is None before the first pass."""
        self._late = {place: example for place, example in (late or {}).items() if _value(place) is None}
        self._places = [*buffer_places(model), *frozen]
        self._places = [place for place in self._places if place not in self._late and _value(place).numel()]
        self._tensors = [_value(place) for place in self._places]
        examples = [*current_values(self._places), *map(as_real, self._late.values())]
        self._num_known = len(self._places)
        self._places += list(self._late)
        self._shapes = [example.shape for example in examples]
        self._counting = [index for index, each in enumerate(examples) if not each.is_floating_point()]
        self._exact = [example.clone() for example in examples[: self._num_known]]
        self.size = sum(whole_blocks(shape.numel()) for shape in self._shapes)
        """Number of elements of all tensors, each rounded up to whole blocks."""
        device = next(model.parameters()).device
        self._before, self._now = (torch.zeros(self.size, dtype=torch.double, device=device) for _ in range(2))
        self._before_views, self._now_views = self._views(self._before), self._views(self._now)
        self.begin()

    def begin(self) -> None:
        """Store the values before a step."""
        if self._late and all(_value(place) is not None for place in self._late):
            self._adopt_late()
        self._tensors = [_value(place) for place in self._places[: self._num_known]]
        if self._tensors:
            values = current_values(self._places[: self._num_known])
            torch._foreach_copy_(self._exact, values)
            torch._foreach_copy_(self._before_views[: self._num_known], values)

    def reset(self) -> None:
        """Restore the stored values before a shard."""
        if self._tensors:
            torch._foreach_copy_(self._put_back(), self._exact)
        for module, name in self._late:
            setattr(module, name, None)

    def change(self, weight: float) -> Tensor:
        """Return the change that a shard made, times its weight; a change from an infinite value counts from zero."""
        if self.size:
            torch._foreach_copy_(self._now_views, current_values(self._places))
        # A constant may be infinite or NaN, as in a mask: its change is 0, not inf - inf.
        same = self._now.view(torch.int64) == self._before.view(torch.int64)
        return torch.where(same, 0.0, weight * (self._now - self._start))

    def apply(self, change: Tensor) -> None:
        """Add the sum of the changes of all shards to the stored values."""
        values = torch.where(change == 0, self._before, self._start + change)
        for place, example, view in zip(
            self._late, self._late.values(), self._views(values)[self._num_known :], strict=True
        ):
            setattr(*place, torch.empty_like(example))
            as_real(_value(place)).copy_(view)
        if self._tensors:
            torch._foreach_copy_(self._put_back(), self._views(values)[: self._num_known])
        counts = self._views(change.round().long()) if self._counting else []
        for index in self._counting:
            before = self._exact[index].long() if index < self._num_known else 0
            as_real(_value(self._places[index])).copy_(before + counts[index])

    @property
    def _start(self) -> Tensor:
        return self._before.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)

    def _adopt_late(self) -> None:
        """From the step on in which a place got its first value, treat it like any other."""
        self._exact += [as_real(_value(place)).detach().clone() for place in self._late]
        self._num_known, self._late = len(self._places), {}

    def _put_back(self) -> list[Tensor]:
        """Make the tensors from before the step the current ones again, and return them."""
        for (module, name), tensor in zip(self._places, self._tensors, strict=False):
            if getattr(module, name) is not tensor:
                setattr(module, name, tensor)
        return current_values(self._places[: self._num_known])

    def _views(self, flat: Tensor) -> list[Tensor]:
        parts = flat.split([whole_blocks(shape.numel()) for shape in self._shapes])
        return [part[: shape.numel()].view(shape) for part, shape in zip(parts, self._shapes, strict=True)]


def _value(place: Place) -> Tensor:
    return getattr(*place)


class Snapshot:
    """The buffers of a model at one time, including those that are None; also its frozen parameters, if asked for."""

    def __init__(self, model: nn.Module, *, with_frozen: bool = False) -> None:
        places = parameter_places(model, trained=False) if with_frozen else ()
        self.frozen = {place: _value(place).detach().clone() for place in places}
        self._places = [(module, name) for module in model.modules() for name in module._buffers]  # noqa: SLF001 - the only way to see those that are None
        self._tensors = [_value(place) for place in self._places]
        self._copies = [None if tensor is None else tensor.clone() for tensor in self._tensors]

    @property
    def empty(self) -> list[Place]:
        """The buffers that were None."""
        return [place for place, copy in zip(self._places, self._copies, strict=True) if copy is None]

    @torch.no_grad()
    def restore(self) -> None:
        """Give every buffer the value that it had."""
        for place, tensor, copy in zip(self._places, self._tensors, self._copies, strict=True):
            if _value(place) is not tensor:
                setattr(*place, tensor)
            if copy is not None:
                tensor.copy_(copy)
        for place, copy in self.frozen.items():
            _value(place).data.copy_(copy)  # a forward pass may replace `data`


def weights_changed(name: str) -> ModelError:
    """Return the error for a trained parameter that a forward pass changes."""
    return ModelError(
        f"the forward pass changes the trained parameter {name}; with --exact bitwise every shard must see the same "
        "weights",
        hint="change it after the optimizer step, keep it in a buffer, or use --exact order",
    )
