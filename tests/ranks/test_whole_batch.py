"""Losses over the whole batch: the gradient of one process at every world size, and the same bits on request."""

from typing import Any

import pytest
import torch

from paceline.core.errors import ConfigError, TaskError
from paceline.core.keys import mix
from paceline.data.seeding import seed_generators
from paceline.data.tree import concatenated
from paceline.engine import whole_batch
from paceline.engine.objective import named_losses
from paceline.parallel.team import Team
from tests.ranks.gradients import gradient, gradients_of, largest_difference, training_of
from tests.ranks.runs import rank_settings, scores, train, unequal

OWN = """
import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize
import paceline


class Views:
    def __len__(self):
        return 60

    def __getitem__(self, index):
        draws = torch.Generator().manual_seed(index)
        sample = torch.randn(6, generator=draws)
        return sample + 0.1 * torch.randn(6, generator=draws), sample


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))


class Dropping(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 8))


class Plain(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8))


def hits(features):
    return (features[:, 0] @ features[:, 1].T).argmax(1).eq(torch.arange(len(features))).sum()


class Contrastive(paceline.Task):
    whole_batch = True
    metrics = {"found": paceline.Metric(sums=lambda o, t: (hits(o), len(o)))}

    def forward(self, model, batch):
        return normalize(model(torch.cat(batch)), dim=1).unflatten(0, (2, -1)).transpose(0, 1)

    def targets(self, batch):
        return ()

    def loss(self, features, targets):
        scores = features[:, 0] @ features[:, 1].T / 0.1
        return cross_entropy(scores, torch.arange(len(scores)))


class Two(Contrastive):
    def weights(self, step):
        return {"spread": 0.5}

    def loss(self, features, targets):
        return {"pairs": super().loss(features, targets), "spread": (features.std(0) - 1).square().sum()}


class Summed(Contrastive):
    metrics = {}

    def forward(self, model, batch):
        return super().forward(model, batch).mean(0)

    def loss(self, features, targets):
        return features.square().sum()


class Detached(Contrastive):
    def loss(self, features, targets):
        return super().loss(features.detach(), targets)
"""


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN)

    def settings(task="Contrastive", model="Plain", **others):
        named = {"data": f"{path}:Views", "model": f"{path}:{model}", "task": f"{path}:{task}"}
        return rank_settings(tmp_path, **(named | {"global_batch": 13, "augment": "none"} | others))

    return settings


def reference(team: Team, settings: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return the gradient of the whole loss by autograd through all micro-batches of one process."""
    training = training_of(team, settings)
    job, (step, parts) = training.job, next(training.batches_of_epoch())
    outputs = []
    for part in parts:
        seed_generators(mix(job.config.seed, step, part.position))
        outputs.append(job.task.forward(job.model, part.batch))
    losses = named_losses(job.task.loss(concatenated(outputs), ()))  # no step has begun: the loss of the task itself
    weights = job.task.weights(0)
    torch.stack([weights.get(name, 1.0) * loss for name, loss in losses.items()]).sum().backward()
    return gradients_of(job.model)


def own_negatives(team: Team, settings: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return the gradient of a plain DDP script, in which each rank compares only its own samples."""
    training = training_of(team, settings)
    job, (_, (part,)) = training.job, next(training.batches_of_epoch())
    named_losses(job.task.loss(job.task.forward(job.forward, part.batch), ()))["loss"].backward()
    return gradients_of(job.model)


def unseeded(team: Team, settings: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return the gradient with a planted fault: the outputs are computed again with other random numbers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole_batch, "seed_generators", lambda *_: None)
        return gradient(team, settings)


def refused(team: Team, settings: dict[str, Any]) -> str:
    with pytest.raises((TaskError, ConfigError)) as caught:
        gradient(team, settings)
    return caught.value.message


@pytest.mark.parametrize("task", ["Contrastive", "Two"])
def test_a_contrastive_loss_has_the_gradient_of_one_process_and_plain_ddp_does_not(ranks, own, task):
    (whole,) = ranks(1).run(reference, own(task))
    for world in (1, 2, 3):
        for accumulate in (1, 2):
            for ours in ranks(world).run(gradient, own(task, accumulate=accumulate)):
                assert largest_difference(ours, whole) < 1e-6
    if task == "Contrastive":
        assert largest_difference(ranks(2).run(own_negatives, own())[0], whole) > 0.1


def test_outputs_that_are_computed_twice_draw_the_same_numbers(ranks, own):
    settings = own(model="Dropping", accumulate=3)
    (whole,) = ranks(1).run(reference, settings)
    (ours,) = ranks(1).run(gradient, settings)
    assert largest_difference(ours, whole) < 1e-6
    (planted,) = ranks(1).run(unseeded, settings)
    assert largest_difference(planted, whole) > 1e-3


@pytest.mark.parametrize("model", ["Net", "Dropping"])
def test_a_contrastive_loss_is_bitwise_at_every_world_size_and_after_a_resume(ranks, own, model):
    settings = own(model=model, exact="bitwise", shards=4, epochs=2, optimizer="adam")
    alone = train(ranks, 1, settings)
    for world in (2, 3):
        assert unequal(alone, train(ranks, world, settings)) == []
    stopped = train(ranks, 3, settings, None, 1, 3)
    assert unequal(alone, train(ranks, 2, settings, stopped)) == []
    assert unequal(alone, train(ranks, 2, own(model=model, exact="bitwise", shards=3, epochs=2, optimizer="adam")))


def test_a_contrastive_loss_learns(ranks, own):
    folder = train(ranks, 2, own(epochs=20, optimizer="adam", lr=0.01, batch_norm="sync", model="Net"))
    first, *_, last = [record for record in scores(folder) if record["kind"] == "epoch"]
    assert last["valid_loss"] < 0.5 * first["valid_loss"]
    assert last["valid_found"] == 1


@pytest.mark.parametrize(
    ("task", "settings", "says"),
    [
        ("Summed", {}, "the outputs of 7 samples have shape (2, 8), without a row for each"),
        ("Detached", {}, "loss does not depend on the outputs of the model"),
        ("Contrastive", {"exact": "bitwise", "shards": 4, "balance": True}, "--balance is not supported with a loss"),
    ],
)
def test_a_wrong_whole_batch_task_is_refused(ranks, own, task, settings, says):
    assert says in ranks(2).run(refused, own(task, **settings))[0]
