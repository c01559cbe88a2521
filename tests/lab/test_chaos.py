"""A short draw of the campaign of random faults, and planted problems that each of its checks must report."""

import json
import os
import shutil
import subprocess
import sys
import time
from random import Random

import pytest
import torch

from lab.chaos import Campaign, why_no_chaos
from lab.chaos_faults import MARK, ON_ONE_HOST, Target
from lab.chaos_trial import differences
from paceline.engine.checkpoint import NO_OTHERS, Checkpoints, load_checkpoint
from paceline.engine.checkpoint_folder import Captured
from paceline.records.folder import RunFolder, list_checkpoints
from paceline.records.manifest import read_manifest

REASON = why_no_chaos()
EARLY = 0.3
"""A run on a machine that has become idle is faster than the undisturbed one, and must not end before the fault."""
pytestmark = [pytest.mark.slow, pytest.mark.skipif(REASON is not None, reason=f"no faults here: {REASON}")]


@pytest.fixture(scope="module")
def campaign(tmp_path_factory) -> Campaign:
    return Campaign(tmp_path_factory.mktemp("chaos"), Random(5), None)


@pytest.mark.quick
def test_a_killed_launcher_is_survived_and_a_process_left_behind_is_reported(campaign):
    trial = campaign.trial("kill the launcher", ON_ONE_HOST["kill the launcher"], latest=EARLY)
    assert trial.did is not None
    assert trial.problems == []

    def leave_a_process(target, _random):
        command = [sys.executable, "-c", "import time; time.sleep(300)"]
        subprocess.Popen(command, env=os.environ | {MARK: target.token}, start_new_session=True)
        return "a process was started"

    problems = campaign.trial("left behind", leave_a_process, latest=EARLY).problems
    assert any(problem.startswith("orphan") for problem in problems), problems


def change_a_weight(run: RunFolder) -> None:
    """Flip the lowest bit of one weight of the last checkpoint, and write hashes and manifest that fit."""
    path = list_checkpoints(run.checkpoints)[-1]
    state, facts = load_checkpoint(path), read_manifest(path)
    name = next(name for name, value in state["model"].items() if value.dtype == torch.float32)
    weight = state["model"][name].clone()
    weight.view(torch.int32).flatten()[0] ^= 1
    state["model"][name] = weight
    checkpoints = Checkpoints(run.checkpoints, keep=100)
    checkpoints.save(Captured.of(state), NO_OTHERS, step=facts["step"], best_step=facts["best_step"])


def edit_an_epoch(run: RunFolder, edit) -> None:
    records = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    found = next(record for record in records if record["kind"] == "epoch")
    edit(records, found)
    run.metrics.write_text("".join(json.dumps(record) + "\n" for record in records))


def count_a_sample_twice(run: RunFolder) -> None:
    edit_an_epoch(run, lambda _, epoch: epoch.update(train_samples=epoch["train_samples"] + 1))


def drop_an_epoch(run: RunFolder) -> None:
    edit_an_epoch(run, lambda records, epoch: records.remove(epoch))


def round_a_loss(run: RunFolder) -> None:
    edit_an_epoch(run, lambda _, epoch: epoch.update(train_loss=epoch["train_loss"] * (1 + 1e-15)))


def leave_a_partial_file(run: RunFolder) -> None:
    (run.checkpoints / "step-00000001.partial").touch()


def damage_an_older_checkpoint(run: RunFolder) -> None:
    path = list_checkpoints(run.checkpoints)[0] / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("plant", "reported"),
    [
        (lambda _: None, []),
        (change_a_weight, ["paceline compare"]),
        (count_a_sample_twice, ["the records of epochs differ"]),
        (drop_an_epoch, ["the records of epochs differ"]),
        (round_a_loss, ["the records of epochs differ"]),
        (leave_a_partial_file, ["partial file"]),
        (damage_an_older_checkpoint, ["paceline check"]),
    ],
    ids=["nothing", "weight", "sample", "epoch", "loss", "partial file", "damage"],
)
def test_a_planted_difference_is_reported_by_the_check_that_is_for_it(campaign, tmp_path, plant, reported):
    run = RunFolder(tmp_path / "copy")
    shutil.copytree(campaign.undisturbed.path, run.path, symlinks=True)
    plant(run)
    problems = differences(campaign.undisturbed, run)
    assert len(problems) == len(reported), problems
    assert all(problem.startswith(start) for problem, start in zip(problems, reported, strict=True)), problems


def test_a_run_that_resumes_from_a_changed_weight_is_reported(campaign):
    def kill_and_change(target: Target, _random: Random) -> str | None:
        if target.run is None or len(list_checkpoints(target.run.checkpoints)) < 2:
            return None
        for launcher in target.below(0):
            launcher.kill()
        limit = time.monotonic() + 60
        while target.processes() and time.monotonic() < limit:
            time.sleep(0.1)
        change_a_weight(target.run)
        return "launcher killed, a weight changed"

    trial = campaign.trial("changed weight", kill_and_change, latest=EARLY)
    assert trial.did is not None
    assert any(problem.startswith("paceline compare") for problem in trial.problems), trial.problems
