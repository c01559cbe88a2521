"""Language modelling: the next token of every position; perplexity."""

import math

from torch import Tensor, nn
from torch.nn import functional

from paceline.data.tree import Tree
from paceline.tasks.task import Metric, Task

PADDING = -100
"""A target that does not count: padding."""


def _perplexity(loss: float, tokens: int) -> float:
    mean = loss / tokens
    return math.exp(mean) if mean < 700 else math.inf


class Language(Task):
    """Next tokens: a batch is N×T token ids; negative ids are padding at the end of a sequence, and do not count."""

    best = "perplexity"
    unit = "tokens"
    eval_batch = 16
    metrics = {"perplexity": Metric(sums="loss", value=_perplexity, better="lower")}  # noqa: RUF012 - a constant

    def forward(self, model: nn.Module, batch: Tree) -> Tensor:
        """Return the logits of all positions but the last."""
        return model(_tokens(batch)[:, :-1].clamp(min=0))

    def targets(self, batch: Tree) -> Tensor:
        """Return the tokens that follow."""
        tokens = _tokens(batch)[:, 1:]
        return tokens.masked_fill(tokens < 0, PADDING)

    def count(self, targets: Tensor) -> Tensor:
        """Return the number of tokens that are not padding."""
        return (targets != PADDING).sum()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of the cross-entropies of all tokens."""
        logits, wanted = outputs.flatten(0, 1), targets.flatten()
        return functional.cross_entropy(logits, wanted, ignore_index=PADDING, reduction="sum")

    def predict(self, outputs: Tensor) -> dict[str, Tensor]:
        """Return the likeliest token of every position."""
        return {"tokens": outputs.argmax(-1)}


def _tokens(batch: Tree) -> Tensor:
    """Return the token ids, alone or in first place."""
    return batch if isinstance(batch, Tensor) else batch[0]
