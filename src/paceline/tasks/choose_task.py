"""Names become tasks and metrics: ours, or the user's own "my.py:Task"."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paceline.core.entry_points import entry_names, is_own_part, load_part
from paceline.core.errors import ConfigError, TaskError, suggestion
from paceline.core.plugin import call_plugin, is_plugin, load_plugin
from paceline.tasks.classification import Classification
from paceline.tasks.language import Language
from paceline.tasks.multi_label import MultiLabel
from paceline.tasks.regression import Regression
from paceline.tasks.segmentation import Segmentation
from paceline.tasks.task import Metric, Task

TASKS: Mapping[str, Callable[..., Task]] = {
    "classification": Classification,
    "language": Language,
    "regression": Regression,
    "segmentation": Segmentation,
    "multi-label": MultiLabel,
}


def choose_task(name: str, offered: Mapping[str, Any], *, metrics: Sequence[str] = ()) -> Task:
    """Return the task of this name; its constructor gets the offered facts that it asks for by name."""
    if name not in TASKS and not is_own_part("tasks", name):
        known = [*TASKS, *entry_names("tasks"), "my.py:Task"]
        raise TaskError(f"there is no task {name}", hint=suggestion(name, known))
    make = TASKS[name] if name in TASKS else load_part("tasks", name, TaskError)
    _refuse_missing(name, make, offered)
    task = call_plugin(name, make, offered, TaskError)
    if not isinstance(task, Task):
        problem = f"{name} is a {type(task).__name__}, not a paceline.Task"
        raise TaskError(problem, hint="write: class MyTask(paceline.Task), with a method loss(outputs, targets)")
    if type(task).loss is Task.loss:
        raise TaskError(f"{name} has no loss", hint="write: def loss(self, outputs, targets), which returns a sum")
    own = {key: metric for spec in metrics for key, metric in load_metrics(spec).items()}
    if own:
        task.metrics = {**task.metrics, **own}
    return task


def load_metrics(spec: str) -> dict[str, Metric]:
    """Return the metrics of "my.py:name": a Metric, or a dict of them."""
    if not is_plugin(spec):
        raise ConfigError(f"--metric {spec} does not name a metric in a file", hint="write --metric my.py:name")
    found = load_plugin(spec, TaskError, kind=Metric)
    metrics = {spec.rpartition(":")[2]: found} if isinstance(found, Metric) else found
    if not isinstance(metrics, dict) or not all(isinstance(metric, Metric) for metric in metrics.values()):
        problem = f"{spec} is a {type(found).__name__}, not a paceline.Metric"
        raise TaskError(problem, hint="write: name = paceline.Metric(sums=...), or a dict of them")
    return {str(key): metric for key, metric in metrics.items()}


def _refuse_missing(name: str, make: Callable[..., Any], offered: Mapping[str, Any]) -> None:
    """Refuse a task that asks for a fact that the data does not have."""
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    wanted = [
        parameter.name
        for parameter in inspect.signature(make).parameters.values()
        if parameter.kind in plain and parameter.default is parameter.empty
    ]
    missing = [fact for fact in wanted if fact not in offered]
    if missing:
        known = ", ".join(sorted(offered)) or "nothing"
        problem = f"the task {name} asks for {' and '.join(missing)}, but the data names only {known}"
        raise TaskError(problem, hint=f"set {missing[0]} on the data set, or give the argument a default")
