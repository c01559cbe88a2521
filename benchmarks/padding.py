"""The gradient of sequences with 50% padding on 1 to 4 ranks, beside one process with the whole batch.

    python -m benchmarks.padding

A GRU predicts the next word of 32 sequences of 2 to 30 words. Paceline's loop adds the sums of all ranks
and divides by the words of the global batch; a plain DDP script averages the mean of every rank.
Errors are the largest difference of any value relative to the largest of its tensor.
"""

import os
import subprocess
import sys

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence

from paceline.core.config import Config
from paceline.core.start import Start
from paceline.engine.clock import clock_for
from paceline.engine.job import build_job
from paceline.engine.loop import Training
from paceline.engine.progress import Progress
from paceline.engine.recorder import Recorder
from paceline.parallel.detect import detect_world
from paceline.parallel.join import joined

WORDS, PADDING, BATCH = 20, -1, 32


class Sentences:
    vocab_size, context = WORDS, 30

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> Tensor:
        return (torch.arange(2 + index * 7 % 29) * (1 + index % 3) + index) % WORDS

    def collate(self, samples: list[Tensor]) -> Tensor:
        return pad_sequence(samples, batch_first=True, padding_value=PADDING)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn, self.out = nn.Embedding(WORDS, 32), nn.GRU(32, 32, batch_first=True), nn.Linear(32, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.rnn(self.embed(tokens))[0])


def mean_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """Return the loss as scripts have it: the mean over the words of this rank."""
    logits = model(tokens[:, :-1].clamp(min=0))
    return cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=PADDING)


def gradient_of(model: nn.Module) -> dict[str, Tensor]:
    found = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def error(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    return max(float((one[name] - other[name]).abs().max() / other[name].abs().max()) for name in other)


def take_part() -> None:
    """Compare as one of the ranks; the lead prints."""
    torch.set_num_threads(1)
    with joined(detect_world(os.environ, Start()), device="cpu", threads=1) as team:
        for accumulate in (1, 2):
            config = Config(
                data=f"{__file__}:Sentences", model=f"{__file__}:Net", task="language", global_batch=BATCH,
                augment="none", threads=1, device="cpu", accumulate=accumulate,
            )  # fmt: skip
            job, progress, clock = build_job(config, team), Progress(), clock_for(team, began=None)
            recorder = Recorder(job.plan, progress, team, scoring=job.scoring, clock=clock)
            training = Training(job, progress, team, recorder, clock=clock)
            step, parts = next(training.batches_of_epoch())
            training.gradients(step, parts)
            ours = gradient_of(job.model)
            samples = [row[row != PADDING] for part in parts for row in part.batch]
            everything = Sentences().collate([row for rows in team.gather(samples) for row in rows])
            mean_loss(job.model, everything).backward()
            alone = gradient_of(job.model)
            plain = DistributedDataParallel(job.model) if team.world.size > 1 else job.model
            for part in parts:
                (mean_loss(plain, part.batch) / len(parts)).backward()
            padded = float((everything == PADDING).float().mean())
            if team.is_lead:
                print(f"  {team.world.size} ranks, {accumulate} micro-batches, {padded:.0%} padding: Paceline "
                      f"{error(ours, alone):.1e}, plain DDP {error(gradient_of(job.model), alone):.2f}")  # fmt: skip


def main() -> None:
    if sys.argv[1:] == ["--rank"]:
        take_part()
        return
    print("gradient of the global batch, largest relative difference from one process")
    for size in range(1, 5):
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
        command = [sys.executable, *launch, "-m", "benchmarks.padding", "--rank"]
        subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


if __name__ == "__main__":
    main()
