"""Evaluation: averages over all samples, and how many samples a trial scores."""

import pytest
import torch
from torch.nn import functional

import paceline
from paceline.core.metrics import Scores
from paceline.data.sources.user import Tensors
from paceline.engine.checkpoint import Checkpoints, load_checkpoint
from paceline.engine.data_check import NUM_REPEATED
from paceline.engine.evaluate import evaluate
from paceline.engine.job import build_job
from paceline.engine.progress import Progress
from paceline.records.folder import RunFolder
from paceline.records.reader import read_metrics


def test_evaluation_is_the_mean_over_all_samples_not_over_batches(small_config, alone):
    job = build_job(small_config(), alone)
    score = evaluate(job, alone, job.splits.test)
    import numpy as np

    batch = job.splits.test.fetch(np.arange(360), None)
    job.model.eval()
    with torch.no_grad():
        logits = job.model(batch.images)
    assert score.loss == pytest.approx(functional.cross_entropy(logits, batch.labels).item(), rel=1e-6)
    assert score.top1 * 360 == pytest.approx(int((logits.argmax(1) == batch.labels).sum()))
    in_five = (logits.argsort(1, descending=True)[:, :5] == batch.labels[:, None]).any(1)
    assert score.top5 * 360 == pytest.approx(int(in_five.sum()))


def test_evaluation_leaves_the_model_in_training_mode_and_its_statistics_alone(small_config, alone):
    job = build_job(small_config(model="cnn"), alone)
    job.model.train()
    before = {name: tensor.clone() for name, tensor in job.model.state_dict().items()}
    evaluate(job, alone, job.splits.valid)
    assert job.model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in job.model.state_dict().items())


LARGE = """
import torch
from torch.utils.data import TensorDataset

def part(number):
    images = torch.randn(number, 1, 8, 8, generator=torch.Generator().manual_seed(number))
    return TensorDataset(images, torch.arange(number) % 10)

def data():
    return part(10_000), part(3_000)
"""


@pytest.fixture
def scored(monkeypatch):
    """Return the list of ids that were fetched to be evaluated, batch by batch."""
    fetched = []
    fetch = Tensors.fetch

    def watched(self, ids, epoch):
        if epoch is None and len(ids) > NUM_REPEATED:
            fetched.append(ids.tolist())
        return fetch(self, ids, epoch)

    monkeypatch.setattr(Tensors, "fetch", watched)
    return fetched


@pytest.fixture
def large(tmp_path, small_config):
    """Return settings of a run on 9,000 samples, with 1,000 for validation and 3,000 for the test."""
    (tmp_path / "large.py").write_text(LARGE)
    return lambda **settings: small_config(data=f"{tmp_path / 'large.py'}:data", **settings)


def samples_scored(result):
    """Return over how many samples the best and the final score are."""
    assert result.best is not None
    assert result.test is not None
    return result.best.samples, result.test.samples


@pytest.mark.parametrize(("steps", "num_valid", "num_test"), [(1, 256, 256), (5, 768, 768), (12, 1000, 1536)])
def test_a_trial_scores_no_more_samples_than_it_trains_on(large, scored, capsys, steps, num_valid, num_test):
    result = paceline.train(large(steps=steps))
    assert samples_scored(result) == (num_valid, num_test)
    assert sum(map(len, scored)) == num_valid + num_test
    assert len({sample for block in scored[-(-num_valid // 256) :] for sample in block}) == num_test, "each once"
    records = [record for record in read_metrics(RunFolder(result.folder)) if record["kind"] == "eval"]
    assert [(r["split"], r["samples"], r["split_samples"]) for r in records] == [
        ("valid", num_valid, 1000),
        ("test", num_test, 3000),
    ]
    text = capsys.readouterr().out
    assert f"{num_test:,} of 3,000 test samples: the run ends within its first epoch" in text
    assert f"over {num_test:,} of 3,000 samples" in text


@pytest.mark.parametrize("length", [{"epochs": 1}, {"steps": 71}, {"steps": 80}, {"steps": 40}], ids=str)
def test_longer_runs_score_every_sample(large, length, capsys):
    result = paceline.train(large(**length))
    assert samples_scored(result) == (1000, 3000)
    assert "scores " not in capsys.readouterr().out


def test_every_evaluation_of_a_trial_scores_the_same_samples(large, scored):
    from paceline.core.setting_types import Interval

    paceline.train(large(steps=4, eval_every=Interval(2, "step"), valid_split=0.0))
    first, again, test = scored[:2], scored[2:4], scored[4:]
    assert first == again == test


def test_a_best_score_over_fewer_samples_does_not_outlive_the_trial(large):
    trial = paceline.train(large(steps=2))
    path = RunFolder(trial.folder)
    state = load_checkpoint(Checkpoints(path.checkpoints, keep=2).named("best"))
    assert state["progress"]["best"]["samples"] == 256
    longer = paceline.train(large(epochs=1), resume=trial.folder)
    assert samples_scored(longer) == (1000, 3000)
    last = Progress(step=2, best=Scores(by_name={"loss": 0.0}, samples=256), best_step=1)
    assert last.judge(Scores(by_name={"loss": 1.0}, samples=1000))
    assert not last.judge(Scores(by_name={"loss": 2.0}, samples=1000))
