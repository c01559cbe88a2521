"""Joining: what is refused before any rank waits for another."""

import pytest
import torch
import torch.distributed as dist

from paceline.core.errors import ConfigError, LostRankError, RanksError
from paceline.core.world import World
from paceline.parallel.lost import is_lost, peer_of
from paceline.parallel.team import join, loss_explained

PAIR = World(size=2, told_by="flags", meeting="tcp://127.0.0.1:1")
RESET = (
    "[/pytorch/gloo/transport/tcp/pair.cc:537] Read error [10.77.0.2]:37508: Connection reset by peer. "
    "This is typically caused by a remote worker hanging or bugs in the application."
)


@pytest.mark.skipif(dist.is_backend_available("nccl"), reason="this torch has nccl")
def test_a_backend_that_is_not_built_in_is_refused():
    with pytest.raises(ConfigError, match="this torch has no nccl backend") as caught, join(PAIR, torch.device("cuda")):
        pass
    assert caught.value.hint == "install a torch that has, or use --device cpu"


def test_an_address_without_a_port_is_refused():
    nowhere = World(size=2, told_by="flags", meeting="tcp://nowhere")
    with pytest.raises(RanksError, match="tcp://nowhere is not an address"), join(nowhere, torch.device("cpu")):
        pass


def test_a_lost_connection_is_told_from_errors_of_the_model():
    with pytest.raises(LostRankError, match=r"the connection to a rank at 10\.77\.0\.2 was lost"), loss_explained():
        raise RuntimeError(RESET)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), loss_explained():
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied (64x100 and 64x10)")


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        (RESET, True),
        ("NCCL error: remote process exited or there was a network error", True),
        ("[c10d] TCPStore: Connection reset by peer", True),
        ("Timed out waiting 7000ms for recv operation to complete (gloo)", False),
        ("ConnectionResetError: reset by peer while reading an image", False),
    ],
)
def test_what_torch_says_when_a_rank_has_gone_is_known(text, lost):
    assert is_lost(text) == lost
    assert peer_of("nothing is said") == "another rank"
