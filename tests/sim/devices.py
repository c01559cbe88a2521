"""The simulated devices of this process: those that CUDA_VISIBLE_DEVICES shows, the current one, their generators."""

import os

import torch

MOST = 8
FIRST_SEED = 67280421310721
"""The seed of every generator of torch before it is seeded."""


class Devices:
    """The devices of a host with eight GPUs."""

    def __init__(self) -> None:
        self.current = 0
        self.generators = [torch.Generator().manual_seed(FIRST_SEED) for _ in range(MOST)]

    def visible(self) -> list[int]:
        """Return the physical indices of the visible devices; torch reads the variable only once."""
        names = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")
        return [int(name) for name in names if name.strip() not in {"", "-1"}]

    def index(self, device: torch.device) -> int:
        """Return the index of a device, by default the current one."""
        return self.current if device.index is None else device.index


DEVICES = Devices()
