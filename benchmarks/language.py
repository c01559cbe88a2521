"""Tokens per second of the nano language model: Paceline, with all records on, beside a raw loop.

    python -m benchmarks.language            # 15 rounds
    python -m benchmarks.language --quick    # a few rounds

One thread, the embedded book, the same model, batch and fused AdamW for both. The raw loop is what one writes by hand:
shuffle, slice tokens, forward, backward, step, scheduler, running loss, a line every 50 steps. Variants take turns; CPU
time beside wall time holds on a busy machine.
"""

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from benchmarks.interleave import show, take_turns
from benchmarks.loop_overhead import NEVER, TOTAL, StopAfter
from paceline.core.config import Config
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

MODEL, CONTEXT, BATCH, LR, DECAY = "gpt-nano", 128, 16, 0.001, 5e-4


def settings(folder: str) -> Config:
    return Config(
        data="alice",
        context=CONTEXT,
        model=MODEL,
        optimizer="adamw",
        lr=LR,
        weight_decay=DECAY,
        global_batch=BATCH,
        epochs=TOTAL,
        eval_every=NEVER,
        save_every=NEVER,
        threads=1,
        runs_dir=Path(folder),
    )


def raw(steps: int, folder: str) -> Callable[[], None]:
    """Return a loop written by hand."""
    splits = split_data(open_data(settings(folder)), valid_split=0.1)
    everything = splits.train.fetch(np.arange(len(splits.train)), None)
    torch.manual_seed(0)
    model = build_model(MODEL, **splits.facts).train()
    optimizer = torch.optim.AdamW(model.parameters(), LR, weight_decay=DECAY, fused=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, TOTAL)

    def batches() -> Iterator[torch.Tensor]:
        while True:
            for ids in torch.randperm(len(everything)).split(BATCH):
                yield everything[ids]

    source = batches()

    def turn() -> None:
        total = 0.0
        for step in range(steps):
            tokens = next(source)
            logits = model(tokens[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            total += loss.item()
            if step % 50 == 49:
                print(f"step {step + 1} loss {total / (step + 1):.4f}")

    return turn


@contextlib.contextmanager
def paceline(steps: int, folder: str) -> Iterator[Callable[[], None]]:
    """Yield Paceline's loop with its trackers attached."""
    team, progress, clock = Team(World(), torch.device("cpu")), Progress(), Clock(alone=True)
    job = build_job(settings(folder), team)
    run = JobRun(job, progress, team, open_run_folder(job, None, team.world), clock=clock)
    training, stop = Training(job, progress, team, run.recorder, clock=clock), StopAfter(progress)

    def turn() -> None:
        stop.limit = progress.step + steps
        training.run(stop, save=lambda is_best=False: None, check=lambda: None)

    with run.recorder.attached(run.trackers(), run.info()):
        yield turn


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the cost of training a language model")
    parser.add_argument("--quick", action="store_true", help="a few rounds")
    rounds, steps = (5 if parser.parse_args().quick else 15), 50
    torch.set_num_threads(1)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        silent = stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
        with contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent):
            variants = {"raw loop, fused": raw(steps, folder)}
            variants["paceline, all records"] = stack.enter_context(paceline(steps, folder))
            outcomes = take_turns(variants, rounds=rounds)
    title = f"{MODEL}, {BATCH} sequences of {CONTEXT} tokens, 1 thread, {rounds} rounds of {steps} steps"
    show(title, outcomes, per=steps / 1e3, unit="ms/step")
    for outcome in outcomes:
        print(f"  {outcome.name}: {steps * BATCH * CONTEXT / outcome.median:,.0f} tokens/s")


if __name__ == "__main__":
    sys.exit(main())
