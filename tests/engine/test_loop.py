import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import paceline
from paceline.core.errors import DivergedError
from paceline.core.metrics import Score
from paceline.core.world import World
from paceline.data.order import epoch_order
from paceline.data.sources.own import Tensors
from paceline.engine.checkpoint import Checkpoints, load_checkpoint
from paceline.engine.evaluate import evaluate
from paceline.engine.job import NUM_COMPARED, build_job
from paceline.engine.state import Progress
from paceline.parallel.team import Team
from paceline.records.entries import State
from paceline.records.folder import RunFolder
from paceline.records.reader import read_metrics, run_state
from tests.engine.conftest import final_state

CPU = torch.device("cpu")


def alone() -> Team:
    return Team(World(), CPU)


def hand_written(config, steps: int) -> dict[str, torch.Tensor]:
    """Train as one would by hand: the same start, the same order, nothing else from the engine."""
    job = build_job(config, alone())
    model = job.model
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, nesterov=True, weight_decay=5e-4)
    per_epoch = math.ceil(len(job.splits.train) / config.global_batch)
    for step in range(steps):
        epoch, place = divmod(step, per_epoch)
        order = epoch_order(seed=config.seed, epoch=epoch, images=len(job.splits.train))
        ids = order[place * config.global_batch : (place + 1) * config.global_batch]
        batch = job.splits.train.fetch(ids, epoch)
        optimizer.param_groups[0]["lr"] = 0.1 * 0.5 * (1 + math.cos(math.pi * step / steps))
        optimizer.zero_grad()
        functional.cross_entropy(model(batch.images), batch.labels).backward()
        optimizer.step()
    return model.state_dict()


def test_the_loop_computes_what_a_hand_written_loop_computes(quick):
    config = quick(epochs=2)
    result = paceline.train(config)
    expected = hand_written(config, steps=result.step)
    got = final_state(result.folder)["model"]
    for name, tensor in expected.items():
        torch.testing.assert_close(got[name], tensor, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("parts", [2, 3, 7])
def test_a_batch_computed_in_unequal_parts_gives_the_gradient_of_the_whole(quick, parts):
    whole = final_state(paceline.train(quick(name="whole", steps=12)).folder)["model"]
    split = final_state(paceline.train(quick(name="split", steps=12, accumulate=parts)).folder)["model"]
    for name, tensor in whole.items():
        torch.testing.assert_close(split[name], tensor, rtol=1e-4, atol=1e-6, msg=name)


def test_every_image_is_seen_once_in_an_epoch_and_counted_once_in_an_evaluation(quick):
    result = paceline.train(quick(epochs=3, global_batch=100))
    epochs = [record for record in read_metrics(RunFolder(result.folder)) if record["kind"] == "epoch"]
    assert [record["train_images"] for record in epochs] == [1293] * 3
    assert [record["valid_images"] for record in epochs] == [144] * 3
    assert result.test is not None
    assert result.test.images == 360


def test_evaluation_is_the_mean_over_all_images_not_over_batches(quick):
    job = build_job(quick(), alone())
    score = evaluate(job, alone(), job.splits.test)
    import numpy as np

    batch = job.splits.test.fetch(np.arange(360), None)
    job.model.eval()
    with torch.no_grad():
        logits = job.model(batch.images)
    assert score.loss == pytest.approx(functional.cross_entropy(logits, batch.labels).item(), rel=1e-6)
    assert score.correct1 == int((logits.argmax(1) == batch.labels).sum())
    in_five = (logits.argsort(1, descending=True)[:, :5] == batch.labels[:, None]).any(1)
    assert score.correct5 == int(in_five.sum())


def test_evaluation_leaves_the_model_in_training_mode_and_its_statistics_alone(quick):
    job = build_job(quick(model="cnn"), alone())
    job.model.train()
    before = {name: tensor.clone() for name, tensor in job.model.state_dict().items()}
    evaluate(job, alone(), job.splits.valid)
    assert job.model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in job.model.state_dict().items())


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_state(quick, tmp_path):
    path = tmp_path / "nan.py"
    path.write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self, num_classes):\n"
        "        super().__init__()\n"
        "        self.linear, self.steps = torch.nn.Linear(64, num_classes), 0\n"
        "    def forward(self, images):\n"
        "        self.steps += self.training\n"
        "        logits = self.linear(images.flatten(1))\n"
        "        return logits * float('nan') if self.steps == 17 else logits\n"
    )
    with pytest.raises(DivergedError, match=r"the loss became nan at step 17; the last good state is .*00000011\.pt"):
        paceline.train(quick(model=f"{path}:Net", name="nan"))
    folder = RunFolder(tmp_path / "runs" / "nan" / "001")
    assert run_state(folder) == State.FAILED
    state = load_checkpoint(Checkpoints(folder.checkpoints, keep=2).named("last"))
    assert all(torch.isfinite(tensor).all() for tensor in state["model"].values())


def test_patience_ends_a_run_that_gets_no_better(quick):
    result = paceline.train(quick(epochs=50, patience=2, lr=1e-12))
    assert result.state is State.FINISHED
    assert result.epochs == 3
    assert result.best is not None


def test_the_best_checkpoint_is_the_one_with_the_best_validation(quick):
    result = paceline.train(quick(epochs=6, lr=0.5, keep=1, schedule="constant"))
    records = [record for record in read_metrics(RunFolder(result.folder)) if record["kind"] == "epoch"]
    best = max(records, key=lambda record: (record["valid_top1"], -record["valid_loss"]))
    path = Checkpoints(result.folder / "checkpoints", keep=1).named("best")
    assert path.name == f"step-{best['step']:08d}.pt"
    assert result.best is not None
    assert result.best.top1 == best["valid_top1"]


def test_the_test_line_names_the_checkpoint_that_was_scored(quick, capsys):
    result = paceline.train(quick(epochs=50, patience=2, lr=1e-12))
    (record,) = [record for record in read_metrics(RunFolder(result.folder)) if record.get("split") == "test"]
    assert (result.step, result.test_step, record["step"], record["epoch"]) == (33, 11, 11, 1)
    assert "\ntest at step 11 (best checkpoint): loss " in capsys.readouterr().out
    best = load_checkpoint(Checkpoints(result.folder / "checkpoints", keep=2).named("best"))
    job = build_job(quick(), alone())
    job.restore(best, alone())
    assert evaluate(job, alone(), job.splits.test) == result.test


def test_steps_ends_a_run_in_mid_epoch_with_an_evaluation_and_a_checkpoint(quick):
    result = paceline.train(quick(steps=13))
    assert (result.step, result.state) == (13, State.FINISHED)
    assert result.best is not None
    assert load_checkpoint(result.folder / "checkpoints" / "step-00000013.pt")["progress"]["step"] == 13


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
        if epoch is None and len(ids) > NUM_COMPARED:
            fetched.append(ids.tolist())
        return fetch(self, ids, epoch)

    monkeypatch.setattr(Tensors, "fetch", watched)
    return fetched


@pytest.fixture
def large(tmp_path, quick):
    """Return settings of a run on 9,000 images, with 1,000 for validation and 3,000 for the test."""
    (tmp_path / "large.py").write_text(LARGE)
    return lambda **settings: quick(data=f"{tmp_path / 'large.py'}:data", **settings)


def images_scored(result):
    """Return over how many images the best and the final score are."""
    assert result.best is not None
    assert result.test is not None
    return result.best.images, result.test.images


@pytest.mark.parametrize(("steps", "num_valid", "num_test"), [(1, 256, 256), (5, 768, 768), (12, 1000, 1536)])
def test_a_trial_scores_no_more_images_than_it_trains_on(large, scored, capsys, steps, num_valid, num_test):
    result = paceline.train(large(steps=steps))
    assert images_scored(result) == (num_valid, num_test)
    assert sum(map(len, scored)) == num_valid + num_test
    assert len({image for block in scored[-(-num_valid // 256) :] for image in block}) == num_test, "each once"
    records = [record for record in read_metrics(RunFolder(result.folder)) if record["kind"] == "eval"]
    assert [(r["split"], r["images"], r["split_images"]) for r in records] == [
        ("valid", num_valid, 1000),
        ("test", num_test, 3000),
    ]
    text = capsys.readouterr().out
    assert f"{num_test:,} of 3,000 test images: the run ends within its first epoch" in text
    assert f"over {num_test:,} of 3,000 images" in text


@pytest.mark.parametrize("length", [{"epochs": 1}, {"steps": 71}, {"steps": 80}, {"steps": 40}], ids=str)
def test_longer_runs_score_every_image(large, length, capsys):
    result = paceline.train(large(**length))
    assert images_scored(result) == (1000, 3000)
    assert "scores " not in capsys.readouterr().out


def test_every_evaluation_of_a_trial_scores_the_same_images(large, scored):
    from paceline.core.interval import Interval

    paceline.train(large(steps=4, eval_every=Interval(2, "step"), valid_split=0.0))
    first, again, test = scored[:2], scored[2:4], scored[4:]
    assert first == again == test


def test_a_best_score_over_fewer_images_does_not_outlive_the_trial(large):
    trial = paceline.train(large(steps=2))
    path = RunFolder(trial.folder)
    state = load_checkpoint(Checkpoints(path.checkpoints, keep=2).named("best"))
    assert state["progress"]["best"]["images"] == 256
    longer = paceline.train(large(epochs=1), resume=trial.folder)
    assert images_scored(longer) == (1000, 3000)
    last = Progress(step=2, best=Score(correct1=256, images=256), best_step=1)
    assert last.judge(Score(correct1=1, images=1000))
    assert not last.judge(Score(correct1=0, images=1000))


def test_evaluations_and_saves_can_be_counted_in_steps(quick):
    from paceline.core.interval import Interval

    result = paceline.train(quick(eval_every=Interval(5, "step"), save_every=Interval(6, "step"), keep=9, epochs=1))
    steps = [record["step"] for record in read_metrics(RunFolder(result.folder)) if record["kind"] == "eval"]
    assert steps[:2] == [5, 10]
    assert Path(result.folder / "checkpoints" / "step-00000006.pt").exists()


def test_one_seed_gives_one_result_and_another_seed_another(quick):
    runs = [paceline.train(quick(name=f"run{place}", seed=seed)) for place, seed in enumerate((7, 7, 8))]
    weights = [next(iter(final_state(run.folder)["model"].values())) for run in runs]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_without_a_validation_split_every_epoch_is_evaluated_on_the_test_images(quick):
    result = paceline.train(quick(valid_split=0.0))
    epochs = [record for record in read_metrics(RunFolder(result.folder)) if record["kind"] == "epoch"]
    assert {record["valid_images"] for record in epochs} == {360}
    assert {record["train_images"] for record in epochs} == {1437}


@pytest.mark.bf16
def test_bf16_without_hardware_is_said_to_be_slow(quick, capsys):
    from paceline.parallel.device import has_fast_bf16

    paceline.train(quick(precision="bf16", steps=2))
    assert ("12× slower" in capsys.readouterr().out) != has_fast_bf16(CPU)


def test_the_phases_of_an_interval_add_up_to_its_time(quick):
    result = paceline.train(quick(log_every=5))
    for record in read_metrics(RunFolder(result.folder)):
        if record["kind"] == "step":
            assert sum(record["phases"].values()) == pytest.approx(record["seconds"], abs=1e-4)
