"""Names that become models, and names that do not."""

import pytest
from torch import nn

from paceline.core.errors import ExitCode, ModelError
from paceline.models.zoo import build_model, list_models


def build(name):
    return build_model(name, num_classes=10, image_shape=(1, 8, 8))


@pytest.fixture
def plugin(tmp_path):
    """Write the user's file and return how it is named on the command line."""

    def write(text, name="build"):
        path = tmp_path / "mine.py"
        path.write_text(text)
        return f"{path}:{name}"

    return write


def test_every_name_is_listed_once():
    names = list_models()
    assert len(names) == len(set(names))
    assert {"mlp", "cnn", "resnet20", "resnet50", "wide-resnet-28-10", "pyramidnet110-a270"} <= set(names)


def test_a_misspelt_name_is_answered_with_the_nearest_one():
    with pytest.raises(ModelError, match="there is no model resnet-20") as caught:
        build("resnet-20")
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("did you mean resnet20?")
    assert caught.value.exit_code == ExitCode.BAD_INPUT


def test_a_function_of_the_user_gets_the_arguments_it_takes(plugin):
    text = """
from torch import nn
def build(num_classes, in_channels, image_size, image_shape):
    assert (in_channels, image_size, image_shape) == (1, 8, (1, 8, 8))
    return nn.Sequential(nn.Flatten(), nn.Linear(in_channels * image_size ** 2, num_classes))
"""
    model = build(plugin(text))
    assert isinstance(model, nn.Sequential)
    assert model[1].out_features == 10


def test_a_class_of_the_user_is_constructed(plugin):
    text = """
from torch import nn
class Net(nn.Module):
    def __init__(self, num_classes=3):
        super().__init__()
        self.linear = nn.Linear(64, num_classes)
"""
    assert build(plugin(text, "Net")).get_parameter("linear.weight").shape == (10, 64)


@pytest.mark.parametrize(
    ("result", "what", "hint"),
    [
        ("None", "None", "end the function with: return model"),
        ("dict(a=1)", "an object of type dict", "return the model itself"),
        ("torch.nn.Linear", "the class Linear", "call the class: return Linear(...)"),
    ],
)
def test_a_function_that_returns_no_module_is_told_what_came_back(plugin, result, what, hint):
    name = plugin(f"import torch\ndef build():\n    return {result}\n")
    with pytest.raises(ModelError, match=f"mine.py:build returned {what}, not a torch.nn.Module") as caught:
        build(name)
    assert hint in str(caught.value.hint)


def test_a_function_that_raises_is_quoted_with_its_line(plugin):
    name = plugin("def build(num_classes):\n    raise ValueError('too few neurons')\n")
    with pytest.raises(ModelError, match=r"mine.py:build raised ValueError: too few neurons") as caught:
        build(name)
    assert "mine.py, line 2" in str(caught.value.hint)


def test_a_function_that_wants_more_than_we_offer_is_told_what_it_was_called_with(plugin):
    with pytest.raises(ModelError, match="missing 1 required positional argument: 'depth'") as caught:
        build(plugin("def build(depth, num_classes):\n    pass\n"))
    assert "it was called with {'num_classes': 10}" in str(caught.value.hint)


def test_a_missing_file_is_named():
    with pytest.raises(ModelError, match=r"nowhere.py does not exist"):
        build("nowhere.py:build")


def test_a_missing_function_is_answered_with_the_nearest_one(plugin):
    with pytest.raises(ModelError, match="has no function or class biuld") as caught:
        build(plugin("def build():\n    pass\n", "biuld"))
    assert "did you mean build?" in str(caught.value.hint)
