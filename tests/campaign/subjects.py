"""What a case trains besides random modules: tasks of every kind, and loops of a user. A setting names them."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, normalize
from torch.nn.utils.rnn import pad_sequence
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import TensorDataset

import paceline
from tests.campaign.modules import NUM_CLASSES, NUM_SAMPLES

NUM_WORDS, PADDING = 11, -1
TASKS = {
    "language": ("sentences", "Reader", "language"),
    "regression": ("points", "Dense", "regression"),
    "segmentation": ("masks", "Painter", "segmentation"),
    "multi-label": ("labels", "Dense", "multi-label"),
    "two losses": ("sentences", "TwoHeads", "TwoLosses"),
    "teacher": ("points", "Dense", "Following"),
    "contrastive": ("views", "Dense", "Contrastive"),
}
"""By name: data, model and task; the task is one of Paceline's, or a class of this file."""
LOOPS = ("gan", "translate", "several_backwards")
NOT_SHARDED = ("teacher",)


def _draws(*shape: int) -> Tensor:
    return torch.randn(NUM_SAMPLES, *shape, generator=torch.Generator().manual_seed(1))


class Sentences:
    """Token ids of 2 to 12 words, padded in each micro-batch."""

    vocab_size, context = NUM_WORDS, 12

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> Tensor:
        return (torch.arange(2 + index * 7 % 11) * (1 + index % 3) + index) % NUM_WORDS

    def collate(self, samples: Any) -> Tensor:
        return pad_sequence(list(samples), batch_first=True, padding_value=PADDING)


def sentences() -> Sentences:
    return Sentences()


def points() -> TensorDataset:
    targets = _draws(20)[:, 16:].clone()
    targets[::5, 0] = torch.nan
    return TensorDataset(_draws(16), targets)


def labels() -> TensorDataset:
    return TensorDataset(_draws(16), (_draws(20)[:, 16:] > 0).float())


class Masks(TensorDataset):
    num_classes = NUM_CLASSES


def masks() -> TensorDataset:
    images = _draws(1, 6, 6)
    masks = (images[:, 0] > 0).long() + (images[:, 0] > 1).long()
    masks[::4, :2] = 255
    return Masks(images, masks)


def views() -> TensorDataset:
    return TensorDataset(_draws(16), _draws(16) + 0.1 * _draws(17)[:, 1:])


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn = nn.Embedding(NUM_WORDS, 8), nn.GRU(8, 8, batch_first=True)
        self.dropout, self.out = nn.Dropout(0.1), nn.Linear(8, NUM_WORDS)

    def states(self, tokens: Tensor) -> Tensor:
        return self.dropout(self.rnn(self.embed(tokens))[0])

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.states(tokens))


class TwoHeads(Reader):
    def __init__(self) -> None:
        super().__init__()
        self.length = nn.Linear(8, 1)

    def forward(self, tokens: Tensor) -> Any:
        states = self.states(tokens)
        return self.out(states), self.length(states[:, 0])[:, 0]


class Dense(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(16, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.1), nn.Linear(12, 4))


class Painter(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, NUM_CLASSES, 1))


def _sum_over_words(logits: Tensor, words: Tensor) -> Tensor:
    return cross_entropy(logits.flatten(0, 1), words.flatten(), ignore_index=PADDING, reduction="sum")


class TwoLosses(paceline.Task):
    """A loss of words and one of sentences, each with its count; the weight of one follows the step."""

    def forward(self, model: nn.Module, batch: Tensor) -> Any:
        return model(batch[:, :-1].clamp(min=0))

    def targets(self, batch: Tensor) -> Tensor:
        return batch[:, 1:]

    def count(self, targets: Tensor) -> Any:
        return {"words": (targets != PADDING).sum()}

    def weights(self, step: int) -> dict[str, float]:
        return {"length": 1 / (1 + step)}

    def loss(self, outputs: Any, targets: Tensor) -> Any:
        logits, length = outputs
        wanted = (targets != PADDING).sum(1).float()
        return {"words": _sum_over_words(logits, targets), "length": (length - wanted).square().sum()}


class Following(paceline.Task):
    """Learns from the moving average of the model, on inputs with noise."""

    teacher = paceline.Ema(0.8)

    def forward(self, model: nn.Module, batch: Any) -> Tensor:
        return model(batch[0]) - 0.5 * self.teacher(batch[0] + 0.1 * torch.randn(batch[0].shape))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets.nan_to_num()).square().sum()


class Contrastive(paceline.Task):
    whole_batch = True

    def forward(self, model: nn.Module, batch: Any) -> Tensor:
        return normalize(model(torch.cat(list(batch))), dim=1).unflatten(0, (2, -1)).transpose(0, 1)

    def targets(self, batch: Any) -> Any:
        return ()

    def loss(self, outputs: Tensor, targets: Any) -> Tensor:
        scores = outputs[:, 0] @ outputs[:, 1].T / 0.1
        return cross_entropy(scores, torch.arange(len(scores)))


def _adversarial(logits: Tensor, target: float) -> Tensor:
    return binary_cross_entropy_with_logits(logits, torch.full_like(logits, target), reduction="sum")


def gan(run: paceline.Run) -> None:
    """Two optimizers in turn, with batch norm, dropout and noise."""
    G = run.setup("G", nn.Sequential(nn.Linear(4, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 16)))  # noqa: N806
    D = run.setup("D", nn.Sequential(nn.Linear(16, 12), nn.LeakyReLU(), nn.Dropout(0.1), nn.Linear(12, 1)))  # noqa: N806
    opt_g = run.setup("opt_g", torch.optim.Adam(G.parameters(), 1e-3))
    opt_d = run.setup("opt_d", torch.optim.Adam(D.parameters(), 1e-3))
    for batch in run.batches(_draws(16)):
        for real in batch.micro_batches(opt_d):
            fake = G(run.randn(4)).detach()
            run.backward({"d": (_adversarial(D(real), 1.0) + _adversarial(D(fake), 0.0), batch.size)})
        run.step(opt_d)
        for _ in batch.micro_batches(opt_g):
            run.backward({"g": (_adversarial(D(G(run.randn(4))), 1.0), batch.size)})
        run.step(opt_g)


def translate(run: paceline.Run) -> None:
    """Padding, a total, clipping, a schedule with a state, an evaluation that picks the best checkpoint."""
    net = run.setup("net", Reader())
    opt = run.setup("opt", torch.optim.AdamW(net.parameters(), 0.005))
    schedule = run.setup("schedule", StepLR(opt, step_size=2, gamma=0.5))
    data = Sentences()

    def score(tokens: Tensor) -> dict[str, Any]:
        wanted = tokens[:, 1:]
        right = net(tokens[:, :-1].clamp(min=0)).argmax(-1) == wanted
        return {"right": (right.sum(), (wanted != PADDING).sum())}

    for batch in run.batches(data, collate=data.collate):
        total = batch.total(lambda tokens: (tokens[:, 1:] != PADDING).sum())
        for tokens in batch:
            run.backward(_sum_over_words(net(tokens[:, :-1].clamp(min=0)), tokens[:, 1:]), total)
        run.step(opt, clip=0.5)
        schedule.step()
        if batch.ends_epoch:
            run.evaluate(data, score, best="right", collate=data.collate)


def several_backwards(run: paceline.Run) -> None:
    """Two calls of backward in a micro-batch, a logged number, and noise in the update."""
    net = run.setup("net", Dense())
    opt = run.setup("opt", torch.optim.SGD(net.parameters(), 0.02, momentum=0.9))
    for batch in run.batches(points()):
        for inputs, targets in batch:
            run.backward({"fit": ((net(inputs) - targets.nan_to_num()).square().sum(), batch.size)})
            outputs = net(inputs + 0.1 * run.randn(16))
            run.backward({"smooth": (outputs.square().sum(), batch.size)})
            run.log(size=(outputs.detach().abs().sum(), outputs.numel()))
        run.step(opt)
        with torch.no_grad():
            for weight in net.parameters():
                weight.add_(torch.randn_like(weight), alpha=1e-4)
