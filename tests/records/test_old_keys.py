"""Files with the keys of earlier versions give the same values as files with today's keys."""

import json

import pytest

from paceline.core.config import Config
from paceline.core.load import write_config
from paceline.records.folder import RunFolder, create_run
from paceline.records.profile import read_profile, write_profile
from paceline.records.reader import read_environments, read_metrics, summarise
from tests.records.sample_profile import PROFILE

OLD_STEP = {"kind": "step", "step": 3, "epoch": 1, "loss": 1.0, "images": 384, "images_per_s": 9.0}
OLD_EPOCH = {
    "kind": "epoch", "step": 5, "epoch": 1, "images_per_s": 10.0, "is_best": True, "train_images": 600,
    "train_loss": 0.6, "valid_loss": 0.5, "valid_top1": 0.75, "valid_top5": 1.0, "valid_images": 4,
}  # fmt: skip
OLD_TEST = {
    "kind": "eval", "split": "test", "step": 5, "epoch": 1, "is_best": False,
    "loss": 0.1, "top1": 0.5, "top5": 1.0, "images": 9, "split_images": 12,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    config = Config(name="a", runs_dir=tmp_path)
    folder = create_run(config)
    write_config(config.resolved(), folder.config)
    return folder


def test_old_records_are_read_under_todays_keys(folder):
    folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in (OLD_STEP, OLD_EPOCH, OLD_TEST)))
    step, epoch, test = read_metrics(folder)
    assert (step["samples"], step["samples_per_s"]) == (384, 9.0)
    assert (epoch["train_samples"], epoch["valid_samples"], epoch["samples_per_s"]) == (600, 4, 10.0)
    assert (test["samples"], test["split_samples"]) == (9, 12)
    assert not [key for record in (step, epoch, test) for key in record if "images" in key]


def test_an_old_run_has_a_summary(folder):
    folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in (OLD_STEP, OLD_EPOCH, OLD_TEST)))
    summary = summarise(folder)
    assert summary.samples_per_s == 10.0
    assert summary.best == {"loss": 0.5, "top1": 0.75, "top5": 1.0, "samples": 4, "split_samples": 4, "epoch": 1}
    assert summary.test == {"loss": 0.1, "top1": 0.5, "top5": 1.0, "samples": 9, "split_samples": 12, "epoch": 1}


def test_an_old_environment_is_read_under_todays_keys(folder):
    old = [{"time": 1.0, "train_images": 1293, "told_by": "torchrun"}, {"time": 2.0}]
    folder.environment.write_text(json.dumps(old))
    assert read_environments(folder) == [{"time": 1.0, "train_samples": 1293, "launcher": "torchrun"}, {"time": 2.0}]


def test_an_old_profile_is_the_same_profile(folder):
    write_profile(folder, PROFILE)
    text = folder.profile.read_text()
    assert text.count('"samples_per_rank"') == 1
    assert '"grad_sync"' in text
    old = text.replace('"samples_per_rank"', '"images_per_rank"').replace('"grad_sync"', '"exchange"')
    folder.profile.write_text(old)
    assert read_profile(folder) == PROFILE
