"""Models of timm and torchvision: absent, broken, and as they are."""

import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

from paceline.core.errors import ModelError
from paceline.models.trial_pass import check_model
from paceline.models.zoo import build_model


def build(name, image_shape=(3, 32, 32)):
    return build_model(name, num_classes=10, image_shape=image_shape)


@pytest.fixture
def install(monkeypatch, tmp_path):
    """Put a package with this text where Python looks first, as if pip had installed it."""

    def write(library, text):
        for module in [name for name in sys.modules if name.partition(".")[0] == library]:
            monkeypatch.delitem(sys.modules, module)
        (tmp_path / library).mkdir()
        (tmp_path / library / "__init__.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)

    return write


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_a_missing_library_is_answered_with_the_command_that_installs_it(monkeypatch, library):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ModelError, match=f"^{library} is not installed(?m:$)") as caught:
        build(f"{library}:resnet18")
    assert caught.value.hint == "pip install 'paceline[vision]'"


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_a_torchvision_without_its_operators_is_explained(install, library):
    # timm imports torchvision, so both fail with these words where torchvision was built for another torch.
    install(library, "raise RuntimeError('operator torchvision::nms does not exist')")
    with pytest.raises(
        ModelError, match=f"{library} is installed but cannot be imported: RuntimeError: operator torchvision::nms"
    ) as caught:
        build(f"{library}:resnet18")
    assert "pip install --force-reinstall --no-deps torchvision" in str(caught.value.hint)
    assert "paceline's own models work without it" in str(caught.value.hint)


def test_a_broken_torchvision_does_not_touch_our_own_models(install):
    install("torchvision", "raise RuntimeError('operator torchvision::nms does not exist')")
    assert build("resnet20").get_parameter("linear.weight").shape == (10, 64)


def test_a_library_that_lacks_another_names_it(install):
    install("timm", "import a_package_that_nobody_has")
    with pytest.raises(ModelError, match="timm is installed but cannot be imported: ModuleNotFoundError") as caught:
        build("timm:resnet18")
    assert "pip install a_package_that_nobody_has, which timm needs" in str(caught.value.hint)


@pytest.fixture
def fake_timm(monkeypatch):
    """A timm of two models, one of which does not accept in_chans."""
    calls = {}

    def create_model(name, **arguments):
        if name == "stubborn" and "in_chans" in arguments:
            raise TypeError("__init__() got an unexpected keyword argument 'in_chans'")
        calls[name] = arguments
        return nn.Linear(1, 1)

    fake = ModuleType("timm")
    vars(fake).update(
        list_models=lambda: ["fixed", "free", "stubborn"],
        get_pretrained_cfg_value=lambda name, key: name == "fixed" and key == "fixed_input_size",
        create_model=create_model,
    )
    monkeypatch.setitem(sys.modules, "timm", fake)
    return calls


def test_timm_is_told_classes_and_channels_and_the_size_only_where_it_is_fixed(fake_timm):
    build("timm:free", image_shape=(1, 8, 8))
    build("timm:fixed", image_shape=(3, 32, 32))
    assert fake_timm["free"] == {"num_classes": 10, "in_chans": 1}
    assert fake_timm["fixed"] == {"num_classes": 10, "in_chans": 3, "img_size": 32}
    build("timm:fixed", image_shape=(3, 32, 48))
    assert fake_timm["fixed"]["img_size"] == (32, 48)


@pytest.mark.usefixtures("fake_timm")
def test_an_argument_that_the_library_refuses_is_explained():
    with pytest.raises(
        ModelError, match=r"timm:stubborn does not accept num_classes=10, in_chans=3: TypeError: .*'in_chans'"
    ) as caught:
        build("timm:stubborn")
    assert "my.py:build" in str(caught.value.hint)


@pytest.mark.usefixtures("fake_timm")
@pytest.mark.parametrize(("name", "hint"), [("stuborn", "did you mean stubborn?"), ("", "list all with: python -c")])
def test_an_unknown_name_is_answered_with_the_nearest_ones(name, hint):
    with pytest.raises(ModelError, match=f"^there is no model timm:{name}(?m:$)") as caught:
        build(f"timm:{name}")
    assert str(caught.value.hint).startswith(hint)


def test_torchvision_cannot_take_grey_images_and_says_what_can(monkeypatch):
    fake = ModuleType("torchvision")
    vars(fake)["models"] = SimpleNamespace(list_models=lambda module: ["resnet18"])
    monkeypatch.setitem(sys.modules, "torchvision", fake)
    with pytest.raises(ModelError, match="torchvision:resnet18 takes images of 3 channels, the data has 1") as caught:
        build("torchvision:resnet18", image_shape=(1, 8, 8))
    assert "timm" in str(caught.value.hint)


@pytest.fixture(scope="session")
def real_libraries():
    """The real timm and torchvision, whose wheel lacks its operators on a CPU torch: then give it two names to find."""
    for library in ("timm", "torchvision"):
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed: pip install 'paceline[vision]'")
    operators = torch.library.Library("torchvision", "FRAGMENT")
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for operator in ("nms", "qnms"):
            operators.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        importlib.import_module("torchvision")
    yield
    del operators


@pytest.mark.usefixtures("real_libraries")
@pytest.mark.parametrize(
    ("name", "image_shape"),
    [
        ("timm:resnet18", (1, 8, 8)),
        ("timm:vit_tiny_patch16_224", (3, 32, 32)),
        ("torchvision:resnet18", (3, 32, 32)),
        ("torchvision:googlenet", (3, 64, 64)),
    ],
)
def test_models_of_the_real_libraries_fit_the_data(name, image_shape):
    model = build(name, image_shape)
    check_model(model, num_classes=10, image_shape=image_shape, name=name)
    assert isinstance(model(torch.zeros(2, *image_shape)), torch.Tensor)


@pytest.mark.usefixtures("real_libraries")
@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_a_misspelt_name_of_a_real_library_is_answered_with_the_nearest_ones(library):
    with pytest.raises(ModelError) as caught:
        build(f"{library}:resnt18")
    assert "did you mean resnet18," in str(caught.value.hint)
