"""Decoder-only transformers in the manner of GPT-2: token ids in, the logits of the next token out."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.core.errors import ModelError

INITIAL_STD = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """The size of a transformer."""

    depth: int
    num_heads: int
    width: int
    dropout: float = 0.1


class Attention(nn.Module):
    """Causal self-attention with several heads."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.num_heads, self.rate = shape.num_heads, shape.dropout
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return what each position (N×T×width) takes from those before it."""
        heads = (part.unflatten(2, (self.num_heads, -1)).transpose(1, 2) for part in self.qkv(hidden).chunk(3, dim=2))
        rate = self.rate if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(*heads, dropout_p=rate, is_causal=True)
        return self.dropout(self.out(mixed.transpose(1, 2).flatten(2)))


class DecoderBlock(nn.Module):
    """Attention and a perceptron, each after a layer norm and around a shortcut."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(shape.width)
        self.attention = Attention(shape)
        self.norm2 = nn.LayerNorm(shape.width)
        self.linear1 = nn.Linear(shape.width, 4 * shape.width)
        self.linear2 = nn.Linear(4 * shape.width, shape.width)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the next hidden states."""
        hidden = hidden + self.attention(self.norm1(hidden))
        inner = functional.gelu(self.linear1(self.norm2(hidden)), approximate="tanh")
        return hidden + self.dropout(self.linear2(inner))


class Gpt(nn.Module):
    """A decoder-only transformer. The embedding of the tokens is also the last layer, so it is stored once."""

    def __init__(self, shape: Shape, *, vocab_size: int, context: int) -> None:
        super().__init__()
        self.context = context
        self.tokens = nn.Embedding(vocab_size, shape.width)
        self.positions = nn.Embedding(context, shape.width)
        self.dropout = nn.Dropout(shape.dropout)
        self.blocks = nn.ModuleList(DecoderBlock(shape) for _ in range(shape.depth))
        self.norm = nn.LayerNorm(shape.width)
        self.apply(_draw)
        for name, parameter in self.named_parameters():
            if name.endswith(("attention.out.weight", "linear2.weight")):  # the ends of the shortcuts
                nn.init.normal_(parameter, std=INITIAL_STD / math.sqrt(2 * shape.depth))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (N×T×vocabulary) for the token after each of these (N×T)."""
        hidden = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        hidden = self.dropout(hidden)
        for block in self.blocks:
            hidden = block(hidden)
        return functional.linear(self.norm(hidden), self.tokens.weight)


def _draw(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=INITIAL_STD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


SHAPES: Mapping[str, Shape] = {
    "gpt-nano": Shape(depth=3, num_heads=4, width=64),
    "gpt-micro": Shape(depth=4, num_heads=4, width=128),
    "gpt-mini": Shape(depth=6, num_heads=6, width=192),
    "gpt2": Shape(depth=12, num_heads=12, width=768),
}


def build_gpt(name: str, facts: Mapping[str, Any]) -> Gpt:
    """Return a fresh transformer for data with a vocabulary and a length of sequences."""
    missing = [fact for fact in ("vocab_size", "context") if fact not in facts]
    if missing:
        raise ModelError(
            f"{name} takes token ids, but the data has no {' and no '.join(missing)}",
            hint="use --data alice, text:FILE or tokens:PATH, or another --model",
        )
    return Gpt(SHAPES[name], vocab_size=facts["vocab_size"], context=facts["context"])


def usual_text(name: str) -> dict[str, int]:
    """Return the vocabulary and the length of sequences that a transformer is usually quoted for."""
    return {"vocab_size": 50257, "context": 1024} if name == "gpt2" else {"vocab_size": 256, "context": 128}


@torch.no_grad()
def continue_tokens(
    model: nn.Module, tokens: Tensor, *, context: int, temperature: float, generator: torch.Generator
) -> Tensor:
    """Return the sequence (1×T) with one more token, drawn from the model's distribution."""
    logits = model(tokens[:, -context:])[:, -1].float()
    if temperature == 0:
        drawn = logits.argmax(-1, keepdim=True)
    else:
        drawn = torch.multinomial(functional.softmax(logits / temperature, dim=-1), 1, generator=generator)
    return torch.cat([tokens, drawn], dim=1)
