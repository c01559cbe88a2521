"""Tasks over ranks: the gradient of the global batch, whatever the micro-batches hold."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from paceline.parallel.team import Team
from tests.ranks.gradients import gradient, gradients_of, largest_difference, training_of
from tests.ranks.runs import rank_settings, train_rank
from tests.states import differences, final_state

OWN = """
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.utils.rnn import pad_sequence
import paceline


class Sentences:
    vocab_size = 12

    def __len__(self):
        return 60

    def __getitem__(self, index):
        return (torch.arange(2 + index * 7 % 13) + index) % 11 + 1

    def collate(self, samples):
        return pad_sequence(samples, batch_first=True)


class Net(nn.Module):
    def __init__(self, vocab_size):
        super().__init__()
        self.embed, self.rnn = nn.Embedding(vocab_size, 8), nn.GRU(8, 8, batch_first=True)
        self.out, self.length = nn.Linear(8, vocab_size), nn.Linear(8, 1)

    def forward(self, tokens):
        states = self.rnn(self.embed(tokens))[0]
        return self.out(states), self.length(states[:, 0])


class Words(paceline.Task):
    best, unit, eval_batch = "right", "tokens", 16
    metrics = {"right": paceline.Metric(sums=lambda o, t: ((o[0].argmax(-1) == t).sum(), (t != 0).sum()))}

    def forward(self, model, tokens):
        return model(tokens[:, :-1])

    def targets(self, tokens):
        return tokens[:, 1:]

    def count(self, targets):
        return {"words": (targets != 0).sum()}

    def weights(self, step):
        return {"size": 0.5}

    def loss(self, outputs, targets):
        logits, size = outputs
        words = cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=0, reduction="sum")
        return {"words": words, "size": mse_loss(size[:, 0], (targets != 0).sum(1).float(), reduction="sum")}
"""


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN)

    def settings(**others):
        named = {"data": f"{path}:Sentences", "model": f"{path}:Net", "task": f"{path}:Words"}
        return rank_settings(tmp_path, **(named | {"global_batch": 13, "augment": "none"} | others))

    return settings


def mean_of_means(team: Team, settings: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return the gradient of the same batch from a plain DDP script: each rank takes the mean over its samples."""
    training = training_of(team, settings)
    job, (_, (micro_batch,)) = training.job, next(training.batches_of_epoch())
    model, tokens = job.forward, micro_batch.batch
    logits, size = model(tokens[:, :-1])
    targets = tokens[:, 1:]
    words = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=0)
    (words + 0.5 * functional.mse_loss(size[:, 0], (targets != 0).sum(1).float())).backward()
    return gradients_of(job.model)


@pytest.mark.parametrize("world", [2, 3, 4])
def test_padded_micro_batches_give_the_gradient_of_one_process_and_plain_ddp_does_not(ranks, own, world):
    (alone,) = ranks(1).run(gradient, own())
    for accumulate in (1, 2):
        for ours in ranks(world).run(gradient, own(accumulate=accumulate)):
            assert largest_difference(ours, alone) < 1e-6
    plain = ranks(world).run(mean_of_means, own())[0]
    assert largest_difference(plain, alone) > 0.02, "averaging means weighs ranks by their number, not by their tokens"


def test_a_rank_without_targets_changes_nothing(ranks, own, tmp_path):
    source = (tmp_path / "own.py").read_text()
    few = source.replace("(torch.arange(2 + index * 7 % 13) + index) % 11 + 1", "torch.arange(3) * (index % 9 == 0)")
    (tmp_path / "own.py").write_text(few)
    (alone,) = ranks(1).run(gradient, own(global_batch=40))
    for ours in ranks(4).run(gradient, own(global_batch=40)):
        assert largest_difference(ours, alone) < 1e-6


def test_an_own_task_is_bitwise_at_every_world_size_and_records_the_same_scores(ranks, own):
    results = [ranks(world).run(train_rank, own(exact="bitwise", shards=4, epochs=1))[0] for world in (1, 3)]
    one, other = (final_state(Path(result.folder)) for result in results)
    assert differences(one, other) == []
    best, test = results[0].best, results[0].test
    assert best is not None
    assert test is not None
    assert best == results[1].best
    assert {"loss", "right", "words", "size"} == set(best.by_name)
    assert np.isfinite(test["right"])
