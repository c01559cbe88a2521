"""A training loop without Paceline's, whose device operations per step are the baseline."""

import torch
from torch.nn import functional

from tests.sim.entries import LOG
from tests.sim.names import NAME


def bare_loop(model_name: str, steps: int = 3) -> None:
    """Train with the fused optimizer, and count the operations of each step."""
    from paceline.models.zoo import build_model

    model = build_model(model_name, num_classes=10, image_shape=(1, 8, 8))
    model.to(memory_format=torch.channels_last).to(NAME)  # pyright: ignore[reportCallIssue] - an overload of torch
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, fused=True)
    images, labels = torch.randn(32, 1, 8, 8).pin_memory(), torch.randint(10, (32,)).pin_memory()
    for _ in range(steps):
        with LOG.in_phase("step"):
            own = images.to(NAME, non_blocking=True), labels.to(NAME, non_blocking=True)
            functional.cross_entropy(model(own[0]), own[1]).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
