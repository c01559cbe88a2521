"""What `--balance` gains: two ranks, one of them slowed to half its speed, with equal and with balanced shards.

    python -m benchmarks.balance

Both variants run in the same processes and take turns. At the end their weights must have the same bits.
"""

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.exact import Answer, Variant, Work, free_port, here, ranks
from benchmarks.interleave import show, take_turns
from paceline.core.world import World
from paceline.parallel.join import join
from paceline.parallel.replicas import short_hash
from paceline.parallel.team import Team


class Halved:
    """Makes the forward pass of a rank wait as long as its last micro-batch took."""

    def __init__(self, variant: Variant) -> None:
        training: Any = variant.training
        self._backward, self._seconds = training.backward, 0.0
        training.backward = self.backward
        training.job.model.register_forward_pre_hook(lambda *_: time.sleep(self._seconds))

    def backward(self, *args: Any) -> Any:
        start = time.perf_counter()
        result = self._backward(*args)
        self._seconds = time.perf_counter() - start - self._seconds
        return result


def compete(work: Work, world: World) -> Answer:
    """Time both variants as one of the ranks. Collective."""
    torch.set_num_threads(1)
    with (
        join(world, torch.device("cpu"), timeout=120) as team,
        tempfile.TemporaryDirectory() as folder,
    ):
        variants = {}
        for name, balance in (("equal shards", False), ("--balance", True)):
            settings = {"exact": "bitwise", "shards": work.shards[0], "balance": balance}
            variants[name] = Variant(settings, work, team, Path(folder), prepare=Halved if world.rank == 1 else None)
        outcomes = take_turns(variants, rounds=work.rounds)
        digests = {(variant.progress.step, digest(variant, team)) for variant in variants.values()}
        if len(digests) != 1:
            raise SystemExit(f"the variants differ: {digests}")
        shards = variants["--balance"].training.plan.shards_by_rank
        return Answer(outcomes=outcomes, sent={f"shards {shards}, the same bits": 0.0})


def digest(variant: Variant, team: Team) -> int:
    """Return a hash of the weights. Collective."""
    return hash(tuple(team.gather([short_hash(value) for value in variant.training.job.model.parameters()])[0]))


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the gain of --balance")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--as-rank", help=argparse.SUPPRESS)
    options = parser.parse_args()
    work = Work(world=2, model="resnet20", batch=48, shards=(6,), steps=3, warm_up=20, rounds=options.rounds)
    if options.as_rank:
        task = json.loads(options.as_rank)
        world = World(rank=task["rank"], size=2, launcher="flags", init_method=task["init_method"])
        answer = compete(Work(**task["work"]), world)
        if world.is_lead:
            print("ANSWER " + json.dumps(asdict(answer)), flush=True)
        return
    answer = ranks(work, here, f"tcp://127.0.0.1:{free_port()}", module="benchmarks.balance")
    show(f"2 ranks, rank 1 at half speed: {work}; {', '.join(answer.sent)}", answer.outcomes, per=1e-3, unit="ms/step")


if __name__ == "__main__":
    sys.exit(main())
