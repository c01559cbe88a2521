"""The scripts of docs/order.md: each stops in mid-epoch with two ranks, and continues with one."""

import importlib
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from torch.utils.data import DataLoader, TensorDataset

from lab.environment import child_environment
from paceline import Order
from tests.conftest import LONGEST
from tests.docs.pages import write_files

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
SCRIPTS = {
    "with_ddp": lambda: torch.load("with_ddp.pt")["model"],
    "with_accelerate": lambda: load_file("with_accelerate/model.safetensors"),
    "with_lightning": lambda: torch.load("with_lightning.ckpt", weights_only=False)["state_dict"],
}
"""Each script, with a function that reads the weights that it saves."""


def uninterrupted_weights() -> dict[str, torch.Tensor]:
    """Return the weights after ten steps in one process, without a checkpoint."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(100, 8), torch.randn(100, 1))
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    order = Order(num_samples=100, global_batch=16)
    while order.step < 10:
        for inputs, targets in DataLoader(data, batch_sampler=order):
            optimizer.zero_grad()
            (model(inputs) - targets).square().mean().backward()
            optimizer.step()
            order.step += 1
            if order.step == 10:
                break
    return model.state_dict()


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_of_the_page_resumes_at_another_world_size(script, elsewhere):
    library = script.removeprefix("with_")
    if library != "ddp":
        try:  # beside a torchvision for another torch, Lightning cannot be imported
            importlib.import_module(library)
        except Exception as cause:  # noqa: BLE001 - whatever a broken installation raises
            pytest.skip(f"{library} cannot be imported: {cause}")
    write_files("docs/order.md", elsewhere)
    for ranks, steps in ((2, 6), (1, 10)):
        own = library == "lightning"  # starts its ranks itself
        command = (
            [f"{script}.py", str(steps), str(ranks)] if own else [*TORCHRUN, str(ranks), f"{script}.py", str(steps)]
        )
        environ = child_environment(OMP_NUM_THREADS="1")
        result = subprocess.run(
            [sys.executable, *command], env=environ, capture_output=True, text=True, timeout=LONGEST, check=False
        )
        assert result.returncode == 0, result.stderr
    weights = {name.removeprefix("model."): tensor for name, tensor in SCRIPTS[script]().items()}
    for name, expected in uninterrupted_weights().items():
        torch.testing.assert_close(weights[name], expected, rtol=1e-5, atol=1e-6)
