"""--init: which tensors of a file a model takes."""

import pytest
import torch

from paceline.core.errors import ModelError
from paceline.engine.initial_weights import fitted_names, head_names, match_weights
from paceline.models.zoo import build_model

NAMES = ("w.pt", "cnn")


def cnn(num_classes=10):
    return build_model("cnn", num_classes=num_classes, image_shape=(1, 8, 8))


def shapes(model):
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def test_every_tensor_of_the_same_model_is_taken():
    match = match_weights(shapes(cnn()), cnn().state_dict(), head=(), names=NAMES)
    assert (len(match.found), match.missing, match.left_out) == (len(shapes(cnn())), (), ())
    assert str(match) == "20 of 20 tensors"


def test_a_new_head_leaves_out_the_last_layer_whatever_its_shape():
    model = cnn(num_classes=3)
    head = head_names(model, "cnn")
    assert head == ("linear.weight", "linear.bias")
    match = match_weights(shapes(model), cnn().state_dict(), head=head, names=NAMES)
    assert str(match) == "18 of 20 tensors; new head: linear.weight, linear.bias"


def test_another_number_of_classes_without_a_new_head_is_refused():
    with pytest.raises(ModelError, match=r"linear\.weight is 10×64 in w\.pt, but 3×64 in cnn") as caught:
        match_weights(shapes(cnn(num_classes=3)), cnn().state_dict(), head=(), names=NAMES)
    assert "--head new" in (caught.value.hint or "")


def test_another_architecture_is_refused():
    other = build_model("mlp", num_classes=10, image_shape=(1, 8, 8)).state_dict()
    with pytest.raises(ModelError, match=r"w\.pt has 0 of the 20 tensors of cnn") as caught:
        match_weights(shapes(cnn()), other, head=(), names=NAMES)
    assert "same architecture" in (caught.value.hint or "")


def test_missing_and_unknown_tensors_are_reported():
    saved = {**cnn().state_dict(), "extra.weight": torch.zeros(1)}
    del saved["layer1.norm.num_batches_tracked"]
    match = match_weights(shapes(cnn()), saved, head=(), names=NAMES)
    assert str(match) == (
        "19 of 20 tensors; missing, drawn from the seed: layer1.norm.num_batches_tracked; "
        "left out of the file: extra.weight"
    )


@pytest.mark.parametrize("prefix", ["", "model.", "backbone."])
def test_a_prefix_of_the_file_is_removed(prefix):
    saved = {prefix + name: tensor for name, tensor in cnn().state_dict().items()}
    assert set(fitted_names(saved, shapes(cnn()))) == set(shapes(cnn()))


def test_a_prefix_of_the_model_is_added():
    wanted = [f"transformer.{name}" for name in shapes(cnn())]
    assert set(fitted_names(cnn().state_dict(), wanted)) == set(wanted)


def test_a_head_that_shares_its_weights_cannot_be_renewed():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    model[1].weight = model[0].weight
    with pytest.raises(ModelError, match="shares its weights"):
        head_names(model, "tied")
