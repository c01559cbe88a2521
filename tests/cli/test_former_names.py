"""The name of a run was once the setting `run`: flags, variables, files and run folders of that time still work."""

import re

import pytest

from paceline import cli
from paceline.core.errors import ConfigError
from paceline.core.load import load_config
from paceline.records.reader import summarise
from tests.core.conftest import refusal


@pytest.fixture
def former_run(own_run):
    """Return a finished run whose config.toml has the former name of the setting."""
    text = own_run.config.read_text(encoding="utf-8")
    assert 'name = "digits-mlp"' in text
    own_run.config.write_text(text.replace('name = "digits-mlp"', 'run = "demo"'), encoding="utf-8")
    return own_run


def test_a_run_folder_of_that_time_is_listed_evaluated_and_compared(run, former_run):
    assert run("runs").out.splitlines()[2].startswith("demo/001")
    assert re.search(r"^name +demo$", run("runs", "show", "demo").out, re.MULTILINE)
    assert run("runs", "compare", "demo", "demo").code == 0
    assert run("eval", "demo").code == 0
    assert run("explain", "demo").code == 0


def test_a_run_folder_of_that_time_is_resumed_in_place_and_then_has_the_new_name(run, former_run):
    answer = run("train", "--resume", former_run.path, "--epochs=3")
    assert answer.code == 0, answer.err
    assert summarise(former_run).step == 33
    text = former_run.config.read_text(encoding="utf-8")
    assert 'name = "demo"' in text
    assert "\nrun = " not in text


def test_its_settings_start_another_run_of_the_same_name(run, former_run, elsewhere):
    assert run("train", "--config", former_run.config, "--runs-dir=runs").code == 0
    assert (elsewhere / "runs/demo/002").is_dir()


@pytest.mark.parametrize("words", [["--run", "x"], ["--run=x"], ["--name", "x"]])
def test_both_flags_name_the_run(train, elsewhere, words):
    assert train(*words).code == 0
    assert (elsewhere / "runs/x/001").is_dir()


@pytest.mark.parametrize("variables", [("RUN",), ("NAME",), ("RUN", "NAME"), ("NAME", "RUN")])
def test_both_variables_name_the_run(variables):
    assert load_config(environ={f"PACELINE_{name}": "x" for name in variables}).name == "x"


def test_both_keys_name_the_run_and_an_upper_layer_wins_under_either_name(tmp_path):
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    first.write_text('run = "old"', encoding="utf-8")
    second.write_text('name = "new"', encoding="utf-8")
    assert load_config(first, second).name == "old"
    assert load_config(second, first).name == "new"
    assert load_config(second, environ={"PACELINE_RUN": "top"}).name == "top"


@pytest.mark.usefixtures("elsewhere")
def test_two_different_values_are_refused_with_both_places(capsys, tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text('name = "a"\nrun = "b"', encoding="utf-8")
    hint = "run is the former name of name: keep one of them"
    assert refusal(capsys, ["--config", str(file)]) == (f'{file}: name is "a", but {file}: run is "b"', hint)
    environ = {"PACELINE_RUN": "b", "PACELINE_NAME": "a"}
    assert refusal(capsys, [], environ) == ('PACELINE_NAME is "a", but PACELINE_RUN is "b"', hint)
    message, _ = refusal(capsys, ["--name", "a", "--run", "b"])
    assert message == "--name and --run are the same setting: give one"


def test_a_bad_value_is_told_with_the_name_that_the_user_wrote(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text('run = "a/b"', encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape(f'{file}: run is "a/b"')):
        load_config(file)
    with pytest.raises(ConfigError, match='PACELINE_RUN is "a/b"'):
        load_config(environ={"PACELINE_RUN": "a/b"})
    file.write_text("run = [1, 2]", encoding="utf-8")
    with pytest.raises(ConfigError, match="run: expected text"):
        load_config(file)


def test_a_misspelt_name_is_answered_with_the_present_one(capsys, elsewhere):
    assert cli.run(["train"], {"PACELINE_NAMES": "x"}) == 2
    assert "did you mean PACELINE_NAME?" in capsys.readouterr().err
