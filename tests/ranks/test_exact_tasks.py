"""Every built-in task with --exact bitwise: the same bits on 1 and 2 ranks, and after a resume on the other number."""

import pytest

from tests.ranks.runs import rank_settings, train, unequal

TASKS = {
    "language": {"data": "alice", "context": 16, "model": "gpt-nano", "optimizer": "adamw", "lr": 0.001},
    "regression": {"data": "shape-centers", "model": "cnn"},
    "segmentation": {"data": "shapes", "model": "unet-nano", "optimizer": "adam", "lr": 0.001},
    "multi-label": {"data": "shape-labels", "model": "cnn"},
}


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_bitwise_on_two_ranks_and_after_a_resume(ranks, tmp_path, task):
    usual = {"exact": "bitwise", "shards": 4, "global_batch": 22, "steps": 4, "log_every": 2, "augment": "none"}
    settings = rank_settings(tmp_path, **(usual | TASKS[task]))
    alone = train(ranks, 1, settings)
    assert unequal(alone, train(ranks, 2, settings)) == []
    stopped = train(ranks, 2, settings, None, 1, 2)
    assert unequal(alone, train(ranks, 1, settings, stopped)) == []
    assert unequal(alone, train(ranks, 2, settings | {"shards": 2})), "other shards give other bits"


FOLLOWING = """
import torch
from torch import nn
import paceline


def data():
    torch.manual_seed(0)
    return torch.utils.data.TensorDataset(torch.randn(60, 4), torch.randn(60, 3))


def net():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 3))


class Following(paceline.Task):
    teacher = paceline.Ema(0.9)

    def forward(self, model, batch):
        return model(batch[0]) - self.teacher(batch[0] + 0.1 * torch.randn(batch[0].shape))

    def loss(self, outputs, targets):
        return (outputs - targets).square().sum()
"""


def test_a_task_with_a_teacher_is_bitwise_on_two_ranks_and_after_a_resume(ranks, tmp_path):
    (tmp_path / "own.py").write_text(FOLLOWING)
    named = {setting: f"{tmp_path / 'own.py'}:{name}" for setting, name in
             (("data", "data"), ("model", "net"), ("task", "Following"))}  # fmt: skip
    usual = {"exact": "bitwise", "shards": 4, "global_batch": 13, "steps": 5, "log_every": 2, "augment": "none"}
    settings = rank_settings(tmp_path, **(usual | named))
    alone = train(ranks, 1, settings)
    assert unequal(alone, train(ranks, 2, settings)) == []
    stopped = train(ranks, 2, settings, None, 1, 2)
    assert unequal(alone, train(ranks, 1, settings, stopped)) == []
