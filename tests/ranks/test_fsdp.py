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


ONE_ROW = """
import torch

class Net(torch.nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 64 * num_classes).view(1, 64, num_classes))

    def forward(self, images):
        return images.flatten(1) @ self.weight[0]
"""


def test_a_bitwise_gradient_is_clipped_where_a_rank_owns_no_rows(ranks, tmp_path):
    path = tmp_path / "row.py"
    path.write_text(ONE_ROW)
    settings = rank_settings(tmp_path, model=f"{path}:Net", steps=3, exact="bitwise")
    clipped, whole, free = (
        final_state(train(ranks, 2, settings | changed))["model"]
        for changed in ({"mode": "fsdp", "clip": 0.1}, {"mode": "ddp", "clip": 0.1}, {"mode": "ddp"})
    )
    assert distance(clipped, whole) == 0
    assert distance(clipped, free) > 0  # the control: the limit has an effect


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


def test_a_sharded_moving_average_is_that_of_ddp_and_resumes(ranks, tmp_path):
    settings = short(tmp_path, model="cnn", ema=0.5)
    ddp = train_in_turn(ranks, settings, ("ddp", "ddp"))
    for modes in (("fsdp", "fsdp"), ("fsdp", "ddp")):
        fsdp = train_in_turn(ranks, settings, modes)
        assert distance(fsdp["ema"], ddp["ema"]) < TIGHT
    assert distance(ddp["ema"], ddp["model"]) > 0


WIDE = """
import torch

class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = torch.nn.Linear(width, width)

    def forward(self, hidden):
        return hidden + torch.relu(self.inner(hidden))

class Net(torch.nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.first, self.last = torch.nn.Linear(64, 512), torch.nn.Linear(512, num_classes)
        self.layers = torch.nn.ModuleList(Block(512) for _ in range(6))

    def forward(self, images):
        hidden = self.first(images.flatten(1))
        for layer in self.layers:
            hidden = layer(hidden)
        return self.last(hidden)

class Whole(Net):
    fsdp_units = ()
"""


def gathered_elements(team: Team, settings: dict[str, Any]) -> tuple[int, int]:
    """Return the most elements of parameters that a rank has gathered while a block computes, and those of all."""
    job = build_job(Config(**settings), team)
    seen = []

    def count(*_: object) -> None:
        here = [each for each in job.model.parameters() if not isinstance(each, DTensor)]
        seen.append(sum(each.numel() for each in here))

    for layer in job.model.layers:  # pyright: ignore[reportGeneralTypeIssues]
        layer.inner.register_forward_hook(count)
        layer.inner.register_full_backward_hook(count)
    job.forward(torch.zeros(2, 1, 8, 8)).sum().backward()
    return max(seen), sum(each.numel() for each in job.model.parameters())


def test_a_pass_gathers_one_block_at_a_time(ranks, tmp_path):
    path = tmp_path / "wide.py"
    path.write_text(WIDE)
    settings = rank_settings(tmp_path, mode="fsdp")
    for most, whole in ranks(2).run(gathered_elements, settings | {"model": f"{path}:Net"}):
        assert most < 0.5 * whole
    for most, whole in ranks(2).run(gathered_elements, settings | {"model": f"{path}:Whole"}):
        assert most == whole  # the control


@pytest.mark.parametrize("exact", ["order", "bitwise"])
def test_a_model_that_is_sharded_block_by_block_trains_as_with_ddp(ranks, tmp_path, exact):
    path = tmp_path / "wide.py"
    path.write_text(WIDE)
    settings = rank_settings(tmp_path, model=f"{path}:Net", steps=3, exact=exact)
    ddp, fsdp = (final_state(train(ranks, 2, settings | {"mode": mode})) for mode in ("ddp", "fsdp"))
    assert distance(fsdp["model"], ddp["model"]) <= (0 if exact == "bitwise" else TIGHT)
