"""Synchronised batch norm on one rank: the same layer as torch's."""

import pytest
import torch
from torch import nn

from paceline.core.errors import ModelError
from paceline.core.world import World
from paceline.models.zoo import build_model
from paceline.parallel.batchnorm import SyncBatchNorm, muted, synchronise_batch_norm
from paceline.parallel.buffers import average_buffers
from paceline.parallel.team import Team

CPU = torch.device("cpu")
LAYERS = [
    (nn.BatchNorm1d(5), (6, 5)),
    (nn.BatchNorm1d(5, momentum=None), (6, 5, 7)),
    (nn.BatchNorm2d(5), (6, 5, 4, 3)),
    (nn.BatchNorm2d(5, affine=False), (6, 5, 4, 3)),
    (nn.BatchNorm2d(5, track_running_stats=False), (6, 5, 4, 3)),
    (nn.BatchNorm3d(5, eps=0.1, momentum=0.3), (6, 5, 2, 3, 2)),
]


def twin(layer):
    copy = type(layer)(layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats)
    copy.load_state_dict(layer.state_dict())
    return SyncBatchNorm(copy, num_ranks=1)


def run(layer, images, weights):
    images = images.clone().requires_grad_()
    output = layer(images)
    layer.zero_grad()
    (output * weights).sum().backward()
    return [output, images.grad, *(parameter.grad for parameter in layer.parameters())]


@pytest.mark.parametrize(("layer", "shape"), LAYERS)
def test_a_lone_rank_computes_what_torch_computes(layer, shape):
    torch.manual_seed(1)
    ours = twin(layer)
    for mode in (True, True, False):
        layer.train(mode)
        ours.train(mode)
        images, weights = torch.randn(shape) * 3 + 2, torch.randn(shape)
        torch.testing.assert_close(run(ours, images, weights), run(layer, images, weights), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.state_dict(), layer.state_dict(), rtol=1e-6, atol=1e-6)
    assert list(ours.state_dict()) == list(layer.state_dict())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_images_of_other_precisions_keep_theirs(dtype):
    layer = nn.BatchNorm2d(5).to(torch.float64 if dtype == torch.float64 else torch.float32)
    images, weights = (torch.randn(6, 5, 4, 3) + 1).to(dtype), torch.randn(6, 5, 4, 3).to(dtype)
    expected, got = run(layer, images, weights), run(twin(layer).to(layer.weight.dtype), images, weights)
    assert [tensor.dtype for tensor in got] == [tensor.dtype for tensor in expected]
    tolerance = {torch.bfloat16: 0.05, torch.float16: 0.01, torch.float64: 1e-10}[dtype]
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


def test_images_and_gradients_of_any_layout_are_taken():
    layer = nn.BatchNorm2d(5)
    images = torch.randn(6, 5, 4, 3)
    plain = run(twin(layer), images, torch.ones(1))
    for other in (
        images.to(memory_format=torch.channels_last),
        images.repeat(2, 1, 1, 2)[::2, :, :, ::2].copy_(images),
    ):
        torch.testing.assert_close(run(twin(layer), other, torch.ones(1).expand(6, 5, 4, 3)), plain)


def test_a_large_mean_does_not_drown_the_variance():
    images = torch.randn(64, 5, 4, 4) + 1000
    output = twin(nn.BatchNorm2d(5))(images)
    exact = nn.BatchNorm2d(5).double()(images.double())
    torch.testing.assert_close(output.double(), exact, rtol=1e-3, atol=1e-3)


def test_a_lone_rank_keeps_its_layers_and_buffers():
    model, team = nn.Sequential(nn.BatchNorm1d(3)), Team(World(), CPU)
    assert type(synchronise_batch_norm(model, team)[0]) is nn.BatchNorm1d  # pyright: ignore[reportIndexIssue]
    average_buffers(model, team)


def test_every_layer_is_replaced_and_every_key_and_parameter_kept():
    model = build_model("resnet20", num_classes=10, image_shape=(3, 32, 32)).eval()
    keys, parameters = list(model.state_dict()), list(model.parameters())
    found = synchronise_batch_norm(model, Team(World(size=2), CPU))
    kinds = [type(module) for module in found.modules()]
    assert kinds.count(SyncBatchNorm) == 21
    assert nn.BatchNorm2d not in kinds
    assert list(found.state_dict()) == keys
    assert all(one is other for one, other in zip(found.parameters(), parameters, strict=True))
    assert not any(module.training for module in found.modules())


def test_a_layer_used_twice_stays_one():
    layer = nn.BatchNorm1d(3)
    model = synchronise_batch_norm(nn.ModuleList([layer, nn.ModuleDict({"again": layer})]), Team(World(size=2), CPU))
    assert isinstance(model, nn.ModuleList)
    assert isinstance(model[0], SyncBatchNorm)
    assert model.get_submodule("1.again") is model[0]


def test_a_custom_batch_norm_is_refused():
    class BatchNormAct(nn.BatchNorm2d):
        pass

    with pytest.raises(ModelError, match=r"BatchNormAct is not a standard batch norm") as caught:
        synchronise_batch_norm(nn.Sequential(BatchNormAct(3)), Team(World(size=2), CPU))
    assert "--batch-norm local" in str(caught.value.hint)


def test_muting_ends_with_its_block():
    model = synchronise_batch_norm(nn.Sequential(nn.BatchNorm1d(3)), Team(World(size=2), CPU))
    layer = model.get_submodule("0")
    with muted(model):
        assert layer.muted
    assert not layer.muted
