"""The global random streams, for foreign code that draws from them: set by address, never left to run on."""

import random

import numpy as np
import torch


def seed_streams(bits: int) -> None:
    """Point the streams of random, numpy and torch (CPU) at an address."""
    random.seed(bits)
    np.random.seed(bits & 0xFFFFFFFF)
    torch.default_generator.manual_seed(bits >> 1)
