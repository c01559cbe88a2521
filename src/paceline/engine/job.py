"""A job: data, model and optimizer of a run, built once from the settings and never replaced."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from paceline.core.batch_plan import BatchPlan
from paceline.core.config import Config
from paceline.core.errors import ConfigError, RunError
from paceline.core.plugin import is_plugin
from paceline.core.schedule import LrPlan
from paceline.data.catalog import Splits, open_data, split_data
from paceline.data.split import SkippingSplit
from paceline.engine.capture import (
    capture_optimizer,
    capture_other_buffers,
    make_missing_buffers,
    receive_tensors,
    replicated_tensors,
    restore_groups,
    restore_model,
    restore_optimizer,
    restore_other_buffers,
)
from paceline.engine.checkpoint import Checkpoints
from paceline.engine.data_check import DataFacts, check_data
from paceline.engine.fit_memory import MemoryTrial, fit_memory
from paceline.engine.layer_patterns import apply_patterns
from paceline.engine.model_setup import autocast, check_fit, find_state, memory_format, prepare_model
from paceline.engine.optimizer import MovingAverage, build_optimizer, copy_frozen, unused_parameters
from paceline.engine.progress import Progress
from paceline.engine.scoring import Scoring
from paceline.engine.task_setup import build_task, check_task
from paceline.engine.teachers import follow_model, start_teachers
from paceline.engine.user_code import agreed_code
from paceline.engine.user_optimizer import group_values
from paceline.engine.whole_batch import gather_whole_batch
from paceline.parallel.buffers import PLAIN_STEP, GhostStep, StepContext, average_buffers, own_buffers
from paceline.parallel.ddp_hooks import BucketTimer
from paceline.parallel.exact.bucket import Slot
from paceline.parallel.exact.determinism import fingerprint
from paceline.parallel.exact.reducer import Reducer
from paceline.parallel.modes import (
    ModeChoice,
    averages_gradients,
    choose_mode,
    convert_batch_norm,
    num_devices,
    refuse_unfit,
    shard_parameters,
    wrap_model,
)
from paceline.parallel.team import Team
from paceline.tasks.task import Task


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """The objects of a run. Training changes their contents, but never replaces them."""

    config: Config
    device: torch.device
    splits: Splits
    task_name: str
    scoring: Scoring
    data: DataFacts
    plan: BatchPlan
    lr_plan: LrPlan
    model: nn.Module
    forward: nn.Module
    """The module to call: the model compiled and wrapped for its mode."""
    choice: ModeChoice
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    ema: MovingAverage | None
    teachers: dict[str, MovingAverage]
    """The attributes of the task that follow the model."""
    reducer: Reducer | None
    """Sums gradients and buffer changes with --exact bitwise; otherwise None."""
    memory_format: torch.memory_format
    code: dict[str, str]
    """The sha256 of each file of the user's own code."""

    @property
    def task(self) -> Task:
        """What is learnt."""
        return self.scoring.task

    @property
    def evaluated(self) -> nn.Module:
        """The model to evaluate: with --ema the moving average."""
        return self.model if self.ema is None else self.ema.model

    @property
    def averages(self) -> list[MovingAverage]:
        """The moving averages of the model, which follow it after each step."""
        return [*self.teachers.values(), *([] if self.ema is None else [self.ema])]

    @property
    def num_devices(self) -> int:
        """Number of devices of all ranks."""
        return self.plan.world_size * self.choice.devices

    @property
    def num_parameters(self) -> int:
        """Number of trained parameters."""
        return sum(parameter.numel() for parameter in self._trained())

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients."""
        return sum(parameter.numel() * parameter.element_size() for parameter in self._trained())

    def _trained(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    @property
    def gradient_weight(self) -> int:
        """Factor on a rank's loss: the world size if gradients are averaged over the ranks."""
        return self.plan.world_size if self.reducer is None and averages_gradients(self.forward) else 1

    def average_buffers(self, team: Team) -> None:
        """Average the buffers over the ranks before they are used or saved. Collective: every rank must call it."""
        if self.reducer is not None:  # the reducer keeps them equal at every step
            return
        average_buffers(self.model, team)
        for average in self.averages:
            average_buffers(average.model, team)

    def replicated(self, *, averaged: bool) -> dict[str, torch.Tensor]:
        """Return the tensors that must have the same bits on every rank; `averaged`: buffers were just averaged.

        The reducer and ghost batch norm keep all buffers equal, synchronised batch norm keeps its own equal.
        """
        own = () if averaged or self.plan.shards is not None else own_buffers(self.model)
        averages = {part: each.model for part, each in self._saved_averages()}
        return replicated_tensors(self.model, {"": self.optimizer}, averages, own_buffers=own)

    def unreadable(self, team: Team) -> list[str] | None:
        """Return the images that any rank could not decode so far; None if one stops the run.

        Collective: every rank must call it.
        """
        if self.config.bad_images == "fail":
            return None
        splits = (self.splits.train, self.splits.valid, self.splits.test)
        own = {name for split in splits if isinstance(split, SkippingSplit) for name in split.unreadable()}
        return sorted(set().union(*team.gather(own)))

    def unused_parameters(self) -> list[str]:
        """Return the trained parameters that have never had a gradient."""
        return unused_parameters(self.optimizer, self.model)

    def step_context(self, team: Team, num_micro_batches: int) -> AbstractContextManager[StepContext]:
        """Return the step's context manager; enter its `micro_batch(weight)` around every micro-batch."""
        if self.plan.shards is None:
            return PLAIN_STEP
        if self.reducer is None:
            return GhostStep(self.model, team, scale=1 / self.gradient_weight)
        return self.reducer.step(num_micro_batches)

    def clip_gradient(self) -> None:
        """Scale the gradient down to the norm of the settings. Collective with shards of parameters."""
        assert self.config.clip is not None
        if self.reducer is None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        else:
            self.reducer.clip(self.config.clip)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context that the forward pass runs in."""
        return autocast(self.config, self.device)

    def capture(self, progress: Progress) -> dict[str, Any]:
        """Return the contents of a checkpoint, which depend neither on the mode nor on the world size.

        With fsdp each rank has its shards.
        """
        return {
            "model": self.model.state_dict(),
            "optimizer": capture_optimizer(self.optimizer, self.model),
            "optimizer_groups": group_values(self.optimizer) if is_plugin(self.config.optimizer) else None,
            "scaler": self.scaler.state_dict(),
            "ema": None if self.ema is None else self.ema.model.state_dict(),
            **{part: each.model.state_dict() for part, each in self._saved_teachers()},
            "buffers": self._other_buffers() or None,
            "progress": progress.as_dict(),
            "config": self.config.as_dict(),
            "code": self.code,
            "data_digests": dict(self.data.digests),
            "fingerprint": None if self.reducer is None else fingerprint(self.config, self.device),
            "magnitudes": None if self.reducer is None else self.reducer.capture(),
        }

    def _other_buffers(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return the buffers that the state dicts of the model and its average leave out."""
        models = {"model": self.model} | {part: each.model for part, each in self._saved_averages()}
        captured = {name: capture_other_buffers(model) for name, model in models.items()}
        return {name: buffers for name, buffers in captured.items() if buffers}

    def _saved_teachers(self) -> list[tuple[str, MovingAverage]]:
        """Return the teachers with the names of their parts in a checkpoint."""
        return [(f"teacher {name}", each) for name, each in self.teachers.items()]

    def _saved_averages(self) -> list[tuple[str, MovingAverage]]:
        """Return all moving averages with the names of their parts in a checkpoint."""
        return self._saved_teachers() + ([] if self.ema is None else [("ema", self.ema)])

    def restore(self, state: dict[str, Any], team: Team) -> Progress:
        """Restore the lead's checkpoint, and return its progress. Collective: every rank must call it.

        A rank that reads the files itself is a team of one.
        """
        self._restore_weights("model", self.model, state, team)
        restore_optimizer(self.optimizer, self.model, state["optimizer"], team)
        if state.get("optimizer_groups") is not None:
            restore_groups(self.optimizer, state["optimizer_groups"], team)
        self.scaler.load_state_dict(state["scaler"])
        for part, average in self._saved_averages():
            self._restore_weights(part, average.model, state, team)
        if self.reducer is not None and state.get("magnitudes") is not None:
            self.reducer.restore(receive_tensors(state["magnitudes"], team))
        return Progress.from_dict(state["progress"])

    def restore_evaluated(self, state: dict[str, Any], team: Team) -> Progress:
        """Restore only the model to evaluate from the lead's checkpoint. Collective: every rank must call it."""
        self._restore_weights("model" if self.ema is None else "ema", self.evaluated, state, team)
        for part, teacher in self._saved_teachers():
            self._restore_weights(part, teacher.model, state, team)
        return Progress.from_dict(state["progress"])

    def _restore_weights(self, part: str, model: nn.Module, state: dict[str, Any], team: Team) -> None:
        if part not in state:
            raise RunError(f"the checkpoint has no {part}", hint="train with the task that it was trained with")
        make_missing_buffers(model, state[part])
        check_fit(model, state[part], name=self.config.model)
        restore_model(model, state[part], team)
        restore_other_buffers(model, (state.get("buffers") or {}).get(part, {}), team)


def build_job(config: Config, team: Team, *, nproc: int | None = None, timer: BucketTimer | None = None) -> Job:
    """Build data, model and optimizer: the same weights on every rank. Collective: every rank must call it."""
    choice = choose_mode(config, team.world, devices=num_devices(team.device, nproc))
    refuse_unfit(config, choice)
    data = open_data(config)
    splits = split_data(data, valid_split=config.valid_split, order=config.sample_order)
    facts = check_data(splits, config, team)
    plan = BatchPlan.make(config, num_samples=len(splits.train), world_size=team.world.size)
    task_name = config.task or splits.task
    task = build_task(config, task_name, splits, team.device)
    bare = prepare_model(config, splits, team.device, task_name=task_name)
    scoring, teachers = Scoring(task), start_teachers(task, bare, choice)
    notes = check_task(config, scoring, bare, splits, team)
    code = agreed_code(config, team)
    average = None if config.ema is None else copy_frozen(bare)
    model = convert_batch_norm(bare, config, team)
    apply_patterns(model, config)
    config, plan, fitted = fit_memory(MemoryTrial(config, task, model, splits), team, plan)
    slots = {name: Slot.of(name, parameter) for name, parameter in model.named_parameters()}
    state = find_state(config, model, task, splits, plan) if config.exact == "bitwise" else None
    if state is not None and state.frozen and choice.mode == "fsdp":
        problem = f"the forward pass of {config.model} changes frozen parameters, which --mode fsdp shards"
        raise ConfigError(problem, hint="use --mode ddp")
    if is_plugin(config.optimizer) and choice.mode == "fsdp" and config.exact == "bitwise":
        problem = f"{config.optimizer} may round differently on the shards of each rank, which --mode fsdp makes"
        raise ConfigError(problem, hint="use --mode ddp, or --exact order")
    if task.whole_batch:
        gather_whole_batch(task, model, config, plan, team)
    forward = wrap_model(model, config, team, choice, timer)
    if average is not None and choice.mode == "fsdp":
        shard_parameters(average, config, team)
    return Job(
        config=config,
        device=team.device,
        splits=splits,
        task_name=task_name,
        scoring=scoring,
        data=replace(facts, warnings=(*facts.warnings, *data.warnings, *notes, *fitted)),
        plan=plan,
        lr_plan=LrPlan.make(config, plan),
        model=model,
        forward=forward,
        choice=choice,
        optimizer=build_optimizer(config, model),
        scaler=torch.amp.GradScaler(team.device.type, enabled=config.precision == "fp16"),
        ema=None if average is None or config.ema is None else MovingAverage(average, model, config.ema),
        teachers=follow_model(teachers, model),
        reducer=None if state is None else Reducer(model, config, team, slots, state.of(model)),
        memory_format=memory_format(config, model),
        code=code,
    )


def reads_shards(job: Job, checkpoints: Checkpoints, team: Team) -> bool:
    """Tell whether each rank reads its shards of a checkpoint itself. Otherwise the lead sends them. Collective."""
    return job.choice.mode == "fsdp" and checkpoints.are_seen_by_all(team)
