import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import paceline
from paceline.core.errors import DivergedError
from paceline.data.order import epoch_order
from paceline.engine.checkpoint import Checkpoints, load_checkpoint
from paceline.engine.evaluate import evaluate
from paceline.engine.job import build_job
from paceline.parallel.team import Team
from paceline.records.entries import State
from paceline.records.folder import RunFolder
from paceline.records.reader import read_metrics, run_state
from tests.states import final_state

CPU = torch.device("cpu")


def hand_written(config, alone: Team, steps: int) -> dict[str, torch.Tensor]:
    """Train as one would by hand: the same start, the same order, nothing else from the engine."""
    job = build_job(config, alone)
    model = job.model
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, nesterov=True, weight_decay=5e-4)
    per_epoch = math.ceil(len(job.splits.train) / config.global_batch)
    for step in range(steps):
        epoch, place = divmod(step, per_epoch)
        order = epoch_order(seed=config.seed, epoch=epoch, num_samples=len(job.splits.train))
        ids = order[place * config.global_batch : (place + 1) * config.global_batch]
        batch = job.splits.train.fetch(ids, epoch)
        optimizer.param_groups[0]["lr"] = 0.1 * 0.5 * (1 + math.cos(math.pi * step / steps))
        optimizer.zero_grad()
        functional.cross_entropy(model(batch.images), batch.labels).backward()
        optimizer.step()
    return model.state_dict()


def test_the_loop_computes_what_a_hand_written_loop_computes(small_config, alone):
    config = small_config(epochs=2)
    result = paceline.train(config)
    expected = hand_written(config, alone, steps=result.step)
    got = final_state(result.folder)["model"]
    for name, tensor in expected.items():
        torch.testing.assert_close(got[name], tensor, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("parts", [2, 3, 7])
def test_unequal_micro_batches_give_the_gradient_of_the_whole_batch(small_config, parts):
    whole = final_state(paceline.train(small_config(name="whole", steps=12)).folder)["model"]
    split = final_state(paceline.train(small_config(name="split", steps=12, accumulate=parts)).folder)["model"]
    for name, tensor in whole.items():
        torch.testing.assert_close(split[name], tensor, rtol=1e-4, atol=1e-6, msg=name)


def test_every_sample_is_seen_once_in_an_epoch_and_counted_once_in_an_evaluation(small_config):
    result = paceline.train(small_config(epochs=3, global_batch=100))
    epochs = [record for record in read_metrics(RunFolder(result.folder)) if record["kind"] == "epoch"]
    assert [record["train_samples"] for record in epochs] == [1293] * 3
    assert [record["valid_samples"] for record in epochs] == [144] * 3
    assert result.test is not None
    assert result.test.samples == 360


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_state(small_config, tmp_path):
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
    with pytest.raises(DivergedError, match=r"the loss became nan at step 17; the last good state is .*step-00000011"):
        paceline.train(small_config(model=f"{path}:Net", name="nan"))
    folder = RunFolder(tmp_path / "runs" / "nan" / "001")
    assert run_state(folder) == State.FAILED
    state = load_checkpoint(Checkpoints(folder.checkpoints, keep=2).named("last"))
    assert all(torch.isfinite(tensor).all() for tensor in state["model"].values())


def test_patience_ends_a_run_that_gets_no_better(small_config):
    result = paceline.train(small_config(epochs=50, patience=2, lr=1e-12))
    assert result.state is State.FINISHED
    assert result.epochs == 3
    assert result.best is not None


def test_the_best_checkpoint_is_the_one_with_the_best_validation(small_config):
    result = paceline.train(small_config(epochs=6, lr=0.5, keep=1, schedule="constant"))
    records = [record for record in read_metrics(RunFolder(result.folder)) if record["kind"] == "epoch"]
    best = max(records, key=lambda record: (record["valid_top1"], -record["valid_loss"]))
    path = Checkpoints(result.folder / "checkpoints", keep=1).named("best")
    assert path.name == f"step-{best['step']:08d}"
    assert result.best is not None
    assert result.best.top1 == best["valid_top1"]


def test_the_test_line_names_the_checkpoint_that_was_scored(small_config, alone, capsys):
    result = paceline.train(small_config(epochs=50, patience=2, lr=1e-12))
    (record,) = [record for record in read_metrics(RunFolder(result.folder)) if record.get("split") == "test"]
    assert (result.step, result.test_step, record["step"], record["epoch"]) == (33, 11, 11, 1)
    assert "\ntest at step 11 (best checkpoint): loss " in capsys.readouterr().out
    best = load_checkpoint(Checkpoints(result.folder / "checkpoints", keep=2).named("best"))
    job = build_job(small_config(), alone)
    job.restore(best, alone)
    assert evaluate(job, alone, job.splits.test) == result.test


def test_steps_ends_a_run_in_mid_epoch_with_an_evaluation_and_a_checkpoint(small_config):
    result = paceline.train(small_config(steps=13))
    assert (result.step, result.state) == (13, State.FINISHED)
    assert result.best is not None
    assert load_checkpoint(result.folder / "checkpoints" / "step-00000013")["progress"]["step"] == 13


def test_evaluations_and_saves_can_be_counted_in_steps(small_config):
    from paceline.core.setting_types import Interval

    result = paceline.train(
        small_config(eval_every=Interval(5, "step"), save_every=Interval(6, "step"), keep=9, epochs=1)
    )
    steps = [record["step"] for record in read_metrics(RunFolder(result.folder)) if record["kind"] == "eval"]
    assert steps[:2] == [5, 10]
    assert Path(result.folder / "checkpoints" / "step-00000006").exists()


def test_one_seed_gives_one_result_and_another_seed_another(small_config):
    runs = [paceline.train(small_config(name=f"run{place}", seed=seed)) for place, seed in enumerate((7, 7, 8))]
    weights = [next(iter(final_state(run.folder)["model"].values())) for run in runs]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_without_a_validation_split_every_epoch_is_evaluated_on_the_test_samples(small_config):
    result = paceline.train(small_config(valid_split=0.0))
    epochs = [record for record in read_metrics(RunFolder(result.folder)) if record["kind"] == "epoch"]
    assert {record["valid_samples"] for record in epochs} == {360}
    assert {record["train_samples"] for record in epochs} == {1437}


@pytest.mark.bf16
def test_bf16_without_hardware_is_said_to_be_slow(small_config, capsys):
    from paceline.parallel.device import has_fast_bf16

    paceline.train(small_config(precision="bf16", steps=2))
    assert ("12× slower" in capsys.readouterr().out) != has_fast_bf16(CPU)


def test_the_phases_of_an_interval_add_up_to_its_time(small_config):
    result = paceline.train(small_config(log_every=5))
    for record in read_metrics(RunFolder(result.folder)):
        if record["kind"] == "step":
            assert sum(record["phases"].values()) == pytest.approx(record["seconds"], abs=1e-4)
