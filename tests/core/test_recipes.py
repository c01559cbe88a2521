"""Recipes: every one is valid, says what it reaches, and lies below the user's own settings."""

import pytest

from paceline import cli
from paceline.core.errors import ConfigError
from paceline.core.load import load_config
from paceline.core.recipes import find_recipe, list_recipes

NAMES = ("cifar10-fast", "cifar10-pyramidnet", "cifar10-resnet20", "cifar100-resnet18", "imagenet-resnet50")


@pytest.fixture
def seen(monkeypatch, elsewhere):
    """Return the list of settings that the command line hands to training; nothing is trained."""
    configs = []

    def remember(settings, **_others):
        configs.append(settings)
        raise ConfigError("seen")

    monkeypatch.setattr("paceline.commands.train.train", remember)
    return configs


def test_the_recipes_are_all_there():
    assert tuple(recipe.name for recipe in list_recipes()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_valid_and_says_what_it_reaches(name):
    recipe = find_recipe(name)
    config = load_config(recipe.path)
    assert name.startswith(config.data)
    assert 20 < len(recipe.title) < 100
    assert "# Reached with Paceline: " in recipe.path.read_text(encoding="utf-8")


def test_the_recipe_of_the_seed_has_its_settings():
    config = load_config(find_recipe("cifar100-resnet18").path)
    assert (config.data, config.model, config.epochs, config.global_batch) == ("cifar100", "resnet18", 10, 128)
    assert config.augment == "resized-crop,flip,rand-m9-mstd0.5-inc1,erase0.25"


def test_a_recipe_lies_above_defaults_and_below_everything_else(seen, elsewhere):
    (elsewhere / "mine.toml").write_text("epochs = 3\nlr = 0.3")
    words = ["train", "--recipe", "cifar10-fast", "--config", "mine.toml", "--lr", "0.2"]
    cli.run(words, {"PACELINE_MOMENTUM": "0.8"})
    (config,) = seen
    assert (config.lr, config.momentum, config.epochs, config.model) == (0.2, 0.8, 3, "fastnet")


def test_an_unknown_recipe_is_answered_with_the_nearest(seen, capsys):
    assert cli.run(["train", "--recipe", "cifar10-resnet"], {}) == 2
    assert "there is no recipe cifar10-resnet\n  hint: did you mean cifar10-resnet20?" in capsys.readouterr().err


def test_recipes_are_listed_and_shown(capsys):
    assert cli.run(["recipes"], {}) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in NAMES)
    assert cli.run(["recipes", "cifar10-fast"], {}) == 0
    assert capsys.readouterr().out == find_recipe("cifar10-fast").path.read_text(encoding="utf-8")
