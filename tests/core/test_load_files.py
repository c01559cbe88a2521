"""Files are read without building a command line for each, and mean what they mean to the command line."""

import datetime

import cyclopts
import pytest
import tomli_w
from hypothesis import example, given, settings
from hypothesis import strategies as st

from paceline.core.config import SETTINGS, Config
from paceline.core.errors import ConfigError, SettingError
from paceline.core.load import Layers, Settings, load_config, write_config
from paceline.core.start import START_SETTINGS
from tests.core.strategies import configs

scalars = (
    st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.booleans()
    | st.dates()
    | st.sampled_from(["", "none", "null", "true", "1", "-5", "1_000", "1e3", "0x10", "nan", "2 epochs", "5 steps"])
    | st.sampled_from(["a,b", '["a"]', "{}", " sgd ", "sgd", "SGD", "bitwise", "crop4", "60,120", "tensorboard", "ö\n"])
)
values = scalars | st.lists(scalars, max_size=3) | st.just({"name": 1})
keys = st.sampled_from([*SETTINGS, *START_SETTINGS, "global-batch", "epocs", "wrong"])


def outcome(read, *where):
    """Return the settings, or all that a user is told instead."""
    try:
        return read(*where)
    except ConfigError as problem:
        return type(problem), problem.message, problem.hint


def read_by_command_line(path, environ):
    """Read the file the way `paceline train --config` does, with a command line built for it."""
    layers = Layers(environ, lambda _arguments: [path])
    app = cyclopts.App(config=layers)

    @app.default
    def command(config: Settings = Config()):  # noqa: B008 - frozen
        return config

    try:
        return app([], exit_on_error=False, print_error=False, result_action="return_value")
    except (cyclopts.CycloptsError, SettingError) as problem:
        raise layers.explain(problem) from problem


@settings(max_examples=60)
@given(configs())
def test_a_written_file_means_the_same_to_both_readers(tmp_path_factory, config):
    path = tmp_path_factory.getbasetemp() / "written.toml"
    write_config(config, path)
    assert load_config(path) == read_by_command_line(path, {}) == config


@settings(max_examples=200)
@given(st.dictionaries(keys, values, max_size=4))
@example({"epochs": True})
@example({"epochs": 2.0})
@example({"compile": 1})
@example({"lr": 1})
@example({"run": "none"})
@example({"track": "none"})
@example({"track": '["tensorboard"]'})
@example({"eval_every": 3, "seed": datetime.date(2026, 1, 1)})
@example({"momentum": "x", "epochs": "x"})
@example({"optimizer": "SGD"})
@example({"device": True, "data": 3})
def test_whatever_a_file_holds_both_readers_say_the_same(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_text(tomli_w.dumps(content), encoding="utf-8")
    assert outcome(load_config, path) == outcome(read_by_command_line, path, {})


@settings(max_examples=50)
@given(st.dictionaries(keys, scalars.map(str), max_size=3), st.dictionaries(keys, scalars, max_size=3))
def test_environment_and_file_are_layered_the_same_by_both_readers(tmp_path_factory, variables, content):
    path = tmp_path_factory.getbasetemp() / "layered.toml"
    path.write_text(tomli_w.dumps(content), encoding="utf-8")
    environ = {f"PACELINE_{key.upper()}": value for key, value in variables.items()}
    ours = outcome(lambda: load_config(path, environ=environ))
    assert ours == outcome(read_by_command_line, path, environ)


@pytest.mark.parametrize("text", ['model = "mlp"', "epochs = 0", "epochs = 'x'", "wrong = 1"])
def test_no_file_needs_a_command_line_built_for_it(file, monkeypatch, text):
    load_config(file('save_every = "2 epochs"'))  # the one that is built is kept

    def build(*_args, **_kwargs):
        raise AssertionError("built a command line")

    monkeypatch.setattr("paceline.core.load.App", build)
    path = file(f"{text}\ntrack = []\nruns_dir = 'here'")
    for _ in range(3):
        outcome(load_config, path)
