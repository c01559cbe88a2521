"""The trial run: what it refuses, and what it leaves alone."""

import pytest
import torch
from torch import nn

from paceline.core.errors import ModelError
from paceline.models.trial_pass import check_model
from paceline.models.zoo import build_model

DIGITS = (1, 8, 8)


def check(model):
    check_model(model, num_classes=10, image_shape=DIGITS, name="my.py:build")


def classifier(num_outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_outputs))


class Returning(nn.Module):
    """A model that makes something of a classifier's scores."""

    def __init__(self, change):
        super().__init__()
        self.inner = classifier(10)
        self.change = change

    def forward(self, images):
        return self.change(self.inner(images))


def test_a_model_that_fits_passes():
    check(build_model("resnet20", num_classes=10, image_shape=DIGITS))


def test_the_wrong_number_of_classes_is_named():
    with pytest.raises(ModelError, match=r"^my.py:build returns 7 classes, the data has 10(?m:$)") as caught:
        check(classifier(7))
    assert "num_classes" in str(caught.value.hint)


def test_a_model_for_other_images_is_refused_with_the_cause():
    model = build_model("resnet20", num_classes=10, image_shape=(3, 32, 32))
    with pytest.raises(ModelError, match=r"my.py:build cannot take images of 1×8×8 .*RuntimeError.*channels") as caught:
        check(model)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_model_that_returns_no_tensor_is_refused():
    with pytest.raises(ModelError, match=r"my.py:build returns a tuple, not one tensor of scores") as caught:
        check(Returning(lambda scores: (scores, None)))
    assert "(images, 10)" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("change", "shape"),
    [
        (lambda scores: scores[:, :, None, None], r"\(2, 10, 1, 1\)"),
        (lambda scores: scores.sum(), r"\(\)"),
        (lambda scores: scores[:1], r"\(1, 10\)"),
    ],
)
def test_a_model_that_returns_another_shape_is_refused(change, shape):
    with pytest.raises(ModelError, match=rf"my.py:build returns the shape {shape} for 2 images, expected \(2, 10\)"):
        check(Returning(change))


def test_a_model_with_nothing_to_train_is_refused():
    with pytest.raises(ModelError, match=r"my.py:build has no parameters, so there is nothing to train"):
        check(nn.Flatten())


def test_a_lazy_layer_is_refused_before_it_is_given_a_shape():
    with pytest.raises(ModelError, match=r"my.py:build has a lazy layer: 1.weight has no shape yet"):
        check(nn.Sequential(nn.Flatten(), nn.LazyLinear(10)))


class Restless(nn.Module):
    """A model that draws numbers, writes one buffer and replaces another, even in evaluation mode."""

    num_calls: torch.Tensor
    last_mean: torch.Tensor
    table: torch.Tensor

    def __init__(self):
        super().__init__()
        self.body = build_model("cnn", num_classes=10, image_shape=DIGITS)
        self.frozen = nn.BatchNorm2d(1).eval()
        self.register_buffer("num_calls", torch.zeros(()))
        self.register_buffer("last_mean", torch.zeros(()))
        self.register_buffer("table", torch.arange(3.0)[:, None].expand(3, 4))

    def forward(self, images):
        self.num_calls += 1
        self.last_mean = images.mean() + 1
        if images.shape[2] != 8:
            raise ValueError("not a digit")
        return nn.functional.dropout(self.body(self.frozen(images)), training=True)


def facts(model):
    """Everything that the trial must leave alone, as values that can be compared."""
    return {
        "flags": [module.training for module in model.modules()],
        "buffers": {key: id(value) for key, value in model.named_buffers()},
        "values": {key: value.tolist() for key, value in model.state_dict().items()},
        "gradients": [parameter.grad for parameter in model.parameters()],
        "generator": torch.get_rng_state().tolist(),
    }


def test_the_trial_leaves_flags_buffers_and_generator_as_they_were():
    model = Restless()
    before = facts(model)
    check(model)
    assert facts(model) == before


def test_a_trial_that_fails_leaves_them_too():
    model = Restless()
    before = facts(model)
    with pytest.raises(ModelError, match="not a digit"):
        check_model(model, num_classes=10, image_shape=(1, 9, 9), name="restless")
    assert facts(model) == before
