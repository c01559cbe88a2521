"""DataParallel on GPUs: what its replicas' threads would otherwise not inherit."""

import threading

import pytest
import torch
from torch import nn

from paceline.core.config import Config
from paceline.core.errors import ConfigError
from paceline.parallel.data_parallel import Autocasting, SeededDataParallel, data_parallel


def dtype_in_a_thread(module: nn.Module) -> list[torch.dtype]:
    """Return the types of the output of a module that runs in a thread, as a replica does."""
    found: list[torch.dtype] = []
    thread = threading.Thread(target=lambda: found.append(module(torch.zeros(2, 3)).dtype))
    thread.start()
    thread.join()
    return found


@pytest.mark.bf16
def test_a_replica_computes_in_the_requested_type():
    model = nn.Linear(3, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert dtype_in_a_thread(model) == [torch.float32], "the control: a thread does not inherit autocast"
        assert dtype_in_a_thread(Autocasting(model, "cpu", torch.bfloat16)) == [torch.bfloat16]


def test_the_devices_begin_with_the_one_that_holds_the_model(monkeypatch):
    given: list[list[int]] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(
        "paceline.parallel.data_parallel.SeededDataParallel", lambda _, device_ids: given.append(device_ids)
    )
    data_parallel(nn.Linear(1, 1), Config(), torch.device("cuda", 2), 3)
    assert given == [[2, 0, 1]]


def test_every_other_gpu_is_seeded_from_the_first_before_each_pass(monkeypatch):
    generators = [torch.Generator() for _ in range(3)]
    seeds = iter([40, 70])
    monkeypatch.setattr(torch.cuda, "default_generators", generators)
    monkeypatch.setattr(torch.cuda, "initial_seed", lambda: next(seeds))
    monkeypatch.setattr(nn.DataParallel, "forward", lambda *_: [each.initial_seed() for each in generators[:2]])
    module = SeededDataParallel(nn.Linear(1, 1))
    module.device_ids = [2, 0, 1]
    assert [module(), module()] == [[40, 41], [70, 71]]


def test_a_compiled_model_is_refused():
    with pytest.raises(ConfigError, match="--compile is not supported with --mode dp"):
        data_parallel(nn.Linear(1, 1), Config(compile=True), torch.device("cuda", 0), 2)
