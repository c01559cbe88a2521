"""A GAN with two optimizers as a loop of your own: it learns to draw points of a ring.

paceline train --loop examples/gan.py:train --nproc 2 --epochs 5 --exact bitwise
"""

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from paceline import Run

NOISE = 8


def ring() -> torch.Tensor:
    """Return 500 points of a ring."""
    angles = torch.linspace(0, 2 * torch.pi, 500)
    return torch.stack([angles.cos(), angles.sin()], dim=1)


def generator() -> nn.Module:
    """Return the network that draws points from noise."""
    return nn.Sequential(nn.Linear(NOISE, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 2))


def discriminator() -> nn.Module:
    """Return the network that tells points of the ring from others."""
    return nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(64, 1))


def sum_of_losses(logits: torch.Tensor, target: float) -> torch.Tensor:
    """Return the sum of the losses over the samples."""
    return binary_cross_entropy_with_logits(logits, torch.full_like(logits, target), reduction="sum")


def train(run: Run) -> None:
    """Train both networks in turn."""
    G, D = run.setup("G", generator()), run.setup("D", discriminator())  # noqa: N806 - the names of the paper
    opt_g = run.setup("opt_g", torch.optim.Adam(G.parameters(), 1e-3, betas=(0.5, 0.999)))
    opt_d = run.setup("opt_d", torch.optim.Adam(D.parameters(), 1e-3, betas=(0.5, 0.999)))
    for batch in run.batches(ring()):
        for real in batch.micro_batches(opt_d):
            fake = G(run.randn(NOISE)).detach()
            loss = sum_of_losses(D(real), 1.0) + sum_of_losses(D(fake), 0.0)
            run.backward({"d": (loss, batch.size)})
        run.step(opt_d)
        for _ in batch.micro_batches(opt_g):
            drawn = G(run.randn(NOISE))
            run.backward({"g": (sum_of_losses(D(drawn), 1.0), batch.size)})
            run.log(radius=(drawn.norm(dim=1).sum(), len(drawn)))
        run.step(opt_g)
