"""The lines that a run prints before it trains."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paceline.core.batch_plan import BatchPlan
from paceline.core.config import Config
from paceline.engine.header import settings_warnings


@pytest.mark.parametrize(("model", "batch", "is_warned"), [("cnn", 15, True), ("cnn", 16, False), ("mlp", 15, False)])
def test_batch_norm_over_single_samples_is_warned_of(small_run, capsys, model, batch, is_warned):
    small_run(model=model, exact="bitwise", shards=8, global_batch=batch, steps=1)
    said = "".join(capsys.readouterr())
    assert ("leave batch norm with one sample at a time" in said) == is_warned
    assert ("batch norm sees a shard at a time" in said) == (model == "cnn")


@pytest.mark.parametrize(("epochs", "says"), [(10**15, "steps take 348,807 years at 1,000 steps/s"), (5000, None)])
def test_a_run_that_no_one_could_wait_for_is_warned_of(epochs, says):
    plan = BatchPlan.make(Config(epochs=epochs), num_samples=1293, world_size=1)
    job: Any = SimpleNamespace(config=Config(device="cpu"), plan=plan, device=torch.device("cpu"), model=None)
    warnings = " ".join(settings_warnings(job))
    assert (says in warnings) if says else not warnings
