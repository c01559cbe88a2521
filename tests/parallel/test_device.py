"""The device of a rank, and memory that a step frees: the kernel need not zero it again."""

import os
import platform
import subprocess
import sys
from datetime import timedelta

import pytest
import torch

from paceline.core.errors import ConfigError
from paceline.core.world import World
from paceline.parallel.device import choose_device, refuse_unusable_gpus
from paceline.parallel.nccl import FLIGHT_RECORDER, GRACE, find_shared_gpu, nccl_options
from paceline.parallel.visible_gpus import visible_devices

STEPS = """
import resource, sys, torch
from paceline.parallel.device import hold_memory
if sys.argv[1] == "held":
    hold_memory()
def step():
    layers = [torch.ones(2_000_000) for _ in range(12)]
for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


RETURNED = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""What glibc begins with. Left alone it moves both as memory comes and goes, so that a small program may get away."""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told to keep memory")
def test_steps_take_no_new_pages_from_the_system():
    held, returned = (
        int(subprocess.check_output([sys.executable, "-c", STEPS, way], env=os.environ | RETURNED, text=True))
        for way in ("held", "returned")
    )
    pages = 5 * 12 * 8_000_000 // 4096
    assert held < pages / 20
    assert returned > pages / 2, "the control: steps fault their memory in again and again"


@pytest.fixture
def two_gpus(monkeypatch):
    """Let torch find two GPUs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _index: None)


@pytest.mark.parametrize(("local_rank", "index"), [(0, 0), (1, 1), (3, 1)])
def test_a_rank_takes_its_gpu_modulo_the_visible_ones(two_gpus, local_rank, index):
    world = World(rank=local_rank, size=4, local_rank=local_rank, local_size=4)
    assert choose_device("cuda", world) == torch.device("cuda", index)
    assert choose_device("auto", world) == torch.device("cuda", index)


def test_one_gpu_for_several_ranks_is_refused(two_gpus):
    assert choose_device("cuda:1", World()) == torch.device("cuda", 1)
    with pytest.raises(ConfigError, match="cuda:1 is one GPU, but 2 ranks on this host need one each"):
        choose_device("cuda:1", World(size=2, local_size=2))
    with pytest.raises(ConfigError, match="there is no GPU 2"):
        choose_device("cuda:2", World())


def test_ranks_on_the_same_gpu_are_found_by_its_uuid():
    assert find_shared_gpu([("a", "1"), ("a", "2"), ("b", "1")]) is None
    assert find_shared_gpu([("a", None), ("a", None)]) is None, "torch does not know: NCCL decides"
    assert find_shared_gpu([("a", "1"), ("b", "1"), ("b", "1")]) == ([1, 2], "b")


def test_gpus_that_torch_cannot_use_are_not_ignored():
    refuse_unusable_gpus(0)
    with pytest.raises(ConfigError, match="this host has 8 GPUs, but torch can use none") as caught:
        refuse_unusable_gpus(8)
    assert "--device cpu" in str(caught.value.hint)


def test_devices_are_chosen_among_the_visible_ones():
    assert visible_devices((0, 1), {}) == "0,1"
    assert visible_devices((1,), {"CUDA_VISIBLE_DEVICES": "4,GPU-5a"}) == "GPU-5a"
    with pytest.raises(ConfigError, match="--devices 2 is not among the GPUs of CUDA_VISIBLE_DEVICES=4,5"):
        visible_devices((0, 2), {"CUDA_VISIBLE_DEVICES": "4,5"})


def test_nccl_times_out_after_the_control_group_and_records_its_collectives():
    environ = {"TORCH_FR_BUFFER_SIZE": "5"}
    limit = timedelta(seconds=10)
    options = nccl_options(torch.device("cuda", 1), limit, environ)
    assert options == {"timeout": limit + GRACE, "device_id": torch.device("cuda", 1)}
    assert environ == FLIGHT_RECORDER | {"TORCH_FR_BUFFER_SIZE": "5"}, "what the user has set is kept"


class Finds:
    """Makes torch find an accelerator; tensors of the meta device stand for its own."""

    def __init__(self, monkeypatch, found: str | None) -> None:
        device = None if found is None else torch.device(found)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: device)
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)


def test_an_accelerator_that_can_train_is_used_whatever_its_name(monkeypatch):
    Finds(monkeypatch, "meta")
    assert choose_device("meta", World(rank=3, size=4, local_rank=3, local_size=4)) == torch.device("meta", 1)


@pytest.mark.parametrize(("found", "there"), [(None, "none"), ("xpu", "only xpu")])
def test_an_accelerator_that_torch_does_not_find_is_refused(monkeypatch, found, there):
    Finds(monkeypatch, found)
    with pytest.raises(ConfigError, match=f"--device meta needs an accelerator, but torch finds {there}"):
        choose_device("meta", World())


def test_an_accelerator_without_fp64_is_refused_with_the_reason(monkeypatch):
    Finds(monkeypatch, "meta")
    ones = torch.ones

    def without_fp64(*size, dtype=None, **options):
        if dtype is torch.float64:
            raise TypeError("Cannot convert a tensor to float64: the framework doesn't support float64")
        return ones(*size, dtype=dtype, **options)

    monkeypatch.setattr(torch, "ones", without_fp64)
    with pytest.raises(ConfigError, match="cannot do what training needs: Cannot convert a tensor to float64"):
        choose_device("meta", World())
