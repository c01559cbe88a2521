"""Seeds the global random generators, for code that we do not control: set per sample or step, never left running."""

import random

import numpy as np
import torch

CPU = torch.device("cpu")


def seed_generators(bits: int, device: torch.device = CPU, *, torch_only: bool = False) -> None:
    """Seed the generators of random, numpy and torch with these bits, on the CPU and on the device that computes."""
    if not torch_only:
        random.seed(bits)
        np.random.seed(bits & 0xFFFFFFFF)
    torch.default_generator.manual_seed(bits >> 1)  # 100 times faster than torch.manual_seed
    if device.type == "cuda":
        torch.cuda.manual_seed(bits >> 1)
