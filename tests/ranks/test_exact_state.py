"""State of a model in `--exact bitwise`: what forward passes change has the same bits everywhere, or is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.core.errors import ModelError
from paceline.core.setting_types import Interval
from tests.ranks.runs import exact_settings, train, unequal
from tests.states import differences, final_state

MODELS = '''
import numpy as np
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.first, self.last = nn.Linear(64, 16), nn.Linear(16, num_classes)
        self.set_up()

    def set_up(self):
        pass

    def forward(self, images):
        return self.last(self.between(torch.tanh(self.first(images.flatten(1)))))

    def between(self, hidden):
        return hidden


class Rotary(Net):
    """A constant complex buffer."""

    def set_up(self):
        self.register_buffer("rotation", torch.polar(torch.ones(8), torch.arange(8.0)))

    def between(self, hidden):
        pairs = torch.view_as_complex(hidden.view(-1, 8, 2).contiguous())
        return torch.view_as_real(pairs * self.rotation).flatten(1)


class Sparse(Net):
    """An embedding with sparse gradients."""

    def set_up(self):
        self.table = nn.Embedding(9, 16, sparse=True)

    def between(self, hidden):
        return hidden + self.table(hidden.argmax(1) % 9)


class Momentum(Net):
    """Frozen parameters that every pass moves towards trained ones, as MoCo's encoder."""

    def set_up(self):
        self.slow = nn.Linear(64, 16).requires_grad_(False)

    def forward(self, images):
        if self.training:
            with torch.no_grad():
                for slow, quick in zip(self.slow.parameters(), self.first.parameters()):
                    slow.data = slow.data * 0.9 + quick.data * 0.1
        flat = images.flatten(1)
        return self.last(torch.tanh(self.first(flat)) + 0.5 * torch.tanh(self.slow(flat)))


class Counter(Net):
    """A buffer that evaluation changes, too."""

    def set_up(self):
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def between(self, hidden):
        self.calls += 1
        return hidden * (1 + 0.01 * self.calls)


class Hidden(Net):
    """A buffer that training uses and a state dict leaves out."""

    def set_up(self):
        self.register_buffer("average", torch.zeros(16), persistent=False)

    def between(self, hidden):
        if self.training:
            self.average.lerp_(hidden.detach().mean(0), 0.2)
        return hidden - self.average


class Late(Net):
    """Buffers that are None until the first pass."""

    def set_up(self):
        self.register_buffer("average", None)
        self.register_buffer("other", None, persistent=False)

    def between(self, hidden):
        if self.training:
            mean = hidden.detach().mean(0)
            self.average = mean if self.average is None else self.average.lerp(mean, 0.2)
            self.other = mean if self.other is None else self.other.lerp(mean, 0.1)
        return hidden if self.average is None else hidden - self.average - self.other


class Remembering(Net):
    """An attribute with the mean of the samples before."""

    previous = None

    def between(self, hidden):
        before, self.previous = self.previous, hidden.detach().mean(0)
        return hidden if before is None else hidden - before


class Counting(Net):
    """A plain count of passes."""

    passes = 0

    def between(self, hidden):
        self.passes += 1
        return hidden


class Drawing(Net):
    """Random numbers from a generator of its own."""

    def set_up(self):
        self.generator = torch.Generator().manual_seed(7)

    def between(self, hidden):
        return hidden + 0.3 * torch.randn(hidden.shape, generator=self.generator)


class Outside(Net):
    """State where nobody looks."""

    def between(self, hidden):
        seen.append(float(hidden.mean()))
        return hidden * (1 + 0.1 * len(seen))


seen = []


class Clamped(Net):
    """A trained parameter that every pass changes."""

    def between(self, hidden):
        with torch.no_grad():
            self.last.weight.clamp_(-0.01, 0.01)
        return hidden


class Caching(Net):
    """A table made by the first pass: nothing to worry about."""

    table = None

    def between(self, hidden):
        if self.table is None:
            self.table = torch.linspace(0.5, 1.5, 16)
        return hidden * self.table
'''


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("state") / "state_models.py"
    path.write_text(MODELS)
    return path


def settings_of(tmp_path: Path, models: Path, name: str, **more: Any) -> dict[str, Any]:
    return exact_settings(tmp_path, model=f"{models}:{name}", steps=8, **more)


@pytest.mark.parametrize("name", ["Rotary", "Momentum", "Counter", "Hidden", "Late", "Caching"])
def test_state_of_every_kind_has_the_same_bits_on_one_rank_and_two(ranks, tmp_path, models, name):
    settings = settings_of(tmp_path, models, name, ema=0.9 if name in {"Counter", "Late"} else None)
    alone = train(ranks, 1, settings)
    assert unequal(alone, train(ranks, 2, settings)) == []


@pytest.mark.parametrize("name", ["Hidden", "Late", "Momentum"])
def test_state_of_every_kind_is_restored(ranks, tmp_path, models, name):
    settings = settings_of(tmp_path, models, name, save_every=Interval(2, "step"))
    whole = final_state(train(ranks, 1, settings))
    stopped = train(ranks, 2, settings, None, 1, 3)
    assert 3 <= final_state(stopped)["progress"]["step"] < 9
    assert differences(whole, final_state(train(ranks, 1, settings, stopped))) == []


def test_a_constant_complex_buffer_stays_as_it_is(ranks, tmp_path, models):
    buffers = final_state(train(ranks, 1, settings_of(tmp_path, models, "Rotary")))["model"]
    assert torch.equal(buffers["rotation"], torch.polar(torch.ones(8), torch.arange(8.0)))


def test_frozen_parameters_move_once_per_step(ranks, tmp_path, models):
    """Every shard moves them from the same start, so four shards do not move them four times."""
    whole, parts = (
        final_state(train(ranks, 1, settings_of(tmp_path, models, "Momentum", lr=1e-6, shards=shards)))["model"]
        for shards in (1, 4)
    )
    assert torch.allclose(whole["slow.weight"], parts["slow.weight"], atol=1e-5)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("Remembering", "the forward pass changes previous, which is neither a parameter nor a buffer"),
        ("Counting", "the forward pass changes passes, which is neither a parameter nor a buffer"),
        ("Drawing", "the forward pass changes generator, which is neither a parameter nor a buffer"),
        ("Outside", "gives a different gradient for the same samples after it has seen others"),
        ("Sparse", r"the gradient of table\.weight is sparse"),
        ("Clamped", r"the forward pass changes the trained parameter last\.weight"),
    ],
)
def test_state_that_cannot_be_reset_is_refused_by_name(ranks, tmp_path, models, name, problem):
    with pytest.raises(ModelError, match=problem) as refused:
        train(ranks, 1, settings_of(tmp_path, models, name))
    assert "--exact order" in (refused.value.hint or "")
