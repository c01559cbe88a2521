"""Deterministic operations only, and what the bits of a result depend on besides them."""

from typing import Any

import pytest
import torch
from torch.utils import deterministic

from paceline.core.config import Config
from paceline.core.errors import ModelError, RunError
from paceline.parallel.exact.determinism import deterministic_only, fingerprint, refuse_other_bits

CHECKS: Any = deterministic  # a module with a property, which type checkers cannot see


def test_a_non_deterministic_operation_is_named():
    with pytest.raises(ModelError, match=r"^put_ is non-deterministic") as refused, deterministic_only():
        torch.zeros(3).put_(torch.tensor([0]), torch.tensor([1.0]))
    assert "--exact order" in (refused.value.hint or "")


def test_a_notebook_that_used_cublas_too_early_is_told_what_to_set():
    text = (
        "Deterministic behavior was enabled with either `torch.use_deterministic_algorithms(True)` or ..., but this "
        "operation is not deterministic because it uses CuBLAS and you have CUDA >= 10.2. To enable deterministic "
        "behavior in this case, you must set an environment variable: CUBLAS_WORKSPACE_CONFIG=:4096:8"
    )
    with pytest.raises(RunError, match="cuBLAS was used in this process before") as refused, deterministic_only():
        raise RuntimeError(text)
    assert "restart the process or the notebook with CUBLAS_WORKSPACE_CONFIG=:4096:8" in (refused.value.hint or "")


def test_other_errors_of_torch_pass_unchanged():
    with pytest.raises(RuntimeError, match="size of tensor"), deterministic_only():
        torch.zeros(2).add(torch.zeros(3))


@pytest.mark.parametrize("before", [True, False])
def test_the_settings_of_torch_are_put_back(before):
    torch.use_deterministic_algorithms(mode=before)
    try:
        with deterministic_only():
            assert torch.are_deterministic_algorithms_enabled()
            assert not CHECKS.fill_uninitialized_memory
        assert torch.are_deterministic_algorithms_enabled() is before
        assert CHECKS.fill_uninitialized_memory
    finally:
        torch.use_deterministic_algorithms(mode=False)


HERE = fingerprint(Config(exact="bitwise", shards=8), torch.device("cpu"))


@pytest.mark.parametrize(
    ("name", "value", "way_out"),
    [
        ("arithmetic", 1, "the version that started it"),
        ("torch", "2.9.0", "resume where torch is 2.9.0"),
        ("threads", 7, "--threads 7"),
        ("MKL_CBWR", "COMPATIBLE", "resume where MKL_CBWR is COMPATIBLE"),
    ],
)
def test_a_run_that_began_elsewhere_is_refused_with_the_way_out(name, value, way_out):
    refuse_other_bits(HERE, HERE)
    with pytest.raises(RunError, match=f"{name} was {value} when saved and is") as refused:
        refuse_other_bits(HERE | {name: value}, HERE)
    assert way_out in (refused.value.hint or "")
    assert "--exact order" in (refused.value.hint or "")


def test_gpus_of_one_model_have_the_same_fingerprint(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A100" if device.index < 2 else "H100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (8, 0))
    first, second, other = (fingerprint(Config(exact="bitwise"), torch.device("cuda", index)) for index in range(3))
    assert first == second
    assert first["device"] == "A100, capability 8.0"
    assert {"CUDA", "cuDNN", "TF32", "torch"} <= first.keys()
    assert not {"threads", "instructions"} & first.keys(), "the CPU does not change the bits of a GPU"
    with pytest.raises(RunError, match=r"device was A100, capability 8\.0 when saved and is H100"):
        refuse_other_bits(first, other)
