"""The learning rate of every step, as a pure function of the step."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real

from paceline.core.batch_plan import BatchPlan
from paceline.core.config import Config
from paceline.core.errors import ConfigError
from paceline.core.plugin import accepted_arguments, code_place, is_plugin, load_plugin
from paceline.core.units import number

ONE_CYCLE_RISE = 0.3
ONE_CYCLE_START = 1 / 25


@dataclass(frozen=True, kw_only=True, slots=True)
class LrPlan:
    """Peak learning rate, warm-up and decay of a run."""

    config: Config
    plan: BatchPlan
    peak: float
    """The learning rate after scaling."""
    warmup_steps: int
    """Steps during which the learning rate rises."""
    shape: "Shape"
    """Factor on the peak after warm-up."""

    @classmethod
    def make(cls, config: Config, plan: BatchPlan) -> "LrPlan":
        """Work out the plan from the settings and the number of steps."""
        ratio = plan.global_batch / config.reference_batch
        scale = {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[config.lr_scaling]
        steps = round(config.warmup * plan.steps_per_epoch)
        if config.schedule == "one-cycle" and not steps:
            steps = round(ONE_CYCLE_RISE * plan.total_steps)
        made = cls(
            config=config,
            plan=plan,
            peak=config.base_lr * scale,
            warmup_steps=min(steps, plan.total_steps),
            shape=_own_shape(config.schedule) if is_plugin(config.schedule) else SHAPES[config.schedule],
        )
        if is_plugin(config.schedule):
            for step in (0, plan.total_steps - 1):  # rather now than at the end of the run
                made.shape(made, step)
        return made

    def at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        if step < self.warmup_steps:
            rise = (step + 1) / self.warmup_steps
            low = ONE_CYCLE_START if self.config.schedule == "one-cycle" else 0.0
            return self.peak * (low + (1 - low) * rise)
        return self.peak * self.shape(self, step)

    def fraction(self, step: int) -> float:
        """Return the fraction of the steps after warm-up that is done."""
        return (step - self.warmup_steps) / max(1, self.plan.total_steps - self.warmup_steps)

    def __str__(self) -> str:
        text = number(self.config.base_lr)
        if self.config.lr_scaling != "none":
            ratio = f"{self.plan.global_batch}/{self.config.reference_batch}"
            factor = ratio if self.config.lr_scaling == "linear" else f"√({ratio})"
            text += f" × {factor} = {number(self.peak)}"
        epochs = self.warmup_steps / self.plan.steps_per_epoch
        if self.warmup_steps:
            text += f", warm-up {number(round(epochs, 2))} {'epoch' if epochs == 1 else 'epochs'}"
        return f"{text}, {_describe(self.config)}"


Shape = Callable[[LrPlan, int], float]


def _own_shape(name: str) -> Shape:
    """Return the user's function of the step, which may also ask for total_steps and steps_per_epoch."""
    function = load_plugin(name, ConfigError)

    def shape(plan: LrPlan, step: int) -> float:
        facts = {"total_steps": plan.plan.total_steps, "steps_per_epoch": plan.plan.steps_per_epoch}
        try:
            factor = function(step, **accepted_arguments(function, facts))
        except Exception as cause:
            problem = f"{name} raised {type(cause).__name__} at step {step}: {cause}"
            hint = f"{code_place(cause, function)}; it is called as {name.rpartition(':')[2]}(step)"
            raise ConfigError(problem, hint=hint) from cause
        if not isinstance(factor, Real) or not 0 <= float(factor) < math.inf:
            hint = "return a factor on the learning rate: a number of at least 0"
            raise ConfigError(f"{name} returned {factor} at step {step}", hint=hint)
        return float(factor)

    return shape


def _constant(_plan: LrPlan, _step: int) -> float:
    return 1.0


def _milestones(plan: LrPlan, step: int) -> float:
    epoch = step // plan.plan.steps_per_epoch
    return plan.config.decay_rate ** sum(epoch >= milestone for milestone in plan.config.milestones)


def _step(plan: LrPlan, step: int) -> float:
    return plan.config.decay_rate ** (step // plan.plan.steps_per_epoch // plan.config.decay_every)


def _cosine(plan: LrPlan, step: int) -> float:
    return 0.5 * (1 + math.cos(math.pi * plan.fraction(step)))


def _one_cycle(plan: LrPlan, step: int) -> float:
    return 1 - plan.fraction(step)


SHAPES: dict[str, Shape] = {
    "constant": _constant,
    "milestones": _milestones,
    "step": _step,
    "cosine": _cosine,
    "one-cycle": _one_cycle,
}


def _describe(config: Config) -> str:
    """Describe the decay of the learning rate in a few words."""
    factor = f"× {number(config.decay_rate)}"
    epochs = ", ".join(map(str, config.milestones))
    return {
        "constant": "then constant" if config.warmup else "constant",
        "milestones": f"{factor} at epoch{'s' * (len(config.milestones) > 1)} {epochs}",
        "step": f"{factor} every epoch" if config.decay_every == 1 else f"{factor} every {config.decay_every} epochs",
        "cosine": "cosine to 0",
        "one-cycle": "then linear to 0",
    }.get(config.schedule, f"times {config.schedule}")
