"""Sharded training on real ranks: every model of the zoo, next to ddp, and through resumes in other modes."""

import functools
from itertools import permutations
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.distributed.tensor import DTensor

from paceline.core.config import Config
from paceline.core.errors import ModelError
from paceline.engine.evaluate import evaluate
from paceline.engine.job import build_job
from paceline.engine.optimizer import unused_parameters
from paceline.parallel.team import Team
from tests.ranks.runs import TIGHT, losses, rank_settings, train, train_rank
from tests.states import final_state

ROUNDED = 3e-2
"""Relative difference that rounding may make in all momenta together: one ReLU that changes sides makes 2e-3."""

KINDS = ("mlp", "cnn", "resnet20", "resnet18", "fastnet")
"""Models of the zoo with every kind of layer, a frozen one included; the others have more layers or wider ones."""

PICTURES = """
import torch

def build():
    images = torch.rand(40, 3, {size}, {size})
    return torch.utils.data.TensorDataset(images, torch.arange(40) % 4)
"""

SCALAR = """
import torch

class Net(torch.nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.linear, self.scale = torch.nn.Linear(64, num_classes), torch.nn.Parameter(torch.ones(()))

    def forward(self, images):
        return self.linear(images.flatten(1)) * self.scale
"""


def short(tmp_path: Path, size: int = 8, **settings: Any) -> dict[str, Any]:
    """Return settings of a few steps on noise: channels that hardly vary, as with digits, would amplify rounding."""
    path = tmp_path / "pictures.py"
    path.write_text(PICTURES.format(size=size))
    usual = {"model": "resnet20", "global_batch": 16, "lr": 1e-4, "schedule": "constant", "log_every": 1}
    return rank_settings(tmp_path, data=f"{path}:build", **(usual | settings))


def distance(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Return how far two sets of tensors lie apart, relative to their size."""
    assert one.keys() == other.keys()
    assert all(one[name].shape == other[name].shape and one[name].dtype == other[name].dtype for name in one)
    norms = [torch.linalg.vector_norm(one[name].double() - other[name].double()) for name in one]
    whole = [torch.linalg.vector_norm(other[name].double()) for name in one]
    return float(torch.stack(norms).norm() / torch.stack(whole).norm())


def memories(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {f"{name}.{key}": value for name, kept in state["optimizer"].items() for key, value in kept.items()}


def assert_equal_up_to_rounding(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Compare momenta as well: they are sums of gradients, and show a difference that a small step hides in weights."""
    assert distance(one["model"], other["model"]) < TIGHT
    assert distance(memories(one), memories(other)) < ROUNDED


@pytest.mark.parametrize("model", KINDS)
def test_every_kind_of_model_trains_sharded_as_it_does_with_ddp(ranks, tmp_path, model):
    settings = short(tmp_path, model=model, size=16 if model == "fastnet" else 8, steps=2)
    ddp, fsdp = (final_state(train(ranks, 2, settings | {"mode": mode})) for mode in ("ddp", "fsdp"))
    assert_equal_up_to_rounding(fsdp, ddp)


MANY = {"accumulate": 2, "clip": 0.5, "no_decay_norm": True, "global_batch": 15}


@pytest.mark.parametrize("settings", [{"batch_norm": "local"}, {"batch_norm": "sync"}, {"batch_norm": "sync"} | MANY])
def test_a_sharded_run_has_the_losses_scores_and_weights_of_ddp(ranks, tmp_path, settings):
    settings = short(tmp_path, steps=6, **settings)
    folders = [train(ranks, 2, settings | {"mode": mode}) for mode in ("ddp", "fsdp")]
    assert losses(folders[1]) == pytest.approx(losses(folders[0]), rel=TIGHT)
    states = [final_state(folder) for folder in folders]
    assert_equal_up_to_rounding(states[1], states[0])
    sharded, ddp = (states[number]["progress"]["best"]["by_name"] for number in (1, 0))
    assert sharded == pytest.approx(ddp, rel=TIGHT)


def train_in_turn(ranks, settings: dict[str, Any], modes: tuple[str, ...]) -> dict[str, Any]:
    """Return the end of a run whose steps are trained in several modes, two steps in each."""
    folder = None
    for number, mode in enumerate(modes, start=1):
        world_size = 1 if mode == "single" else 2
        folder = train(ranks, world_size, settings | {"mode": mode, "steps": 2 * number}, folder)
    assert folder is not None
    return final_state(folder)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("sgd", marks=pytest.mark.long)])
def test_a_convolutional_run_resumes_in_any_mode(ranks, tmp_path, optimizer):
    settings = short(tmp_path, batch_norm="sync", optimizer=optimizer)
    whole = train_in_turn(ranks, settings, ("ddp", "ddp", "ddp"))
    for modes in permutations(["single", "ddp", "fsdp"]):
        assert_equal_up_to_rounding(train_in_turn(ranks, settings, modes), whole)


@pytest.mark.slow
@pytest.mark.parametrize("modes", [("ddp", "fsdp", "ddp"), ("fsdp", "ddp", "fsdp")], ids="-".join)
def test_local_batch_norm_resumes_in_any_mode(ranks, tmp_path, modes):
    settings = short(tmp_path)
    whole = train_in_turn(ranks, settings, ("ddp", "ddp", "ddp"))
    assert_equal_up_to_rounding(train_in_turn(ranks, settings, modes), whole)


def compiled_quickly(team: Team, settings: dict[str, Any]) -> Any:
    """Train with a model that is traced as by --compile, but runs without code being generated."""
    with patch.object(torch, "compile", functools.partial(torch.compile, backend="eager")):
        return train_rank(team, settings)


@pytest.mark.slow
def test_a_compiled_sharded_run_has_the_losses_of_ddp(ranks, tmp_path):
    """Accumulated, so that the compiled model must be known as one that averages gradients, and only in the end."""
    settings = rank_settings(tmp_path, model="cnn", steps=4, accumulate=2, log_every=1)
    ddp = train(ranks, 2, settings | {"mode": "ddp"})
    fsdp = ranks(2).run(compiled_quickly, settings | {"mode": "fsdp", "compile": True})[0].folder
    assert losses(fsdp) == pytest.approx(losses(ddp), rel=TIGHT)
    assert_equal_up_to_rounding(final_state(fsdp), final_state(ddp))


def shard_beside_an_accelerator(team: Team, settings: dict[str, Any]) -> set[str]:
    with patch.object(torch._C, "_get_accelerator", lambda *_: torch.device("cuda")):
        model = build_job(Config(**settings), team).model
    return {str(each.device_mesh.device_type) for each in model.parameters() if isinstance(each, DTensor)}


def test_shards_are_on_the_device_of_the_run_where_there_is_an_accelerator(ranks, tmp_path):
    found = ranks(2).run(shard_beside_an_accelerator, rank_settings(tmp_path, model="cnn", mode="fsdp", device="cpu"))
    assert found == [{"cpu"}] * 2


def test_a_scalar_parameter_is_refused_by_name(ranks, tmp_path):
    (tmp_path / "scalar.py").write_text(SCALAR)
    with pytest.raises(ModelError, match=r"^scale is a scalar, which --mode fsdp cannot shard"):
        ranks(2).run(train_rank, rank_settings(tmp_path, model=f"{tmp_path}/scalar.py:Net", mode="fsdp"))


def unused_after_evaluation(team: Team, settings: dict[str, Any]) -> list[str]:
    """Return the parameters that seem to have had no gradient when an evaluation follows a step."""
    job = build_job(Config(**settings), team)
    job.forward(torch.zeros(2, 1, 8, 8)).sum().backward()
    job.optimizer.step()
    evaluate(job, team, job.splits.valid)
    return unused_parameters(job.optimizer, job.model)


def test_weights_that_an_evaluation_gathered_do_not_pass_for_untrained(ranks, tmp_path):
    settings = rank_settings(tmp_path, model="mlp", mode="fsdp")
    assert ranks(2).run(unused_after_evaluation, settings) == [[], []]
