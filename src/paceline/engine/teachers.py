"""Teachers that follow the model (`paceline.Ema`): made with the model, and updated after each step."""

from copy import copy

from torch import nn

from paceline.core.errors import ConfigError
from paceline.engine.optimizer import MovingAverage, copy_frozen
from paceline.parallel.modes import ModeChoice
from paceline.tasks.task import Task
from paceline.tasks.teacher import Ema, followers


def start_teachers(task: Task, model: nn.Module, choice: ModeChoice | None = None) -> dict[str, Ema]:
    """Give a task its own teachers, each with a copy of the model, and return them by name."""
    found = {name: copy(each) for name, each in followers(task).items()}  # those of a class belong to every task of it
    if found and choice is not None and choice.mode == "fsdp":
        raise ConfigError("--mode fsdp does not support a task with paceline.Ema", hint="use --mode ddp")
    for name, teacher in found.items():
        teacher.module = copy_frozen(model)
        setattr(task, name, teacher)
    return found


def follow_model(teachers: dict[str, Ema], model: nn.Module) -> dict[str, MovingAverage]:
    """Return what updates the teachers from the model, by name."""
    found = {}
    for name, teacher in teachers.items():
        assert teacher.module is not None
        found[name] = MovingAverage(teacher.module, model, teacher.decay, warms_up=False)
    return found
