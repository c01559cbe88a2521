"""Scores of a task: collects the sums of its losses and metrics, and computes values from their totals."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from paceline.core.errors import PacelineError, TaskError
from paceline.core.metrics import MEAN_LOSS_BITS, UNIT_BITS, ExactSum, Scores, Sums
from paceline.data.tree import Tree
from paceline.engine.objective import named_losses
from paceline.tasks.task import Metric, Parts, Task, by_name, counts_samples

Part = Tensor | int | float


class Tally:
    """Adds up the parts of losses and metrics, on their device: nothing waits for it until `take`.

    Integers are added as integers. Each float is rounded to a multiple of 2^-bits, so that the order does not matter.
    """

    def __init__(self) -> None:
        self._kinds: dict[str, list[tuple[tuple[int, ...], int]]] = {}
        self._integers: dict[tuple[str, int], Part] = {}
        self._floats: dict[tuple[str, int], list[Tensor | float]] = {}

    def add(self, name: str, parts: Sequence[Part], *, bits: int = UNIT_BITS) -> None:
        """Add the parts of a micro-batch."""
        kinds = [_kind(part, bits) for part in parts]
        if self._kinds.setdefault(name, kinds) != kinds:
            raise TaskError(
                f"the sums of {name} changed in number, shape or type from one micro-batch to the next",
                hint="return the same parts every time; int() or .float() gives a part one type",
            )
        for place, (part, (_, own_bits)) in enumerate(zip(parts, kinds, strict=True)):
            if own_bits:
                self._floats.setdefault((name, place), []).append(part.detach() if isinstance(part, Tensor) else part)
            else:
                number = part.detach().long() if isinstance(part, Tensor) else int(part)
                self._integers[name, place] = self._integers.get((name, place), 0) + number

    def take(self) -> dict[str, tuple[ExactSum, ...]]:
        """Return the sums by name, and start again."""
        units = self._read_integers()
        found = {
            name: tuple(
                self._sum(name, place, *kind) if kind[1] else ExactSum(units=units[name, place], shape=kind[0])
                for place, kind in enumerate(kinds)
            )
            for name, kinds in self._kinds.items()
        }
        self._kinds, self._integers, self._floats = {}, {}, {}
        return found

    def _read_integers(self) -> dict[tuple[str, int], tuple[int, ...]]:
        """Return all integer sums, row by row; those of a device are read together, because each read waits for it."""
        tensors = {key: total.flatten() for key, total in self._integers.items() if isinstance(total, Tensor)}
        numbers = iter(torch.cat(list(tensors.values())).tolist() if tensors else [])
        read = {key: tuple(itertools.islice(numbers, len(tensor))) for key, tensor in tensors.items()}
        return {key: read[key] if key in read else (int(total),) for key, total in self._integers.items()}

    def _sum(self, name: str, place: int, shape: tuple[int, ...], bits: int) -> ExactSum:
        values = self._floats[name, place]
        if shape:
            rows = torch.stack([value for value in values if isinstance(value, Tensor)]).double().flatten(1).tolist()
            sums = [_rounded_sum(column, bits) for column in zip(*rows, strict=True)]
            return ExactSum(
                units=tuple(one.units[0] for one in sums),
                shape=shape,
                bits=bits,
                nonfinite=sum(one.nonfinite for one in sums),
            )
        return _rounded_sum(read_numbers(values), bits)


def _kind(part: Part, bits: int) -> tuple[tuple[int, ...], int]:
    """Return the shape of a part, and 0 for an integer, or the bits of a float."""
    if not isinstance(part, Tensor):
        return (), bits if isinstance(part, float) else 0
    return tuple(part.shape), bits if part.is_floating_point() else 0


def _rounded_sum(values: Sequence[float], bits: int) -> ExactSum:
    units = sum(round(value * (1 << bits)) for value in values if math.isfinite(value))
    return ExactSum(units=(units,), bits=bits, nonfinite=sum(value for value in values if not math.isfinite(value)))


def read_numbers(values: Sequence[Tensor | float]) -> list[float]:
    """Return numbers; those of a device are read together, because each read waits for it."""
    tensors = [value.double() for value in values if isinstance(value, Tensor)]
    numbers = iter(torch.stack(tensors).tolist() if tensors else [])
    return [next(numbers) if isinstance(value, Tensor) else value for value in values]


class Scoring:
    """The losses and metrics of a task."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.loss_bits = MEAN_LOSS_BITS if task.reduction == "mean" else UNIT_BITS
        self._metric_of: dict[str, Metric] = {}
        """The metric of each score so far: one metric may have several scores."""

    def better(self, name: str) -> Literal["higher", "lower"]:
        """Tell whether a higher or a lower value of a score is better; scores without a metric are losses."""
        metric = self._metric_of.get(name)
        return "lower" if metric is None else metric.better

    def batch_sums(self, outputs: Tree, targets: Tree, num_samples: int) -> list[tuple[str, tuple[Part, ...], int]]:
        """Return the sums of losses and metrics of a batch in evaluation, each with the bits of its floats."""
        task, sums = self.task, []
        counts = {} if counts_samples(task) else by_name(task.count(targets))
        for name, loss in named_losses(task.eval_loss(outputs, targets)).items():
            count = counts.get(name, num_samples)
            loss_sum = loss.double() * count if task.reduction == "mean" else loss
            sums.append((name, (loss_sum, count), self.loss_bits))
        metrics = self.parts(outputs, targets, training=False)
        return sums + [(name, parts, UNIT_BITS) for name, parts in metrics.items()]

    def parts(self, outputs: Tree, targets: Tree, *, training: bool) -> dict[str, tuple[Part, ...]]:
        """Return the sums of each metric over a micro-batch.

        Outputs that a loss compares with each other are scored in evaluation only, where blocks are always the same.
        """
        if training and self.task.whole_batch:
            return {}
        return {
            name: _as_parts(name, metric, outputs, targets)
            for name, metric in self.task.metrics.items()
            if not isinstance(metric.sums, str) and (metric.train or not training)
        }

    def scores(self, sums: Sums, *, step: int = 0) -> Scores:
        """Return the values of all sums: the loss, each metric, and each loss if it has a name."""
        if not sums.samples:
            return Scores()
        losses = {name: _ratio(*sums.parts[name]) for name in sums.parts if name not in self.task.metrics}
        weights = self.task.weights(step)
        values = {"loss": sum(weights.get(name, 1.0) * value for name, value in losses.items())}
        for name, metric in self.task.metrics.items():
            source = metric.sums if isinstance(metric.sums, str) else name
            if source in sums.parts:
                own = _values(name, metric, sums.parts[source])
                self._metric_of |= dict.fromkeys(own, metric)
                values |= own
        best = self.task.best  # the loss and the score that picks the best checkpoint come first
        first = {"loss": values["loss"]} | ({best: values[best]} if best in values else {})
        return Scores(by_name=first | values | (losses if len(losses) > 1 else {}), samples=sums.samples)


def _ratio(total: ExactSum, count: ExactSum) -> float:
    number = count.units[0]
    return total.units[0] / ((1 << total.bits) * number) + total.nonfinite if number else math.nan


def _as_parts(name: str, metric: Metric, outputs: Tree, targets: Tree) -> tuple[Part, ...]:
    assert not isinstance(metric.sums, str)
    try:
        parts: Parts = metric.sums(outputs, targets)
    except PacelineError:
        raise
    except Exception as cause:
        problem = f"the sums of the metric {name} raised {type(cause).__name__}: {cause}"
        raise TaskError(
            problem, hint="sums(outputs, targets) gets what forward and targets of the task return"
        ) from cause
    found = parts if isinstance(parts, tuple) else (parts,)
    if not all(isinstance(part, Tensor | int | float) for part in found):
        kinds = ", ".join(type(part).__name__ for part in found)
        raise TaskError(f"the sums of the metric {name} are {kinds}", hint="return tensors or numbers, as a tuple")
    return found


def _values(name: str, metric: Metric, parts: Sequence[ExactSum]) -> dict[str, float]:
    """Return the scores of a metric from its totals; one that cannot be computed is nan."""
    try:
        value: Any = metric.value(*map(_total, parts))
    except ZeroDivisionError:
        value = math.nan
    except Exception as cause:
        problem = f"the value of the metric {name} raised {type(cause).__name__}: {cause}"
        raise TaskError(
            problem, hint="value(*totals) gets the totals of what sums returns, in the same order"
        ) from cause
    if isinstance(value, Mapping):
        return {str(key): float(number) for key, number in value.items()}
    return {name: float(value)}


def _total(part: ExactSum) -> Tensor | float | int:
    if not part.shape:
        return part.number
    matrix = torch.tensor(part.units).view(part.shape)
    return matrix if not part.bits else matrix.double() / (1 << part.bits) + part.nonfinite
