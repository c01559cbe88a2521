"""How exact sums compare for training: a transformer on tokens as rare as words, with SGD and AdamW, over seeds.

python -m benchmarks.sums           # writes docs/results/exact-sums.md
python -m benchmarks.sums --quick   # one seed, a few steps: does it work?
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.parallel.exact.fixed_point import BLOCK, HEADROOM, whole_blocks
from paceline.records.environment import cpu_name

RESULT = Path(__file__).parents[1] / "docs" / "results" / "exact-sums.md"
SHARDS, CARRY = 8, 3
TOKENS, CONTEXT, WIDTH, BATCH, NUM_VALID = 1000, 16, 32, 16, 256
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.002),
}
BITS = {"int32": 31 - CARRY - HEADROOM, "fp32 grid": 23 - CARRY - HEADROOM}
"""Bits that the largest number of a block has left where it did not grow."""


class Nano(nn.Module):
    """A transformer that predicts the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(TOKENS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, TOKENS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.tokens(tokens) + self.positions.weight
        return self.head(self.encoder(hidden, mask=self.mask, is_causal=True))


def frequency_rank() -> Tensor:
    """Return how many tokens are more frequent than each: frequent ones have rare neighbours."""
    return torch.randperm(TOKENS, generator=torch.Generator().manual_seed(0))


def token_batch(generator: torch.Generator, size: int) -> Tensor:
    """Return sequences whose tokens follow Zipf's law, each half of the time the successor of the one before."""
    drawn = torch.multinomial(1 / (1.0 + frequency_rank()), size * (CONTEXT + 1), replacement=True, generator=generator)
    tokens = drawn.view(size, CONTEXT + 1)
    follows = torch.rand(tokens.shape, generator=generator) < 0.5
    for place in range(1, CONTEXT + 1):
        after = (tokens[:, place - 1] * 7 + 1) % TOKENS
        tokens[:, place] = torch.where(follows[:, place], after, tokens[:, place])
    return tokens


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


class Rounded:
    """Adds shards after rounding each to multiples of a power of two per block, or per row of a parameter."""

    def __init__(self, kind: str, *, by_row: bool) -> None:
        self._bits, self._by_row = BITS[kind], by_row
        self._exponents: dict[str, Tensor] = {}

    def __call__(self, name: str, shards: Tensor) -> Tensor:
        """Return the sum over the first dimension; sums in fp64 are exact for so few bits."""
        size = shards[0].numel()
        length = size // len(shards[0]) if self._by_row else BLOCK
        missing = -size % length if self._by_row else whole_blocks(size) - size
        blocks = functional.pad(shards.flatten(1), (0, missing)).view(len(shards), -1, length).double()
        now = torch.frexp(blocks.abs().amax((0, 2))).exponent
        now = torch.where(blocks.abs().amax((0, 2)) == 0, -126, now)
        before = self._exponents.get(name, now)
        # A block that grew out of its range, or never had a gradient, is computed again.
        scale = torch.where(now > before + HEADROOM, now, before)
        self._exponents[name] = torch.maximum(now, scale - 1)
        unit = torch.exp2((scale - self._bits).double())[:, None]
        total = ((blocks / unit).round() * unit).sum(0)
        return total.flatten()[:size].view_as(shards[0]).float()


def one_after_another(_name: str, shards: Tensor) -> Tensor:
    total = torch.zeros_like(shards[0])
    for shard in shards:
        total += shard
    return total


SUMS: dict[str, Callable[[], Callable[[str, Tensor], Tensor]]] = {
    "fp32, one after another": lambda: one_after_another,
    "fp32, in the reverse order": lambda: lambda name, shards: one_after_another(name, shards.flip(0)),
    f"int32, scale per block of {BLOCK}": lambda: Rounded("int32", by_row=False),
    "int32, scale per row": lambda: Rounded("int32", by_row=True),
    f"fp32 grid, scale per block of {BLOCK}": lambda: Rounded("fp32 grid", by_row=False),
    "fp32 grid, scale per row": lambda: Rounded("fp32 grid", by_row=True),
    "bf16 gradients": lambda: lambda name, shards: one_after_another(name, shards.bfloat16().float()),
}


def train(name: str, optimizer: str, seed: int, steps: int) -> tuple[float, float, float]:
    """Return the validation loss, the loss on rare tokens, and the median relative error of a step's gradient."""
    torch.manual_seed(seed)
    model, add, generator = Nano(), SUMS[name](), torch.Generator().manual_seed(seed)
    update, errors = OPTIMIZERS[optimizer](model.parameters()), []
    for _ in range(steps):
        shards = []
        for part in token_batch(generator, BATCH).chunk(SHARDS):
            (loss_of(model, part) / SHARDS).backward()
            shards.append([parameter.grad for parameter in model.parameters()])
            model.zero_grad()
        wrong = right = 0.0
        for number, (own, parameter) in enumerate(model.named_parameters()):
            terms = torch.stack([shard[number] for shard in shards])
            parameter.grad, true = add(own, terms), terms.double().sum(0)
            wrong += float((parameter.grad - true).square().sum())
            right += float(true.square().sum())
        errors.append((wrong / right) ** 0.5)
        update.step()
        update.zero_grad()
    with torch.no_grad():
        tokens = token_batch(torch.Generator().manual_seed(-1), NUM_VALID)
        each = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
        rare = frequency_rank()[tokens[:, 1:].flatten()] >= TOKENS // 10
        return float(each.mean()), float(each[rare].mean()), median(errors)


def page(found: dict[tuple[str, str], list[tuple[float, float, float]]], steps: int) -> str:
    """Return the results as Markdown."""
    seeds = len(next(iter(found.values())))
    lines = [
        "# Which exact sum",
        "",
        f"Written by `python -m benchmarks.sums`: a transformer on {TOKENS:,} tokens of Zipf's law, with frequent and",
        f"rare ones in neighbouring rows; {SHARDS} shards per step, {steps} steps, {seeds} seeds. Error: of a step's",
        "gradient, against fp64, relative to its norm; median. Losses: the largest difference over the seeds from",
        "adding in fp32 one after another; rare tokens are all but the most frequent tenth.",
        f"{cpu_name()}, torch {torch.__version__}.",
    ]
    for optimizer in OPTIMIZERS:
        plain = found[next(iter(SUMS)), optimizer]
        own = " … ".join(f"{each:.4f}" for each in (min(plain)[0], max(plain)[0]))
        lines += ["", f"## {optimizer}", "", f"Validation loss of fp32: {own}.", ""]
        lines += ["| sum | error | validation loss | of rare tokens |", "|---|---|---|---|"]
        for name in SUMS:
            results = found[name, optimizer]
            apart = [max(abs(a[i] - b[i]) for a, b in zip(results, plain, strict=True)) for i in (0, 1)]
            lines.append(f"| {name} | {median(each[2] for each in results):.0e} | {apart[0]:.1e} | {apart[1]:.1e} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare exact sums by what they do to training")
    parser.add_argument("--quick", action="store_true", help="one seed, a few steps")
    options = parser.parse_args()
    torch.set_num_threads(1)
    seeds, steps = (1, 3) if options.quick else (3, 100)
    found = {
        (name, optimizer): [train(name, optimizer, seed, steps) for seed in range(seeds)]
        for optimizer in OPTIMIZERS
        for name in SUMS
    }
    text = page(found, steps)
    print(text)
    if not options.quick:
        RESULT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
