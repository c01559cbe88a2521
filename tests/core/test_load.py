"""Layers of settings: defaults < file < environment < flags."""

from pathlib import Path

import pytest

from paceline import cli
from paceline.core.config import Config
from paceline.core.errors import ConfigError
from paceline.core.load import load_config
from paceline.core.setting_types import Interval

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture
def seen(monkeypatch):
    """Return the list of settings that the command line hands to training; nothing is trained."""
    configs = []

    def remember(settings, **_others):
        configs.append(settings)
        raise ConfigError("seen")

    monkeypatch.setattr("paceline.commands.train.train", remember)
    return configs


def test_each_layer_wins_over_the_one_below(file, seen):
    path = file('epochs = 2\nlr = 0.2\nmodel = "mlp"')
    words = ["train", "--config", str(path), "--epochs", "4"]
    cli.run(words, {"PACELINE_EPOCHS": "3", "PACELINE_LR": "0.3", "HOME": "/"})
    (config,) = seen
    assert (config.epochs, config.lr, config.model, config.global_batch) == (4, 0.3, "mlp", 128)


def test_without_any_layer_there_are_the_defaults(seen):
    cli.run(["train"], {})
    assert seen == [Config()]


def test_earlier_files_win(tmp_path):
    first, second = tmp_path / "a.toml", tmp_path / "b.toml"
    first.write_text("epochs = 1")
    second.write_text("epochs = 2\nseed = 2")
    config = load_config(first, second)
    assert (config.epochs, config.seed) == (1, 2)


@pytest.mark.parametrize(
    ("words", "setting", "value"),
    [
        (["-e", "7"], "epochs", 7),
        (["-b", "1_024"], "global_batch", 1024),
        (["-m", "cnn"], "model", "cnn"),
        (["--track", "tensorboard,wandb"], "track", ("tensorboard", "wandb")),
        (["--track", "tensorboard", "--track", "wandb"], "track", ("tensorboard", "wandb")),
        (["--track", "none"], "track", ()),
        (["--schedule", "milestones", "--milestones", "60,120"], "milestones", (60, 120)),
        (["--no-channels-last"], "channels_last", False),
        (["--no-decay-norm"], "no_decay_norm", True),
        (["--decay-norm"], "no_decay_norm", False),
        (["--save-every", "500 steps"], "save_every", Interval(500, "step")),
        (["--lr", "1e-3"], "lr", 0.001),
        (["--runs-dir", "/a/b"], "runs_dir", Path("/a/b")),
    ],
)
def test_flags_are_read_as_people_write_them(seen, words, setting, value):
    cli.run(["train", *words], {})
    assert getattr(seen[0], setting) == value


@pytest.mark.parametrize(
    ("text", "setting", "value"),
    [
        ("track = []", "track", ()),
        ('track = "none"', "track", ()),
        ('track = ["tensorboard", "wandb"]', "track", ("tensorboard", "wandb")),
        ('schedule = "milestones"\nmilestones = [60, 120]', "milestones", (60, 120)),
        ("save_every = 2", "save_every", Interval(2)),
        ("global-batch = 64", "global_batch", 64),
        ("lr = 1", "lr", 1.0),
        ("compile = true", "compile", True),
    ],
)
def test_files_are_read_as_people_write_them(file, text, setting, value):
    assert getattr(load_config(file(text)), setting) == value


def test_the_environment_reads_lists_and_booleans_too():
    environ = {"PACELINE_TRACK": "tensorboard,wandb", "PACELINE_COMPILE": "true", "PACELINE_EVAL_EVERY": "5 steps"}
    config = load_config(environ=environ)
    assert (config.track, config.compile, config.eval_every) == (("tensorboard", "wandb"), True, Interval(5, "step"))


def test_a_file_may_hold_how_to_start_too(tmp_path):
    path = tmp_path / "start.toml"
    path.write_text("devices = [0, 1]\nnproc = 2\nepochs = 3")
    assert load_config(path).epochs == 3
    path.write_text("nproc = [1, 2]")
    with pytest.raises(ConfigError, match=r'nproc: expected a whole number, got "1, 2"'):
        load_config(path)
