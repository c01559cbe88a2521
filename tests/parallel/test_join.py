"""The backend of a process group: of the device, or asked for, and refused where it cannot carry the tensors."""

import pytest
import torch

from paceline.core.errors import ConfigError
from paceline.core.world import World
from paceline.parallel.join import backend_for, joined

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def test_the_device_decides_unless_the_user_does():
    assert (backend_for(CPU), backend_for(GPU)) == ("gloo", "nccl")
    assert (backend_for(CPU, "mpi"), backend_for(GPU, "ucc")) == ("mpi", "ucc")


@pytest.mark.parametrize(
    ("device", "backend", "problem"),
    [
        (CPU, "nccl", "--backend nccl carries tensors of cuda, but the device is cpu"),
        (GPU, "xccl", "--backend xccl carries tensors of xpu"),
        (CPU, "fake", "torch knows no backend fake"),
        (CPU, "ncll", "torch knows no backend ncll"),
    ],
)
def test_a_backend_that_cannot_carry_the_tensors_is_refused(device, backend, problem):
    with pytest.raises(ConfigError, match=problem):
        backend_for(device, backend)


def test_one_rank_refuses_a_wrong_backend_too():
    with pytest.raises(ConfigError, match="torch knows no backend ncll"), joined(World(), device="cpu", backend="ncll"):
        pass
    with joined(World(), device="cpu", backend="gloo") as team:
        assert team.world.size == 1
