"""Parts of random modules: every kind of state, branch and randomness, and kinds that bitwise must refuse."""

import random

import numpy as np
import torch
from torch import Tensor, nn

WIDTH = 12


class Part(nn.Module):
    """A part of a module: takes and returns vectors of WIDTH numbers."""

    refused: str | None = None
    """What the message must name if bitwise has to refuse the part."""


class Linear(Part):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        return torch.tanh(self.linear(hidden))


class Normed(Part):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.norm(hidden)


class Rotary(Part):
    """A constant complex buffer."""

    rotation: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rotation", torch.polar(torch.ones(WIDTH // 2), torch.arange(WIDTH / 2)))

    def forward(self, hidden: Tensor) -> Tensor:
        pairs = torch.view_as_complex(hidden.view(-1, WIDTH // 2, 2).contiguous())
        return torch.view_as_real(pairs * self.rotation).flatten(1)


class Averaging(Part):
    """A moving average in place; in fp64, and left out of the state dict, in the subclasses."""

    average: Tensor
    dtype, persistent = torch.float32, True

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(WIDTH, dtype=self.dtype), persistent=self.persistent)

    def forward(self, hidden: Tensor) -> Tensor:
        if self.training:
            self.average.lerp_(hidden.detach().mean(0).to(self.dtype), 0.2)
        return hidden - self.average.float()


class AveragingDouble(Averaging):
    dtype = torch.float64


class AveragingHidden(Averaging):
    persistent = False


class ComplexAverage(Part):
    """A complex buffer that training replaces by another tensor."""

    phase: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("phase", torch.zeros(WIDTH, dtype=torch.complex64))

    def forward(self, hidden: Tensor) -> Tensor:
        if self.training:
            self.phase = 0.9 * self.phase + 0.1j * hidden.detach().mean(0)
        return hidden + self.phase.imag


class Late(Part):
    """A buffer that is None until the first pass."""

    average: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", None)

    def forward(self, hidden: Tensor) -> Tensor:
        if self.training:
            mean = hidden.detach().mean(0)
            self.average = mean if self.average is None else self.average.lerp(mean, 0.2)
        return hidden if self.average is None else hidden - self.average


class Counter(Part):
    """A count of passes, in evaluations too, that the result depends on."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, hidden: Tensor) -> Tensor:
        self.calls += 1
        return hidden * (1 + 0.01 * self.calls)


class Moving(Part):
    """Frozen parameters that every pass moves towards trained ones, as MoCo's encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.quick, self.slow = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH).requires_grad_(False)

    def forward(self, hidden: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                for slow, quick in zip(self.slow.parameters(), self.quick.parameters(), strict=True):
                    slow.lerp_(quick, 0.1)
        return torch.tanh(self.quick(hidden)) + 0.5 * self.slow(hidden)


class Sometimes(Linear):
    """A branch that chance takes."""

    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(hidden) if torch.rand(()) < 0.5 else hidden


class ByData(Linear):
    """A branch that the samples take."""

    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(hidden) if hidden.mean() > 0 else hidden


class Unused(Linear):
    def forward(self, hidden: Tensor) -> Tensor:
        return hidden


class Growing(Part):
    """A residual branch that starts at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)
        nn.init.zeros_(self.down.weight)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.down(torch.relu(self.up(hidden)))


class Rare(Part):
    """An embedding most of whose rows are rarely used."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(200, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.table((hidden.detach()[:, 0].square() * 40).long().clamp(0, 199))


class Tied(Linear):
    """The same weights twice."""

    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(super().forward(hidden))


class Double(Part):
    """Weights in fp64."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)

    def forward(self, hidden: Tensor) -> Tensor:
        return torch.tanh(self.linear(hidden.double())).float()


class Conv(Part):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, hidden: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(hidden.view(-1, 1, 3, 4)))).mean(1).flatten(1)


class Attention(Part):
    """Attention of torch, which uses the weights of an inner layer without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, hidden: Tensor) -> Tensor:
        words = hidden.view(-1, 3, 4)
        return hidden + self.attention(words, words, words, need_weights=False)[0].flatten(1)


class Loose(Part):
    """Parameters in containers that are never called."""

    def __init__(self) -> None:
        super().__init__()
        self.shifts = nn.ParameterList([nn.Parameter(torch.zeros(WIDTH)) for _ in range(2)])
        self.scales = nn.ParameterDict({"one": nn.Parameter(torch.ones(WIDTH))})

    def forward(self, hidden: Tensor) -> Tensor:
        return (hidden + self.shifts[0] * self.shifts[1].cos()) * self.scales["one"]


class Spectral(Part):
    """Complex parameters, as in Fourier layers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.5 * torch.randn(WIDTH // 2 + 1, WIDTH // 2 + 1, dtype=torch.complex64))

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + torch.fft.irfft(torch.fft.rfft(hidden) @ self.weight, n=WIDTH)


class Dropped(Part):
    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.3)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.dropout(hidden)


class Noisy(Part):
    """Random numbers of torch, numpy and Python in turn."""

    def forward(self, hidden: Tensor) -> Tensor:
        if not self.training:
            return hidden
        noise = torch.randn(hidden.shape) + torch.from_numpy(np.random.standard_normal(WIDTH)).float()
        return hidden + 0.1 * noise + 0.1 * random.random()


class Remembering(Part):
    refused, previous = "previous", None

    def forward(self, hidden: Tensor) -> Tensor:
        before, self.previous = self.previous, hidden.detach().mean(0)
        return hidden if before is None else hidden - before


class Drawing(Part):
    refused = "generator"

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(7)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + 0.3 * torch.randn(hidden.shape, generator=self.generator)


class Counting(Part):
    refused, passes = "passes", 0

    def forward(self, hidden: Tensor) -> Tensor:
        self.passes += 1
        return hidden


class Listing(Part):
    refused = "means"

    def __init__(self) -> None:
        super().__init__()
        self.means: list[float] = []

    def forward(self, hidden: Tensor) -> Tensor:
        self.means.append(float(hidden.mean()))
        return hidden


class Clamped(Linear):
    refused = "linear.weight"

    def forward(self, hidden: Tensor) -> Tensor:
        with torch.no_grad():
            self.linear.weight.mul_(0.99)
        return super().forward(hidden)


class Outside(Part):
    """State that no module holds."""

    refused, seen = "module_", []

    def forward(self, hidden: Tensor) -> Tensor:
        self.seen.append(1)
        return hidden * (1 + 0.1 * len(self.seen))


PARTS: tuple[type[Part], ...] = (
    Linear, Normed, Rotary, Averaging, AveragingDouble, AveragingHidden, ComplexAverage, Late, Counter, Moving,
    Sometimes, ByData, Unused, Growing, Rare, Tied, Double, Conv, Attention, Loose, Spectral, Dropped,
    Noisy,
)  # fmt: skip
REFUSED: tuple[type[Part], ...] = (Remembering, Drawing, Counting, Listing, Clamped, Outside)
NOT_SHARDED = (Moving, Double, Spectral)
"""Parts that fsdp does not support: frozen parameters that move, and weights of two types in one model."""
