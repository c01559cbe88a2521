"""Training loops of a user: right ones, and ones with a mistake each. The tests name them as own_loops.py:name."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss
from torch.nn.utils.rnn import pad_sequence
from torch.optim.lr_scheduler import StepLR

from paceline import Run
from paceline.engine.own_batch import Batch

NUM_WORDS = 12
SENTENCES = [(torch.arange(2 + index * 7 % 13) + index) % 11 + 1 for index in range(40)]
"""Of 2 to 14 words; 0 pads them."""


def pad(samples: Any) -> Tensor:
    return pad_sequence(list(samples), batch_first=True)


class Words(nn.Module):
    """Predicts the next word and the length of a sentence."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn = nn.Embedding(NUM_WORDS, 8), nn.GRU(8, 8, batch_first=True)
        self.out, self.length = nn.Linear(8, NUM_WORDS), nn.Linear(8, 1)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        states = self.rnn(self.embed(tokens))[0]
        return self.out(states), self.length(states[:, 0])


def sums_of_losses(net: nn.Module, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums over words and over sentences."""
    logits, length = net(tokens[:, :-1])
    words = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=0, reduction="sum")
    return words, mse_loss(length[:, 0], (tokens != 0).sum(1).double(), reduction="sum")


def num_words(tokens: Tensor) -> Tensor:
    return (tokens[:, 1:] != 0).sum()


def words(run: Run) -> None:
    """Two losses with different totals, padding, a schedule, and an evaluation at the end of each epoch."""
    net = run.setup("net", Words().double())
    opt = run.setup("opt", torch.optim.AdamW(net.parameters(), 0.01))
    schedule = run.setup("schedule", StepLR(opt, step_size=3, gamma=0.5))

    def score(tokens: Tensor) -> dict[str, Any]:
        known = tokens[:, 1:] != 0
        return {"right": ((net(tokens[:, :-1])[0].argmax(-1) == tokens[:, 1:])[known].sum(), known.sum())}

    for batch in run.batches(SENTENCES, collate=pad):
        total = batch.total(num_words)
        for tokens in batch:
            loss, length = sums_of_losses(net, tokens)
            run.backward({"words": (loss, total), "length": (length, batch.size)})
        run.step(opt, clip=1.0)
        schedule.step()
        if batch.ends_epoch:
            run.evaluate(SENTENCES, score, best="right", collate=pad)


def mean_of_means(run: Run) -> None:
    """The mistake of plain DDP scripts: every rank divides by what it has itself."""
    net = run.setup("net", Words().double())
    opt = run.setup("opt", torch.optim.AdamW(net.parameters(), 0.01))
    for batch in run.batches(SENTENCES, collate=pad):
        for tokens in batch:
            loss, _ = sums_of_losses(net, tokens)
            run.backward(loss, num_words(tokens) * run.world_size)
        run.step(opt)


def gan(run: Run) -> None:
    """Two optimizers in turn, noise by run.randn, several backward passes in a micro-batch."""
    G = run.setup("G", nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)).double())  # noqa: N806
    D = run.setup("D", nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1)).double())  # noqa: N806
    opt_g = run.setup("opt_g", torch.optim.Adam(G.parameters(), 0.01))
    opt_d = run.setup("opt_d", torch.optim.Adam(D.parameters(), 0.01))

    def loss(logits: Tensor, target: float) -> Tensor:
        return binary_cross_entropy_with_logits(logits, torch.full_like(logits, target), reduction="sum")

    for batch in run.batches(torch.linspace(-1, 1, 80).double().view(40, 2)):
        for real in batch.micro_batches(opt_d):
            fake = G(run.randn(4).double()).detach()
            run.backward({"real": (loss(D(real), 1.0), batch.size)})
            run.backward({"fake": (loss(D(fake), 0.0), batch.size)})
        run.step(opt_d)
        for _ in batch.micro_batches(opt_g):
            drawn = G(run.randn(4).double())
            run.backward({"g": (loss(D(drawn), 1.0), batch.size)})
            run.log(radius=(drawn.norm(dim=1).sum(), len(drawn)))
        run.step(opt_g)


def _set_up(run: Run, **options: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    net = run.setup("net", nn.Linear(2, 1, **options))
    return net, run.setup("opt", torch.optim.SGD(net.parameters(), 0.1))


DATA = torch.ones(40, 2)


def steps(run: Run) -> Iterator[Batch]:
    """Train, and yield each batch when its step has been computed."""
    net, opt = _set_up(run)
    for batch in run.batches(DATA):
        for x in batch:
            run.backward(net(x).sum(), batch.size)
            run.log(size=(len(x), 1))
        run.step(opt)
        yield batch


def right(run: Run) -> None:
    for _ in steps(run):
        pass


def plain_backward(run: Run) -> None:
    net, opt = _set_up(run)
    for batch in run.batches(DATA):
        for x in batch:
            net(x).sum().backward()
        run.step(opt)


def twice_on_one_rank(run: Run) -> None:
    net, opt = _set_up(run)
    for batch in run.batches(DATA):
        for x in batch:
            for _ in range(1 if run.is_lead else 2):
                run.backward(net(x).sum(), batch.size)
        run.step(opt)


def other_weights(run: Run) -> None:
    if not run.is_lead:
        torch.randn(1)
    _set_up(run)


def other_names(run: Run) -> None:
    net, opt = _set_up(run)
    for batch in run.batches(DATA):
        for x in batch:
            run.backward(net(x).sum(), batch.size)
            run.log(**{"size" if run.is_lead else "length": (len(x), 1)})
        run.step(opt)


def other_data(run: Run) -> None:
    _set_up(run)
    run.batches(DATA[: 30 if run.is_lead else 40])


def never_applied(run: Run) -> None:
    net, _ = _set_up(run)
    for batch in run.batches(DATA):
        for x in batch:
            run.backward(net(x).sum(), batch.size)


def applied_twice(run: Run) -> None:
    net, opt = _set_up(run)
    for batch in run.batches(DATA):
        for x in batch:
            run.backward(net(x).sum(), batch.size)
        run.step(opt)
        run.step(opt)


def left_early(run: Run) -> None:
    net, opt = _set_up(run)
    for batch in run.batches(DATA):
        for x in batch:
            run.backward(net(x).sum(), batch.size)
            break
        run.step(opt)


def outside(run: Run) -> None:
    net, _ = _set_up(run)
    for batch in run.batches(DATA):
        run.backward(net(DATA).sum(), batch.size)


def no_total(run: Run) -> None:
    net, _ = _set_up(run)
    for batch in run.batches(DATA):
        for x in batch:
            run.backward(net(x).sum())


def no_sum(run: Run) -> None:
    net, _ = _set_up(run)
    for batch in run.batches(DATA):
        for x in batch:
            run.backward(net(x), batch.size)


def detached(run: Run) -> None:
    net, _ = _set_up(run)
    for batch in run.batches(DATA):
        for x in batch:
            run.backward(net(x).sum().detach(), batch.size)


def nothing_to_count(run: Run) -> None:
    _set_up(run)
    for batch in run.batches(DATA):
        batch.total(lambda _: 0)


def bad_count(run: Run) -> None:
    _set_up(run)
    for batch in run.batches(DATA):
        batch.total(lambda _: -3)


def sum_in_pass(run: Run) -> None:
    _set_up(run)
    for batch in run.batches(DATA):
        for x in batch:
            run.sum(x)


def foreign_optimizer(run: Run) -> None:
    net, _ = _set_up(run)
    for batch in run.batches(DATA):
        for x in batch:
            run.backward(net(x).sum(), batch.size)
        run.step(torch.optim.SGD(net.parameters(), 0.1))


def foreign_parameters(run: Run) -> None:
    run.setup("opt", torch.optim.SGD(nn.Linear(2, 1).parameters(), 0.1))


def shared_parameters(run: Run) -> None:
    net, _ = _set_up(run)
    run.setup("other", torch.optim.SGD(net.parameters(), 0.1))


def same_name(run: Run) -> None:
    _set_up(run)
    run.setup("net", nn.Linear(2, 1))


def no_state(run: Run) -> None:
    run.setup("number", count())


def no_optimizer(run: Run) -> None:
    run.setup("net", nn.Linear(2, 1))
    run.batches(DATA)


def late_setup(run: Run) -> None:
    _set_up(run)
    run.batches(DATA)
    run.setup("late", nn.Linear(2, 1))


def no_batches(run: Run) -> None:
    _set_up(run)


def ragged(run: Run) -> None:
    _set_up(run)
    for _ in run.batches(SENTENCES):
        pass


def not_a_number(run: Run) -> None:
    net, opt = _set_up(run)
    for batch in run.batches(DATA):
        for x in batch:
            run.backward(net(x).sum() * float("nan"), batch.size)
        run.step(opt)


def bad_score(run: Run) -> None:
    right(run)
    run.evaluate(DATA, lambda _: {"accuracy": 1})


def no_such_score(run: Run) -> None:
    for _ in steps(run):
        run.evaluate(DATA, lambda x: {"accuracy": (len(x), len(x))}, best="acuracy")
