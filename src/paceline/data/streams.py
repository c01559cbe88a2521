"""The global random streams, for foreign code that draws from them: set by address, never left to run on."""

import random

import numpy as np
import torch

CPU = torch.device("cpu")


def seed_streams(bits: int, device: torch.device = CPU, *, torch_only: bool = False) -> None:
    """Point the streams of random, numpy and torch at an address: on the CPU, and on the device that computes."""
    if not torch_only:
        random.seed(bits)
        np.random.seed(bits & 0xFFFFFFFF)
    torch.default_generator.manual_seed(bits >> 1)  # a hundred times as quick as torch.manual_seed
    if device.type == "cuda":
        torch.cuda.manual_seed(bits >> 1)
