"""Objects as settings: each gets a name that other processes can use, or one that they refuse with what to do."""

import sys
from collections import OrderedDict
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from paceline.core.config import Config
from paceline.core.errors import ConfigError, ModelError
from paceline.core.live_code import refuse_called_code
from paceline.core.plugin import code_files, load_plugin
from paceline.core.start import Start
from paceline.data.catalog import open_data


class Net(nn.Linear):
    """A model in a file."""


def build():
    return Net(2, 2)


def config(**settings: Any) -> Config:
    return Config(**settings)


@pytest.fixture
def cell(monkeypatch):
    """Return a class as a cell of a notebook makes it."""
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    return type("Net", (nn.Linear,), {"__module__": "__main__", "__qualname__": "Net"})


def test_a_class_or_function_of_a_file_is_named_by_the_file():
    name = config(model=Net).model
    assert name.endswith("tests/core/test_live_code.py:Net")
    assert load_plugin(name, ModelError) is Net, "not a copy from a second import of the file"
    assert config(model=build).model.endswith("test_live_code.py:build")
    assert config(optimizer=torch.optim.RMSprop).optimizer == "torch.optim.rmsprop:RMSprop"


def test_a_class_of_a_notebook_is_found_in_this_process_only(cell):
    made = config(model=cell, data="digits")
    assert (made.model, made.run_name) == ("__main__.py:Net", "digits-Net")
    assert load_plugin(made.model, ModelError) is cell
    assert code_files([made.model]) == {}
    with pytest.raises(ConfigError, match="Net is defined in this notebook or script, but each rank") as caught:
        refuse_called_code(made.as_dict()["model"] for _ in range(1))
    assert caught.value.hint == 'write it to a file, in a notebook with %%writefile my.py, and give "my.py:Net"'
    refuse_called_code(["my.py:Net", "resnet20"])
    with pytest.raises(ModelError, match="Other was defined in a notebook or script, which this process has not run"):
        load_plugin("__main__.py:Other", ModelError)


def test_code_without_a_place_of_its_own_belongs_to_its_caller():
    assert config(model=lambda: Net(2, 2)).model == "__main__.py:lambda"
    assert config(model=partial(Net, 2, 2)).model == "__main__.py:partial"


def test_a_data_set_may_be_given_itself():
    images = torch.rand(40, 1, 8, 8)
    made = config(data=torch.utils.data.TensorDataset(images, torch.arange(40) % 4))
    assert made.data == "__main__.py:TensorDataset"
    data = open_data(made)
    assert (data.num_classes, len(data.train), len(data.test)) == (4, 36, 4)


@pytest.mark.parametrize(
    ("settings", "message", "hint"),
    [
        ({"model": Net(2, 2)}, "model is an object of type Net", "give the class or a function, as in model=Net"),
        ({"model": 3}, "model is an object of type int", 'give a name such as "my.py:build"'),
        ({"epoch": 2}, "epoch is not a setting", "did you mean epochs?"),
        ({"frobnicate": 2}, "frobnicate is not a setting", "list them with help(paceline.Config)"),
    ],
)
def test_a_setting_that_is_none_says_what_to_write(settings, message, hint):
    with pytest.raises(ConfigError, match=message) as caught:
        config(**settings)
    assert str(caught.value.hint).startswith(hint)
    assert caught.value.__notes__ == [f"hint: {caught.value.hint}"], "a notebook shows it below the traceback"


def test_settings_are_shown_by_what_is_not_the_default():
    assert repr(Config()) == "Config()"
    assert repr(Config(model="mlp", epochs=3)) == "Config(model='mlp', epochs=3)"
    assert repr(Start(nproc=2)) == "Start(nproc=2)"
    assert OrderedDict(Config().as_dict()), "it is still a record"
