"""A setting that cannot be is refused: the message names the place, and what was expected."""

import dataclasses

import pytest

from paceline.core.config import Config
from paceline.core.errors import SettingError, flag
from tests.core.conftest import refusal

pytestmark = pytest.mark.usefixtures("elsewhere")
HELP = "to list its flags: paceline train --help"
PLACES = [
    pytest.param("flag", id="flag"),
    pytest.param("file", id="file"),
    pytest.param("environment", id="environment"),
]


def told(place, setting, text, file):
    """Return words, environment and the name of the place, for a value given in that place."""
    if place == "flag":
        return [f"{flag(setting)}={text}"], {}, flag(setting)
    if place == "environment":
        name = f"PACELINE_{setting.upper()}"
        return [], {name: text}, name
    path = file(f'{setting} = "{text}"')
    return ["--config", str(path)], {}, f"{path}: {setting}"


def test_an_unknown_flag_is_refused_with_the_nearest(capsys):
    assert refusal(capsys, ["--epocs", "3"]) == ("Unknown option: --epocs. Did you mean --epochs?", HELP)


def test_an_unknown_key_names_file_and_nearest(capsys, file):
    path = file("global_bach = 3")
    expected = (f"{path}: global_bach is not a setting", "did you mean global_batch?")
    assert refusal(capsys, ["--config", str(path)]) == expected


def test_an_unknown_variable_is_refused_with_the_nearest(capsys):
    expected = ("PACELINE_EPOCH is not a setting", "did you mean PACELINE_EPOCHS?")
    assert refusal(capsys, [], {"PACELINE_EPOCH": "3"}) == expected


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("setting", "text", "expected"),
    [
        ("epochs", "1.5", "a whole number"),
        ("steps", "many", "a whole number"),
        ("lr", "fast", "a number"),
        ("momentum", "x", "a number"),
        ("compile", "maybe", "true or false"),
        ("precision", "fp8", "one of fp32, bf16, fp16"),
        ("save_every", "2 days", '1 (epochs), "2 epochs" or "500 steps"'),
        ("milestones", "60,a", "whole numbers, such as 60,120"),
    ],
)
def test_a_bad_type_names_the_place_and_what_was_expected(capsys, file, place, setting, text, expected):
    words, environ, name = told(place, setting, text, file)
    message, _ = refusal(capsys, words, environ)
    assert message == f'{name}: expected {expected}, got "{text}"'


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("setting", "text", "problem"),
    [
        ("epochs", "0", "is 0, but must be at least 1"),
        ("global_batch", "0", "is 0, but must be at least 1"),
        ("workers", "-1", "is -1, but must be at least 0"),
        ("momentum", "nan", "is nan, but must be at least 0"),
        ("warmup", "inf", "is inf, but must be a finite number"),
        ("lr", "-0.1", "is -0.1, but must be a number above 0"),
        ("lr", "inf", "is inf, but must be a number above 0"),
        ("valid_split", "1", "is 1.0, but must be at least 0 and below 1"),
        ("ema", "-1", "is -1.0, but must be at least 0 and below 1"),
        ("track", "tensorbord", 'lists "tensorbord", which is not a tracker'),
        ("augment", "crop4,flipp", "lists flipp, which is not a step"),
        ("augment", "erase25", "erase25: 25 is not between 0 and 1"),
        ("image_size", "0", "is 0, but must be at least 1"),
        ("optimizer", "sdg", "is sdg, which is not known"),
        ("name", "a/b", 'is "a/b", which is not a folder name'),
    ],
)
def test_a_value_out_of_range_names_the_place(capsys, file, place, setting, text, problem):
    words, environ, name = told(place, setting, text, file)
    message, _ = refusal(capsys, words, environ)
    assert message == f"{name} {problem}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochs = [1, 2]", 'epochs: expected a whole number, got "1, 2"'),
        ("epochs = true", 'epochs: expected a whole number, got "true"'),
        ("compile = 3", 'compile: expected true or false, got "3"'),
    ],
)
def test_a_toml_value_of_another_type_is_refused(capsys, file, text, message):
    path = file(text)
    assert refusal(capsys, ["--config", str(path)])[0] == f"{path}: {message}"


def test_a_table_is_refused_since_settings_are_flat(capsys, file):
    path = file("[model]\nname = 3")
    assert refusal(capsys, ["--config", str(path)]) == (
        f"{path}: [model] is a table, but settings are flat",
        "write model = …",
    )


def test_a_file_that_is_no_toml_is_refused_with_the_line(capsys, file):
    path = file("epochs = \n")
    message, _ = refusal(capsys, ["--config", str(path)])
    assert message.startswith(f"{path} is not valid TOML: Invalid value (at line 1")


def test_a_file_that_is_not_there_is_refused(capsys, tmp_path):
    path = tmp_path / "no.toml"
    assert refusal(capsys, ["--config", str(path)])[0] == f"cannot read {path}: No such file or directory"


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["--schedule", "milestones"], "--schedule milestones needs --milestones", "add --milestones 60,120,160"),
        (["--milestones", "3"], "--milestones is set, but --schedule is cosine", "add --schedule milestones"),
        (
            ["--schedule", "milestones", "--milestones", "5,3"],
            "--milestones is [5, 3], but must be increasing epochs, the first at least 1",
            "",
        ),
        (
            ["--global-batch", "4", "--accumulate", "5"],
            "--global-batch 4 cannot be computed in 5 micro-batches",
            "use --accumulate 4 or less",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(capsys, words, message, hint):
    assert refusal(capsys, words) == (message, hint)


def test_a_config_that_exists_is_valid():
    with pytest.raises(SettingError, match=r"^--epochs is 0, but must be at least 1(?m:$)"):
        Config(epochs=0)
    with pytest.raises(SettingError, match=r"^--epochs is 0"):
        dataclasses.replace(Config(), epochs=0)


def test_a_misspelt_step_is_answered_with_the_nearest(capsys):
    _, hint = refusal(capsys, ["--augment", "flipp"])
    assert hint.startswith("did you mean flip?")
