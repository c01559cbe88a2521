import math

import pytest
import torch
from torch import nn

from paceline.core.config import Config
from paceline.core.errors import CheckpointError, DivergedError
from paceline.core.metrics import Score
from paceline.engine.checkpoint import BackgroundSaver, Checkpoints, load_checkpoint
from paceline.engine.ema import Ema
from paceline.engine.meter import Meter
from paceline.engine.optimizer import parameter_groups
from paceline.engine.state import Progress


def save(checkpoints: Checkpoints, step: int, *, is_best: bool = False) -> None:
    checkpoints.save({"weights": torch.full((3,), float(step))}, step=step, world_size=1, is_best=is_best)


def test_old_checkpoints_go_but_the_newest_and_the_best_stay(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in range(1, 7):
        save(checkpoints, step, is_best=step == 2)
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == [f"step-{n:08d}.pt" for n in (2, 5, 6)]
    assert sorted(path.name for path in tmp_path.glob("*.json")) == [f"step-{n:08d}.json" for n in (2, 5, 6)]
    assert checkpoints.named("best").name == "step-00000002.pt"
    assert checkpoints.named("last").name == "step-00000006.pt"


def test_only_checkpoints_that_are_there_are_offered(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    with pytest.raises(CheckpointError) as caught:
        checkpoints.named("last")
    assert caught.value.hint == "there is none: the run was stopped before it saved one"
    save(checkpoints, 1, is_best=False)
    with pytest.raises(CheckpointError) as caught:
        checkpoints.named("best")
    assert caught.value.hint == "there are: last, step-00000001.pt"


@pytest.mark.parametrize("damage", ["flip", "cut", "manifest"])
def test_a_damaged_checkpoint_is_passed_over_with_a_warning(tmp_path, damage):
    checkpoints = Checkpoints(tmp_path, keep=3)
    save(checkpoints, 1)
    save(checkpoints, 2)
    warnings: list[str] = []
    assert checkpoints.newest_good(warnings.append)[0]["weights"][0] == 2
    assert warnings == []
    path = checkpoints.named("last")
    if damage == "flip":
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    else:
        path.with_suffix(".json").unlink()
    state, used = checkpoints.newest_good(warnings.append)
    assert state["weights"][0] == 1
    assert used.name == "step-00000001.pt"
    assert len(warnings) == 1
    assert "step-00000002.pt" in warnings[0]


def test_a_folder_without_a_whole_checkpoint_says_so(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=3)
    with pytest.raises(CheckpointError, match="there is none"):
        checkpoints.newest_good(print)
    save(checkpoints, 1)
    checkpoints.named("last").write_bytes(b"")
    with pytest.raises(CheckpointError, match="none is whole"):
        checkpoints.newest_good(lambda _text: None)


def test_a_checkpoint_written_in_the_background_holds_the_moment_it_was_asked_for(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=3)
    saver = BackgroundSaver(checkpoints)
    weights = torch.zeros(1000)
    saver.save({"weights": weights, "list": [weights]}, step=1, world_size=1, is_best=False)
    weights.fill_(9)
    saver.close()
    state = load_checkpoint(checkpoints.named("last"))
    assert not state["weights"].any()
    assert not state["list"][0].any()


def test_a_failure_in_the_background_is_raised_not_lost(tmp_path):
    saver = BackgroundSaver(Checkpoints(tmp_path / "missing", keep=3))
    saver.save({}, step=1, world_size=1, is_best=False)
    with pytest.raises(CheckpointError, match="could not be written"):
        saver.close()


def test_the_meter_counts_in_bulk_what_one_counts_by_hand():
    torch.manual_seed(0)
    meter = Meter(eager=True)
    loss_sum, top1, top5 = 0.0, 0, 0
    for images in (5, 3, 8):
        logits, labels = torch.randn(images, 7), torch.randint(0, 7, (images,))
        loss = torch.rand(())
        meter.add(loss, logits, labels)
        loss_sum += loss.item() * images
        ranked = logits.argsort(1, descending=True)
        top1 += int((ranked[:, 0] == labels).sum())
        top5 += int((ranked[:, :5] == labels[:, None]).any(1).sum())
    assert meter.take() == Score(loss_sum=loss_sum, correct1=top1, correct5=top5, images=16)
    assert meter.take() == Score()


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_refused_before_it_is_used(loss):
    with pytest.raises(DivergedError, match="the loss became"):
        Meter(eager=True).add(torch.tensor(loss), torch.zeros(1, 2), torch.zeros(1, dtype=torch.long))


def test_the_average_follows_the_weights_and_copies_counters():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    ema = Ema(model, decay=0.5)
    theirs, mine = model.state_dict(), ema.model.state_dict()
    start = mine["0.weight"].clone()
    theirs["0.weight"] += 1
    theirs["1.num_batches_tracked"] += 3
    ema.update(step=100)
    torch.testing.assert_close(mine["0.weight"], start + 0.5)
    assert int(mine["1.num_batches_tracked"]) == 3


def test_norms_and_biases_can_be_left_out_of_weight_decay():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.GroupNorm(1, 2))
    decayed, kept = parameter_groups(model, Config(no_decay_norm=True, weight_decay=0.1))
    assert [parameter.ndim for parameter in decayed["params"]] == [4]
    assert len(kept["params"]) == 5
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.1, 0.0)
    assert len(parameter_groups(model, Config())) == 1


def test_progress_survives_a_checkpoint():
    progress = Progress(step=7, epoch_score=Score(loss_sum=1.5, images=3))
    progress.judge(Score(loss_sum=1.0, correct1=2, images=4))
    assert Progress.from_dict(progress.as_dict()) == progress


def test_with_equal_accuracy_the_lower_loss_is_better():
    progress = Progress()
    assert progress.judge(Score(loss_sum=4.0, correct1=2, images=4))
    assert progress.judge(Score(loss_sum=3.0, correct1=2, images=4))
    assert not progress.judge(Score(loss_sum=3.5, correct1=2, images=4))
    assert progress.num_stale == 1


@pytest.mark.parametrize(("model", "batch", "is_warned"), [("cnn", 15, True), ("cnn", 16, False), ("mlp", 15, False)])
def test_batch_norm_over_single_images_is_warned_of(small_run, capsys, model, batch, is_warned):
    small_run(model=model, exact="bitwise", shards=8, global_batch=batch, steps=1)
    said = "".join(capsys.readouterr())
    assert ("leave batch norm with one image at a time" in said) == is_warned
    assert ("batch norm sees a shard at a time" in said) == (model == "cnn")
