"""Joining a team: errors that are found before any rank waits for another."""

import pytest
import torch
import torch.distributed as dist

from paceline.core.errors import ConfigError, RanksError
from paceline.core.world import World
from paceline.parallel.join import join

PAIR = World(size=2, launcher="flags", init_method="tcp://127.0.0.1:1")


@pytest.mark.skipif(dist.is_backend_available("nccl"), reason="this torch has nccl")
def test_a_backend_that_is_not_built_in_is_refused():
    with pytest.raises(ConfigError, match="this torch has no nccl backend") as caught, join(PAIR, torch.device("cuda")):
        pass
    assert caught.value.hint == "install a torch with it, or drop --backend and use --device cpu"


def test_an_address_without_a_port_is_refused():
    nowhere = World(size=2, launcher="flags", init_method="tcp://nowhere")
    with pytest.raises(RanksError, match="tcp://nowhere is not an address"), join(nowhere, torch.device("cpu")):
        pass
