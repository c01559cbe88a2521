"""The user's own task: what is refused at the start or in the first step, with what to type next."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import paceline
from paceline.core.errors import ConfigError, PacelineError, TaskError
from paceline.core.metrics import Scores
from paceline.core.setting_types import Interval
from paceline.engine.checkpoint import Checkpoints, load_checkpoint
from paceline.engine.job import build_job
from paceline.engine.teachers import start_teachers
from tests.states import differences, final_state

OWN = """
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset
import paceline


def data():
    torch.manual_seed(0)
    return TensorDataset(torch.randn(60, 4), torch.arange(60) % 3)


def net():
    return nn.Linear(4, 3)


class Sum(paceline.Task):
    def loss(self, outputs, targets):
        return cross_entropy(outputs, targets, reduction="sum")


class Mean(paceline.Task):
    def loss(self, outputs, targets):
        return cross_entropy(outputs, targets)


class SaidMean(Mean):
    reduction = "mean"


class Contrastive(paceline.Task):
    def loss(self, outputs, targets):
        return cross_entropy(outputs @ outputs.T, torch.arange(len(outputs)))


class Rows(Sum):
    def loss(self, outputs, targets):
        return cross_entropy(outputs, targets, reduction="none")


class Pair(Sum):
    def loss(self, outputs, targets):
        return super().loss(outputs, targets), 3


class Names(Sum):
    def loss(self, outputs, targets):
        return {"a": super().loss(outputs, targets), "b": outputs.sum()}

    def count(self, targets):
        return {"b": len(targets), "c": 1 * len(targets)}


class Negative(Sum):
    def count(self, targets):
        return -len(targets)


class Nothing(Sum):
    def count(self, targets):
        return 0 * len(targets)


class PaddedCount(Sum):
    def count(self, targets):
        return 8


class Errors(Sum):
    best = "rmse"
    metrics = {
        "errors": paceline.Metric(
            sums=lambda outputs, targets: ((outputs.argmax(1) != targets).sum(), len(targets)),
            value=lambda wrong, n: {"rmse": (wrong / n) ** 0.5, "share": wrong / n},
            better="lower",
        )
    }


class Mistyped(Errors):
    best = "rsme"


class NamedBest(Sum):
    best = "second"

    def loss(self, outputs, targets):
        return {"first": super().loss(outputs, targets), "second": outputs.square().sum()}



class Detached(Sum):
    def loss(self, outputs, targets):
        return super().loss(outputs, targets).detach()


class Asks(Sum):
    def __init__(self, vocab_size):
        pass


class NoLoss(paceline.Task):
    pass


class Unfit(Sum):
    def forward(self, model, batch):
        return model(batch[0][:, :2])


class Teacher(Sum):
    def __init__(self):
        self.teacher = nn.Dropout()


class Following(Sum):
    teacher = paceline.Ema(0.75)

    def forward(self, model, batch):
        return {"student": model(batch[0]), "teacher": self.teacher(batch[0])}

    def loss(self, outputs, targets):
        apart = (outputs["student"] - outputs["teacher"]).square().sum()
        return {"labels": super().loss(outputs["student"], targets), "apart": apart}


def constant(step):
    return 1.0


def wrong():
    return 3


hits = paceline.Metric(sums=lambda outputs, targets: ((outputs.argmax(1) == targets).sum(), len(targets)))
both = {"hits": hits, "loss_again": paceline.Metric(sums="loss", better="lower")}
three = 3
"""


@pytest.fixture
def own(tmp_path, small_config):
    path = tmp_path / "own.py"
    path.write_text(OWN)

    def config(task, **settings):
        named = {"data": f"{path}:data", "model": f"{path}:net", "task": f"{path}:{task}"}
        return small_config(**(named | {"augment": "none", "global_batch": 16, "epochs": 1} | settings))

    return config


def final_scores(config) -> Scores:
    result = paceline.train(config)
    assert result.test is not None
    return result.test


@pytest.mark.parametrize(
    ("task", "says", "hint"),
    [
        ("Mean", r"the loss of .*own.py:Mean looks like a mean: 8 samples give [\d.]+, one by one", 'reduction="sum"'),
        ("Contrastive", "the loss of .*own.py:Contrastive is not a sum over samples: 8 samples give", "whole_batch"),
        ("Rows", r"loss returned a tensor of shape \(8,\), not one number", r"add \.sum\(\)"),
        ("Pair", "loss is a tuple", "return a tensor, or a dict"),
        ("Mistyped", "picks the best checkpoint by rsme, but its scores are loss, rmse, share", "did you mean rmse?"),
        ("PaddedCount", "the count of .* does not add up: 8 samples give 8, one by one they give 64", "not padding"),
        ("Asks", "own.py:Asks asks for vocab_size", "set vocab_size on the data set"),
        ("NoLoss", "own.py:NoLoss has no loss", "def loss"),
        ("wrong", "own.py:wrong is a int, not a paceline.Task", "class MyTask"),
        ("Unfit", "do not fit the data: RuntimeError", "a batch of 8 has tensors of 8×4, 8"),
    ],
)
def test_a_wrong_task_is_refused_at_the_start(own, alone, task, says, hint):
    with pytest.raises(TaskError, match=says) as caught:
        build_job(own(task), alone)
    assert caught.value.hint is not None
    assert hint.replace("\\", "") in caught.value.hint


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ("Names", "loss has a, b; count has b, c"),
        ("Negative", "count returned -16 in step 1, rank 0"),
        ("Nothing", "step 1 has nothing to learn from: the count of loss is 0 in all 16 samples"),
        ("Detached", "the loss does not depend on any parameter of the model"),
    ],
)
def test_a_wrong_task_ends_in_its_first_step(own, task, says):
    with pytest.raises(TaskError, match=says):
        paceline.train(own(task))


@pytest.mark.parametrize("task", ["Errors", "NamedBest"])
def test_the_lowest_error_or_loss_is_the_best(own, alone, task):
    """The score may be one of several of a metric, or a loss by name."""
    job = build_job(own(task), alone)
    assert job.scoring.better(job.task.best) == "lower"


def test_a_sum_and_a_declared_mean_train_alike(own):
    one, other = (final_scores(own(task, lr=0.05)) for task in ("Sum", "SaidMean"))
    assert one.loss == pytest.approx(other.loss, rel=1e-5)


def test_metrics_of_the_user_are_added_to_those_of_the_task(own, tmp_path):
    scores = final_scores(own("Sum", metric=(f"{tmp_path / 'own.py'}:both",)))
    assert list(scores.by_name) == ["loss", "hits", "loss_again"]
    assert scores.loss_again == pytest.approx(scores.loss)
    with pytest.raises(TaskError, match=r"own.py:three is a int, not a paceline.Metric"):
        paceline.train(own("Sum", metric=(f"{tmp_path / 'own.py'}:three",)))


def test_modules_of_a_task_are_frozen_in_evaluation_mode(own, alone):
    assert not vars(build_job(own("Teacher"), alone).task)["teacher"].training


def test_a_teacher_follows_the_model_and_is_saved(own):
    folder = Path(paceline.train(own("Following", steps=3, lr=0.05, keep=9, save_every=Interval(1, "step"))).folder)
    saved = [load_checkpoint(Checkpoints(folder / "checkpoints", keep=9).named(f"step-{n:08d}")) for n in (1, 2, 3)]
    for before, after in pairwise(saved):
        for name, teacher in after["teacher teacher"].items():
            expected = 0.75 * before["teacher teacher"][name] + 0.25 * after["model"][name]
            torch.testing.assert_close(teacher, expected)
            assert not torch.equal(teacher, after["model"][name])


def test_a_run_with_a_teacher_resumes_exactly(own, tmp_path):
    settings = {"lr": 0.05, "schedule": f"{tmp_path / 'own.py'}:constant"}
    whole = paceline.train(own("Following", epochs=2, name="whole", **settings))
    half = paceline.train(own("Following", epochs=1, name="half", **settings))
    resumed = paceline.train(own("Following", epochs=2, name="half", **settings), resume=half.folder)
    one, other = (final_state(Path(result.folder)) for result in (whole, resumed))
    assert differences(one["teacher teacher"], other["teacher teacher"]) == []
    assert differences(one["model"], other["model"]) == []


def test_each_run_has_its_own_teacher(own, alone):
    first, second = (build_job(own("Following", seed=seed), alone) for seed in (1, 2))
    assert not torch.equal(first.task.teacher.module.weight, second.task.teacher.module.weight)  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ConfigError, match=r"--mode fsdp does not support a task with paceline\.Ema"):
        start_teachers(first.task, first.model, replace(first.choice, mode="fsdp"))
    with pytest.raises(TaskError, match=r"Ema\(1\) is not an average"):
        paceline.Ema(1)


def test_settings_that_a_task_does_not_use_are_refused(own, alone, small_config):
    with pytest.raises(ConfigError, match=r"--label-smoothing 0.1 is for classification"):
        build_job(own("Sum", label_smoothing=0.1), alone)
    with pytest.raises(PacelineError, match="there is no task clasification") as caught:
        build_job(small_config(task="clasification"), alone)
    assert "classification" in str(caught.value.hint)
    with pytest.raises(ConfigError, match="makes its batches itself"):
        build_job(small_config(collate="my.py:pad"), alone)
