"""Fine-tuning on real ranks: weights of another run, a new head, frozen layers, factors, checkpointed activations."""

import pytest
import torch

from paceline.core.errors import ConfigError, ModelError
from tests.ranks.runs import TIGHT, exact_settings, rank_settings, train, unequal
from tests.states import differences, final_state

TUNED = {
    "model": "cnn", "steps": 4, "freeze": ("layer1",), "lr_for": ("linear=10",), "checkpoint_activations": ("layer2",),
}  # fmt: skip


@pytest.fixture
def weights(tmp_path):
    """Return a file with weights of a cnn for another number of classes, and those weights."""
    torch.manual_seed(5)
    path = tmp_path / "weights.pt"
    state = {f"module.layer{number}.conv.weight": torch.randn(shape) * 0.2 for number, shape in enumerate(
        [(16, 1, 3, 3), (32, 16, 3, 3), (64, 32, 3, 3)], start=1)}  # fmt: skip
    for number, width in enumerate((16, 32, 64), start=1):
        norm = f"module.layer{number}.norm"
        state |= {f"{norm}.weight": torch.ones(width), f"{norm}.bias": torch.zeros(width)}
        state |= {f"{norm}.running_mean": torch.rand(width), f"{norm}.running_var": torch.ones(width) + 1}
    state |= {"module.linear.weight": torch.randn(3, 64), "module.linear.bias": torch.zeros(3)}
    torch.save({"state_dict": state, "epoch": 3}, path)
    return path, {name.removeprefix("module."): tensor for name, tensor in state.items()}


def test_frozen_layers_keep_the_weights_and_statistics_of_the_file(ranks, tmp_path, weights):
    path, saved = weights
    folder = train(ranks, 1, rank_settings(tmp_path, init=str(path), head="new", ema=0.9, **TUNED))
    state = final_state(folder)
    for part in ("model", "ema"):
        frozen = {name: tensor for name, tensor in saved.items() if name.startswith("layer1")}
        assert differences(frozen, {name: state[part][name] for name in frozen}) == []
        assert not torch.equal(state[part]["layer2.conv.weight"], saved["layer2.conv.weight"])


def test_a_run_starts_from_the_average_that_another_one_evaluates(ranks, tmp_path):
    usual = rank_settings(tmp_path, model="mlp", steps=2, ema=0.5)
    source = train(ranks, 1, usual)
    target = train(ranks, 1, usual | {"init": str(source), "lr": 1e-30})
    assert differences(final_state(source)["ema"], final_state(target)["model"]) == []


def test_sharded_parameters_are_fine_tuned_as_whole_ones_are(ranks, tmp_path, weights):
    settings = rank_settings(tmp_path, init=str(weights[0]), head="new", **TUNED)
    ddp, fsdp = (final_state(train(ranks, 2, settings | {"mode": mode})) for mode in ("ddp", "fsdp"))
    for name, tensor in ddp["model"].items():
        torch.testing.assert_close(fsdp["model"][name], tensor, rtol=TIGHT, atol=1e-5)


@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_a_bitwise_run_is_fine_tuned_and_resumed_to_the_same_bits(ranks, tmp_path, weights, mode):
    settings = exact_settings(tmp_path, init=str(weights[0]), head="new", **TUNED) | {"steps": 6}
    alone = train(ranks, 1, settings)
    stopped = train(ranks, 2, settings | {"mode": mode}, None, 1, 3)
    weights[0].unlink()  # a resume does not need it
    assert unequal(alone, train(ranks, 1, settings, stopped)) == []


def test_factors_change_the_learning_rate_of_their_layers_only(ranks, tmp_path):
    usual = rank_settings(tmp_path, model="mlp", steps=1, momentum=0.0, weight_decay=0.0)
    start, plain, faster = (
        final_state(train(ranks, 1, usual | extra))["model"]
        for extra in ({"lr": 1e-30}, {}, {"lr_for": ("linear2=10",)})
    )
    for layer, factor in (("linear1", 1), ("linear2", 10)):
        name = f"{layer}.bias"
        torch.testing.assert_close(
            faster[name] - start[name], factor * (plain[name] - start[name]), rtol=1e-3, atol=1e-6
        )


@pytest.mark.parametrize(
    ("extra", "error", "message"),
    [
        ({"init": "nowhere.pt"}, ConfigError, "--init nowhere.pt: nowhere.pt does not exist"),
        ({"freeze": ("layer9",)}, ConfigError, "--freeze layer9 matches nothing"),
        ({"freeze": ("*",)}, ConfigError, "matches every parameter of cnn"),
        ({"head": "keep"}, ModelError, "linear.weight is 3×64 in"),
        ({"model": "mlp"}, ModelError, "has 0 of the"),
    ],
)
def test_bad_input_is_one_sentence(ranks, tmp_path, weights, extra, error, message):
    settings = rank_settings(tmp_path, **({"model": "cnn", "init": str(weights[0]), "head": "new"} | extra))
    with pytest.raises(error, match=message):
        train(ranks, 1, settings)
