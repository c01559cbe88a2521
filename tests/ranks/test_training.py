"""The same run at every world size, in every mode, and after a resume at another world size."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.core.errors import ConfigError, RanksError
from paceline.core.setting_types import Interval
from paceline.parallel.team import Team
from paceline.records.entries import State
from paceline.records.folder import RunFolder
from paceline.records.reader import read_metrics
from tests.data.pictures import write_classes
from tests.ranks.runs import TIGHT, losses, rank_settings, train, train_rank
from tests.states import differences, final_state

GENTLE = {"model": "resnet20", "lr": 0.001, "steps": 6, "log_every": 1}
"""Batch norm divides by the spread of channels that hardly vary on digits: at a large rate a change of 1e-7 in one
weight, by whatever cause, moves the loss by 1e-3 within three steps, on one rank as well."""


@pytest.mark.parametrize(
    "settings",
    [
        {"model": "mlp"},
        {"batch_norm": "sync"} | GENTLE,
        {"batch_norm": "ghost", "shards": 4} | GENTLE,
        {"model": "mlp", "accumulate": 3, "global_batch": 101},
    ],
    ids=["no batch norm", "sync batch norm", "ghost batch norm", "accumulated, ragged"],
)
def test_the_loss_curve_is_the_same_at_every_world_size(ranks, tmp_path, settings):
    alone = losses(train(ranks, 1, rank_settings(tmp_path, **settings)))
    assert len(alone) > 2
    for world_size in (2, 3, 4):
        spread = losses(train(ranks, world_size, rank_settings(tmp_path, **settings)))
        assert spread == pytest.approx(alone, rel=TIGHT), f"{world_size} ranks"


def test_a_batch_of_fewer_samples_than_ranks_is_counted_right(ranks, tmp_path):
    """1,293 samples in batches of 646 leave one sample for four ranks."""
    settings = rank_settings(tmp_path, batch_norm="sync", **(GENTLE | {"global_batch": 646, "steps": 4, "lr": 1e-4}))
    alone, spread = (losses(train(ranks, size, settings)) for size in (1, 4))
    assert spread == pytest.approx(alone, rel=TIGHT)


def test_a_rank_without_samples_takes_part_with_ghost_batch_norm(ranks, tmp_path):
    """The third step has one sample, which leaves the second rank without any."""
    few = {"model": "cnn", "global_batch": 646, "steps": 4, "lr": 1e-4, "log_every": 1}
    settings = rank_settings(tmp_path, batch_norm="ghost", shards=2, **few)
    alone, spread = (losses(train(ranks, size, settings)) for size in (1, 2))
    assert spread == pytest.approx(alone, rel=TIGHT)


def unweighted(team: Team, settings: dict[str, Any]):
    """Train as scripts do that average the means of unequal batches."""
    from paceline.engine.objective import Objective

    honest = Objective.weighted
    Objective.weighted = lambda self, losses, number: losses["loss"]
    try:
        return train_rank(team, settings)
    finally:
        Objective.weighted = honest


def test_the_curves_differ_when_ragged_batches_are_not_weighted(ranks, tmp_path):
    """The control: averaging means of unequal shares, as plain DDP does, shows."""
    settings = rank_settings(tmp_path, global_batch=5, steps=30, lr=0.1)
    alone = losses(train(ranks, 1, settings))
    spread = losses(ranks(3).run(unweighted, settings)[0].folder)
    assert spread != pytest.approx(alone, rel=TIGHT)


def test_evaluation_gives_the_same_digits_at_every_world_size(ranks, tmp_path):
    folder = train(ranks, 1, rank_settings(tmp_path))
    scores = {size: ranks(size).run(score, folder)[0] for size in (1, 2, 3, 4)}
    assert len({json.dumps(value) for value in scores.values()}) == 1, scores


def test_a_trial_scores_the_same_samples_at_every_world_size(ranks, tmp_path):
    """256 of the 360 test samples, in bits: another choice on any rank would show."""
    settings = rank_settings(tmp_path, steps=2, global_batch=64, exact="bitwise", shards=4)
    tests = {size: ranks(size).run(train_rank, settings)[0].test for size in (1, 2, 3, 4)}
    assert tests[1].samples == 256
    assert set(tests.values()) == {tests[1]}


def score(team: Team, folder: Path):
    from paceline.core.load import load_config
    from paceline.engine.checkpoint import Checkpoints, load_checkpoint
    from paceline.engine.evaluate import evaluate
    from paceline.engine.job import build_job

    torch.set_num_threads(1)
    job = build_job(load_config(RunFolder(folder).config), team)
    job.restore(load_checkpoint(Checkpoints(RunFolder(folder).checkpoints, keep=1).named("best")), team)
    result = evaluate(job, team, job.splits.test)
    return [result.loss.hex(), result.top1.hex(), result.top5.hex(), result.samples]


@pytest.mark.parametrize(("first", "second"), [(1, 3), (4, 2), (2, 1)])
def test_a_run_stopped_at_one_world_size_resumes_at_another(ranks, tmp_path, first, second):
    settings = rank_settings(tmp_path)
    whole = train(ranks, 1, settings)
    stopped = ranks(first).run(train_rank, settings, None, first - 1)
    assert {result.state for result in stopped} == {State.STOPPED}
    assert len({result.step for result in stopped}) == 1
    assert 13 < stopped[0].step < 22
    resumed = train(ranks, second, settings, stopped[0].folder)
    weights = [final_state(folder)["model"] for folder in (whole, resumed)]
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.parametrize(("first", "second"), [("ddp", "fsdp"), ("fsdp", "ddp")])
def test_a_checkpoint_moves_between_modes_in_mid_epoch(ranks, tmp_path, first, second):
    settings = rank_settings(tmp_path, optimizer="adamw", lr=0.001)
    whole = train(ranks, 1, settings)
    stopped = ranks(2).run(train_rank, settings | {"mode": first}, None, 0)
    folder = stopped[0].folder
    train(ranks, 2, settings | {"mode": second}, folder)
    weights = [final_state(run)["model"] for run in (whole, folder)]
    assert weights[0].keys() == weights[1].keys()
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, rtol=1e-3, atol=1e-5, msg=name)


def test_two_ranks_resume_to_the_same_bits_as_two_ranks_that_never_stopped(ranks, tmp_path):
    settings = rank_settings(tmp_path, model="cnn", ema=0.9)
    whole = train(ranks, 2, settings)
    stopped = ranks(2).run(train_rank, settings, None, 1)
    resumed = train(ranks, 2, settings, stopped[0].folder)
    states = [final_state(folder) for folder in (whole, resumed)]
    assert [
        place for place in differences(states[0], states[1]) if "running" not in place and "best" not in place
    ] == []
    for name, tensor in states[0]["model"].items():  # averaged once more at the stop, so rounded once more
        torch.testing.assert_close(states[1]["model"][name], tensor, rtol=1e-5, atol=1e-6, msg=name)


def test_patience_ends_the_run_on_every_rank(ranks, tmp_path):
    results = ranks(3).run(train_rank, rank_settings(tmp_path, epochs=50, patience=2, lr=1e-12))
    assert {(result.state, result.step) for result in results} == {(State.FINISHED, 33)}


def test_replicas_hold_the_same_bits_at_every_save(ranks, tmp_path):
    """Local batch norm sees different samples on every rank, so this holds only because buffers are averaged first."""
    settings = rank_settings(tmp_path, model="cnn", save_every=Interval(5, "step"), check_replicas=11)
    assert train(ranks, 3, settings)


def flipped(team: Team, settings: dict[str, Any]):
    from paceline.engine.loop import MicroBatch, Training

    honest = Training.train_step

    def with_a_flipped_bit(self: Training, step: int, micro_batches: list[MicroBatch]) -> float:
        lr = honest(self, step, micro_batches)
        if step == 6 and team.world.rank == 1:
            weight = next(iter(self.job.model.parameters())).detach().view(-1)
            weight[:1].view(torch.int32).bitwise_xor_(1)
        return lr

    Training.train_step = with_a_flipped_bit
    try:
        return train_rank(team, settings)
    finally:
        Training.train_step = honest


def test_one_flipped_bit_on_one_rank_is_caught_at_its_step_and_named(ranks, tmp_path):
    with pytest.raises(RanksError, match=r"step 7.*1\.weight|1\.weight.*step 7"):
        ranks(3).run(flipped, rank_settings(tmp_path, check_replicas=1))


def differing(team: Team, settings: dict[str, Any]):
    return train_rank(team, settings | {"lr": 0.1 * (1 + team.world.rank)})


def test_ranks_with_different_settings_are_refused_by_name(ranks, tmp_path):
    with pytest.raises(ConfigError, match=r"--lr is 0\.1 on rank 0 and 0\.2 on rank 1"):
        ranks(2).run(differing, rank_settings(tmp_path))


def other_version(team: Team, settings: dict[str, Any]):
    from unittest.mock import patch

    with patch("paceline.engine.rank.version", lambda _: f"0.{team.world.rank}"):
        return train_rank(team, settings)


def test_ranks_with_different_versions_are_refused_by_name(ranks, tmp_path):
    with pytest.raises(ConfigError, match=r"paceline is 0\.0 on rank 0 and 0\.1 on rank 1"):
        ranks(2).run(other_version, rank_settings(tmp_path))
    assert not list(tmp_path.glob("runs/*/*")), "no run was begun"


def test_a_loss_that_is_not_finite_on_one_rank_stops_all(ranks, tmp_path):
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
        "        first = torch.distributed.get_rank() == 1 and self.steps == 7\n"
        "        return logits * float('nan') if first else logits\n"
    )
    outcomes = ranks(2).run(diverging, rank_settings(tmp_path, model=f"{path}:Net"))
    assert [outcome.startswith("the loss became nan") for outcome in outcomes] == [True, True]


def diverging(team: Team, settings: dict[str, Any]) -> str:
    from paceline.core.errors import DivergedError

    try:
        train_rank(team, settings)
    except DivergedError as problem:
        return problem.message
    return "went on"


def test_an_image_that_several_ranks_cannot_read_is_counted_once(ranks, tmp_path):
    write_classes(tmp_path / "pictures" / "train", ["cat", "dog"], num=6)
    write_classes(tmp_path / "pictures" / "test", ["cat", "dog"], num=2)
    for number in (1, 4):
        (tmp_path / "pictures" / "train" / "cat" / f"{number}.jpeg").write_bytes(b"no image")
    settings = rank_settings(
        tmp_path, data=f"folder:{tmp_path / 'pictures'}", image_size=16, valid_split=0, global_batch=4,
        bad_images="skip", epochs=4,
    )  # fmt: skip
    folder = RunFolder(ranks(2).run(train_rank, settings)[0].folder)
    epochs = [record for record in read_metrics(folder) if record["kind"] == "epoch"]
    assert [record["num_unreadable"] for record in epochs] == [2, 2, 2, 2]
