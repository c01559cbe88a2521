"""`--accumulate auto`: the fewest micro-batches that fit into memory, found by trying them before training."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from paceline.core.batch_plan import BatchPlan
from paceline.core.config import Config
from paceline.core.errors import ConfigError, RunError
from paceline.core.units import plural
from paceline.data.catalog import Splits
from paceline.data.tree import align_leaves, moved
from paceline.engine.model_setup import autocast, memory_format
from paceline.engine.objective import named_losses
from paceline.models.trial_pass import unchanged
from paceline.parallel.team import Team
from paceline.tasks.task import Task

COPIES = {"sgd": 1}
"""Tensors like the parameters that an optimizer keeps; those of others are taken for Adam's."""
MOST_COPIES = 2
ALLOCATOR = "can't allocate memory"
"""What torch says when the main memory ends: it has no class for it."""


@dataclass(frozen=True, slots=True)
class MemoryTrial:
    """What is trained, and on what."""

    config: Config
    task: Task
    model: nn.Module
    splits: Splits

    def fits(self, num_samples: int, device: torch.device) -> bool:
        """Try the forward and the backward pass of a micro-batch beside the memory of the optimizer. No collectives."""
        try:
            with unchanged(self.model), _reserved(self.config, self.model):
                self._pass(num_samples, device)
        except (torch.OutOfMemoryError, MemoryError):
            return False
        except RuntimeError as problem:
            if ALLOCATOR not in str(problem):
                raise
            return False
        finally:
            self.model.zero_grad(set_to_none=True)
            if device.type == "cuda":
                torch.cuda.empty_cache()
        return True

    def _pass(self, num_samples: int, device: torch.device) -> None:
        self.model.train()
        ids = np.arange(num_samples) % len(self.splits.train)
        layout = memory_format(self.config, self.model)
        batch = moved(align_leaves(self.splits.train.fetch(ids, 0)), device, layout)
        with autocast(self.config, device):
            outputs = self.task.forward(self.model, batch)
            losses = named_losses(self.task.loss(outputs, self.task.targets(batch)))
        torch.stack(list(losses.values())).sum().backward()


def fit_memory(trial: MemoryTrial, team: Team, plan: BatchPlan) -> tuple[Config, BatchPlan, list[str]]:
    """Return settings and plan with as few micro-batches as every rank has memory for, and a note. Collective.

    All ranks try the same number, and one that has no memory for it makes all of them try twice as many. Without auto
    nothing is tried.
    """
    config = trial.config
    if config.accumulate != "auto":
        return config, plan, []
    if config.mode == "fsdp" or config.batch_norm == "sync":
        other = "--mode fsdp" if config.mode == "fsdp" else "--batch-norm sync"
        raise ConfigError(
            f"--accumulate auto cannot be combined with {other}, whose ranks compute each pass together",
            hint="give a number, such as --accumulate 2",
        )
    samples = -(-plan.global_batch // plan.world_size)
    parts = 1
    while team.any(not trial.fits(-(-samples // parts), team.device)):
        if parts >= samples:
            raise RunError(
                "not even one sample per micro-batch fits into memory",
                hint="use a smaller model, --precision bf16, or --mode fsdp on more devices",
            )
        parts = min(2 * parts, samples)
    note = f"--accumulate auto: {plural(parts, 'micro-batch', 'micro-batches')} of {-(-samples // parts)} samples fit"
    return replace(config, accumulate=parts), replace(plan, accumulate=parts), [note]


@contextmanager
def _reserved(config: Config, model: nn.Module) -> Iterator[None]:
    """Hold the memory that training will need besides: of the optimizer, and of the average."""
    number = COPIES.get(config.optimizer, MOST_COPIES) + (config.ema is not None)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    held = [torch.zeros_like(parameter) for _ in range(number) for parameter in trained]
    yield
    held.clear()
