"""What the loop costs: Paceline, with all records on, against a raw loop, Fabric, Accelerate and Lightning.

    make bench                                     # all, in an environment with Lightning and Accelerate
    python -m benchmarks.loop_overhead --quick     # a few rounds

Frameworks that are not installed are left out. One thread, the embedded digits, the same model, batch and optimizer
settings for all. The raw loop is what one writes by hand: shuffle, gather, forward, backward, step, scheduler, running
loss and accuracy, a line every 50 steps. The baseline is the one with the fused optimizer, which Paceline uses too.
CPU time beside wall time holds on a busy machine; the middle half of the rounds is in parentheses.
"""

import argparse
import contextlib
import importlib.util
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from benchmarks.interleave import show, take_turns
from paceline.core.config import Config
from paceline.core.setting_types import Interval
from paceline.core.stopping import StopRequest
from paceline.core.world import World
from paceline.data.catalog import open_data, split_data
from paceline.engine.clock import Clock
from paceline.engine.job import build_job
from paceline.engine.loop import Training
from paceline.engine.progress import Progress
from paceline.engine.rank import open_run_folder
from paceline.engine.run import JobRun
from paceline.models.zoo import build_model
from paceline.parallel.team import Team

NEVER = Interval(10**9)
TOTAL = 10**6


class Work:
    """The work that all variants do."""

    def __init__(self, model: str, batch: int) -> None:
        self.model_name = model
        self.batch = batch
        splits = split_data(open_data(Config(data="digits")), valid_split=0.1)
        everything = splits.train.fetch(np.arange(len(splits.train)), None)
        self.images, self.labels = everything.images.clone(), everything.labels.clone()

    def model(self) -> torch.nn.Module:
        torch.manual_seed(0)
        model = build_model(self.model_name, num_classes=10, image_shape=(1, 8, 8))
        if self.model_name != "mlp":
            model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        return model

    def optimizer(self, model: torch.nn.Module, *, fused: bool = False) -> torch.optim.SGD:
        settings = {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}
        return torch.optim.SGD(model.parameters(), fused=True if fused else None, **settings)

    def batches(self, steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        done = 0
        while done < steps:
            order = torch.randperm(len(self.labels))
            for start in range(0, len(order), self.batch):
                ids = order[start : start + self.batch]
                yield self.images[ids], self.labels[ids]
                done += 1
                if done == steps:
                    return


class Batched(Dataset):
    """Whole batches as items, for the frameworks that want a DataLoader."""

    def __init__(self, work: Work, steps: int) -> None:
        self.work, self.steps = work, steps

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index == 0:
            self.order = torch.randperm(len(self.work.labels))
        start = index * self.work.batch % len(self.order)
        ids = self.order[start : start + self.work.batch]
        return self.work.images[ids], self.work.labels[ids]


class Tally:
    """Running loss and accuracy, and a line every 50 steps, as scripts have it."""

    def __init__(self) -> None:
        self.loss, self.correct, self.seen, self.steps = 0.0, 0, 0, 0

    def add(self, loss: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor) -> None:
        self.loss += loss.item() * len(labels)
        self.correct += (logits.argmax(1) == labels).sum().item()
        self.seen += len(labels)
        self.steps += 1
        if self.steps % 50 == 0:
            print(f"step {self.steps} loss {self.loss / self.seen:.4f} acc {self.correct / self.seen:.4f}")


def raw(work: Work, steps: int, *, fused: bool) -> Callable[[], None]:
    model = work.model().train()
    optimizer = work.optimizer(model, fused=fused)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, TOTAL)

    def turn() -> None:
        tally = Tally()
        for images, labels in work.batches(steps):
            logits = model(images)
            loss = functional.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            tally.add(loss, logits, labels)

    return turn


class StopAfter(StopRequest):
    """Asks the loop to pause after a number of steps."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self.progress, self.limit = progress, 0

    @property
    def asked(self) -> bool:
        return self.progress.step >= self.limit


@contextlib.contextmanager
def paceline(work: Work, steps: int, folder: str) -> Iterator[Callable[[], None]]:
    config = Config(
        model=work.model_name,
        global_batch=work.batch,
        epochs=TOTAL,
        eval_every=NEVER,
        save_every=NEVER,
        threads=1,
        runs_dir=Path(folder),
    )
    team, progress, clock = Team(World(), torch.device("cpu")), Progress(), Clock(alone=True)
    job = build_job(config, team)
    run = JobRun(job, progress, team, open_run_folder(job, None, team.world), clock=clock)
    training = Training(job, progress, team, run.recorder, clock=clock)
    stop = StopAfter(progress)

    def turn() -> None:
        stop.limit = progress.step + steps
        training.run(stop, save=lambda is_best=False: None, check=lambda: None)

    with run.recorder.attached(run.trackers(), run.info()):
        yield turn


def fabric(work: Work, steps: int) -> Callable[[], None]:
    from lightning.fabric import Fabric  # pyright: ignore[reportMissingImports]

    lightning = Fabric(accelerator="cpu", devices=1)
    plain = work.model().train()
    model, optimizer = lightning.setup(plain, work.optimizer(plain))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, TOTAL)

    def turn() -> None:
        tally = Tally()
        for images, labels in work.batches(steps):
            logits = model(images)
            loss = functional.cross_entropy(logits, labels)
            optimizer.zero_grad()
            lightning.backward(loss)
            optimizer.step()
            scheduler.step()
            tally.add(loss, logits, labels)

    return turn


def accelerate(work: Work, steps: int) -> Callable[[], None]:
    from accelerate import Accelerator  # pyright: ignore[reportMissingImports]

    accelerator = Accelerator(cpu=True)
    plain = work.model().train()
    optimizer = work.optimizer(plain)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, TOTAL)
    loader = DataLoader(Batched(work, steps), batch_size=None)
    model, optimizer, loader, scheduler = accelerator.prepare(plain, optimizer, loader, scheduler)

    def turn() -> None:
        tally = Tally()
        for images, labels in loader:
            logits = model(images)
            loss = functional.cross_entropy(logits, labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            tally.add(loss, logits, labels)

    return turn


def lightning(work: Work, steps: int, folder: str, *, logs: bool) -> Callable[[], float]:
    import lightning as pl  # pyright: ignore[reportMissingImports]

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = work.model()

        def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _index: int) -> torch.Tensor:
            images, labels = batch
            logits = self.net(images)
            loss = functional.cross_entropy(logits, labels)
            if logs:
                self.log("loss", loss, prog_bar=True)
                self.log("acc", (logits.argmax(1) == labels).float().mean(), prog_bar=True)
            return loss

        def configure_optimizers(self) -> dict:
            optimizer = work.optimizer(self.net)
            scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, TOTAL)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

        def on_train_start(self) -> None:
            self.started = time.perf_counter()

        def on_train_end(self) -> None:
            self.seconds = time.perf_counter() - self.started

    def turn() -> float:
        module = Module()
        logger = pl.pytorch.loggers.TensorBoardLogger(folder) if logs else False
        trainer = pl.Trainer(
            accelerator="cpu", devices=1, max_steps=steps, logger=logger, enable_checkpointing=False,
            enable_progress_bar=logs, enable_model_summary=False, log_every_n_steps=50,
        )  # fmt: skip
        trainer.fit(module, DataLoader(Batched(work, steps), batch_size=None))
        return module.seconds

    return turn


def compare(model: str, *, batch: int, steps: int, rounds: int) -> None:
    """Let all variants that are installed take turns on one model."""
    work = Work(model, batch)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        silent = stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
        with contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent):
            variants: dict[str, Callable[[], float | None]] = {"raw loop, fused": raw(work, steps, fused=True)}
            variants["raw loop"] = raw(work, steps, fused=False)
            variants["paceline, all records"] = stack.enter_context(paceline(work, steps, folder))
            if importlib.util.find_spec("lightning"):
                variants["lightning fabric"] = fabric(work, steps)
                variants["lightning, bare"] = lightning(work, steps, folder, logs=False)
                variants["lightning, logging"] = lightning(work, steps, folder, logs=True)
            if importlib.util.find_spec("accelerate"):
                variants["accelerate"] = accelerate(work, steps)
            outcomes = take_turns(variants, rounds=rounds)
    show(
        f"{model}, batch {batch}, 1 thread, {rounds} rounds of {steps} steps", outcomes, per=steps / 1e6, unit="µs/step"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the cost of training loops")
    parser.add_argument("--quick", action="store_true", help="a few rounds")
    quick = parser.parse_args().quick
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    compare("mlp", batch=64, steps=420, rounds=3 if quick else 15)
    compare("resnet20", batch=64, steps=21, rounds=2 if quick else 25)


if __name__ == "__main__":
    sys.exit(main())
