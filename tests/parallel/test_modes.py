"""The mode of a run: which one is chosen, which settings it refuses, and what is called in place of the model."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from paceline.core.config import Config
from paceline.core.errors import ConfigError
from paceline.core.world import World
from paceline.parallel.modes import (
    ModeChoice,
    averages_gradients,
    choose_mode,
    convert_batch_norm,
    num_devices,
    refuse_unfit,
    without_grad_sync,
    wrap_model,
)
from paceline.parallel.team import Team
from paceline.parallel.threads import ThreadedParallel

CPU = torch.device("cpu")
ALONE, PAIR = World(), World(size=2)
DDP, DP, FSDP, SINGLE = (ModeChoice(mode=mode, why="requested") for mode in ("ddp", "dp", "fsdp", "single"))


@pytest.fixture
def group_of_one():
    """Join a process group of one rank, which needs no other process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("asked", "world", "expected"),
    [
        ("auto", ALONE, "single (1 rank)"),
        ("auto", PAIR, "ddp (2 ranks)"),
        ("ddp", PAIR, "ddp (requested)"),
        ("fsdp", PAIR, "fsdp (requested)"),
        ("ddp", ALONE, "single (the same as ddp with one rank)"),
        ("fsdp", ALONE, "single (the same as fsdp with one rank)"),
        ("single", ALONE, "single (requested)"),
        ("dp", ALONE, "dp (requested, 3 devices in one process)"),
    ],
)
def test_the_mode_follows_from_the_setting_and_the_ranks(asked, world, expected):
    choice = choose_mode(Config(mode=asked), world, devices=3)
    assert str(choice) == expected
    assert choice.devices == (3 if asked == "dp" else 1)


@pytest.mark.parametrize("asked", ["single", "dp"])
def test_a_mode_of_one_process_is_refused_with_several_ranks(asked):
    with pytest.raises(ConfigError, match=f"--mode {asked} is for one process, but there are 2 ranks"):
        choose_mode(Config(mode=asked), PAIR, devices=1)


@pytest.mark.parametrize(
    ("settings", "choice", "flag"),
    [
        ({"batch_norm": "ghost"}, FSDP, "--batch-norm ghost"),
        ({"checkpoint_activations": ("layer1",)}, DP, "--checkpoint-activations"),
        ({"compress": "fp16"}, FSDP, "--compress fp16"),
        ({"compress": "bf16"}, SINGLE, "--compress bf16"),
    ],
)
def test_settings_that_a_mode_cannot_honour_are_refused(settings, choice, flag):
    config = Config(**settings)
    with pytest.raises(ConfigError) as refused:
        refuse_unfit(config, choice)
    assert refused.value.message.startswith(flag)
    assert refused.value.hint
    refuse_unfit(config, DDP)


def test_one_process_calls_the_model_itself():
    model, team = nn.Linear(2, 2), Team(ALONE, CPU)
    assert wrap_model(model, Config(), team, SINGLE) is model
    assert wrap_model(model, Config(), team, ModeChoice(mode="dp", devices=1, why="")) is model


def test_devices_of_one_process_are_threads_on_a_cpu():
    wrapped = wrap_model(nn.Linear(2, 2), Config(), Team(ALONE, CPU), ModeChoice(mode="dp", devices=2, why=""))
    assert isinstance(wrapped, ThreadedParallel)
    assert not averages_gradients(wrapped)


def test_a_bitwise_run_leaves_gradients_to_its_own_reducer():
    model = nn.Linear(2, 2)
    assert wrap_model(model, Config(exact="bitwise"), Team(PAIR, CPU), DDP) is model
    assert not averages_gradients(model)


def test_ranks_call_ddp_which_leaves_buffers_alone(group_of_one):
    wrapped = wrap_model(nn.Linear(2, 2), Config(bucket_mb=3.0), Team(ALONE, CPU), DDP)
    assert isinstance(wrapped, DistributedDataParallel)
    assert averages_gradients(wrapped)
    assert not wrapped.broadcast_buffers
    assert wrapped.bucket_bytes_cap == 3 << 20


@pytest.mark.parametrize(
    ("settings", "is_static"),
    [({}, True), ({"accumulate": 2}, False), ({"batch_norm": "ghost"}, False), ({"model": "own.py:Net"}, False)],
)
def test_ddp_takes_the_graph_for_fixed_only_where_it_is(group_of_one, settings, is_static):
    wrapped = wrap_model(nn.Linear(2, 2), Config(**settings), Team(ALONE, CPU), DDP)
    assert isinstance(wrapped, DistributedDataParallel)
    assert wrapped.static_graph is is_static
    assert wrapped.find_unused_parameters is (settings == {"model": "own.py:Net"})


def test_gradients_stay_on_their_rank_until_the_last_micro_batch(group_of_one):
    wrapped = wrap_model(nn.Linear(2, 2), Config(accumulate=2), Team(ALONE, CPU), DDP)
    assert isinstance(wrapped, DistributedDataParallel)
    with without_grad_sync(wrapped):
        assert not wrapped.require_backward_grad_sync
    assert wrapped.require_backward_grad_sync


def test_batch_norm_is_synchronised_only_between_ranks():
    model = nn.BatchNorm2d(3)
    assert convert_batch_norm(model, Config(batch_norm="sync"), Team(ALONE, CPU)) is model
    assert convert_batch_norm(model, Config(batch_norm="local"), Team(PAIR, CPU)) is model
    converted = convert_batch_norm(model, Config(batch_norm="sync"), Team(PAIR, CPU))
    assert not isinstance(converted, nn.BatchNorm2d)


def test_a_cpu_has_as_many_devices_as_are_asked_for():
    assert num_devices(CPU, None) == 1
    assert num_devices(CPU, 4) == 4


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_more_gpus_than_there_are_are_refused():
    with pytest.raises(ConfigError, match="--nproc 2 is more than the 0 GPUs of this machine"):
        num_devices(torch.device("cuda"), 2)
