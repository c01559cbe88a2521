"""Runs that never happened, to be told on pages."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from paceline.core.config import Config
from paceline.explain.time_split import TimeSplit, split_time
from paceline.records.folder import RunFolder
from paceline.records.phases import OTHER_PHASES, STEP_PHASES, PhaseRecord, RankFacts
from paceline.records.profile import Profile, ProfiledBucket, RankSteps
from paceline.records.reader import RunSummary
from paceline.report.run_data import RunData

STEP_MS = {"data": 1, "copy": 0.5, "forward": 20, "backward": 45, "communication": 30, "straggler": 2, "update": 1.5}


def make_split(
    *, ranks: int = 2, steps: int = 100, hosts: int = 1, noise: float = 0.0, **milliseconds: float
) -> TimeSplit:
    """Return ranks that are alike but for a straggler: the last one computes a fifth longer."""
    per_step = STEP_MS | milliseconds
    phases = {phase: np.full(ranks, steps * per_step[phase] / 1000) for phase in STEP_PHASES}
    phases |= {phase: np.full(ranks, 0.5) for phase in OTHER_PHASES}
    if ranks > 1:
        phases["backward"][-1] *= 1.2
        phases["straggler"][-1] = 0
    facts = RankFacts(
        first_step=0, hosts=[f"node{rank * hosts // ranks + 1}" for rank in range(ranks)], threads=[1] * ranks,
        cores=[2] * ranks, mode="ddp" if ranks > 1 else "single", device="cpu", parameters=272_186,
        gradient_bytes=1_088_744, global_batch=128,
    )  # fmt: skip
    record = PhaseRecord(
        step=steps, steps=steps, seconds=sum(phases.values(), start=np.full(ranks, 0.01)).tolist(),
        phases={phase: values.tolist() for phase, values in phases.items()}, last=[0] * ranks, cpu=[1.0] * ranks,
        cpu_wait=[0.0] * ranks,
    )  # fmt: skip
    split = split_time([facts, record])
    assert split is not None
    return replace(split, num_intervals=5, deviation=float(split.steady_state.step.mean()) * noise)


def make_profile(*, ranks: int = 2, buckets: int = 4) -> Profile:
    """Return a profile whose last bucket ends 30 ms after the backward pass."""
    steps = RankSteps(
        data=(0.001,), copy=(0.0005,), forward=(0.02,), backward=(0.045,), grad_sync=(0.03,), update=(0.0015,),
        step=(0.098,),
    )  # fmt: skip
    return Profile(
        world_size=ranks, ranks_per_node=(ranks,), mode="ddp", backend="gloo", device="cpu", model="resnet20",
        precision="fp32", compress="none", parameters=272_186, gradient_bytes=1_088_744, global_batch=128,
        samples_per_rank=64, accumulate=1, threads=1, free=(steps,) * ranks, real=(steps,) * ranks,
        buckets=tuple(
            ProfiledBucket(
                bytes=1_088_744 // buckets, ready=0.045 * n / buckets, ready_real=0.045 * n / buckets,
                done_real=0.075 * n / buckets,
            )
            for n in range(1, buckets + 1)
        ),
        link=(), latency=1e-4, bandwidth=1e8,
    )  # fmt: skip


def make_records(epochs: int = 5, per_epoch: int = 10) -> list[dict]:
    """Return records of a run that learns."""
    records = []
    for epoch in range(1, epochs + 1):
        step = epoch * per_epoch
        loss, top1 = 2.3 / epoch, 1 - 0.5 / epoch
        shared = {"step": step, "epoch": epoch, "samples_per_s": 1000.0, "seconds": 1.0}
        records.append({"kind": "step", "loss": loss, "top1": top1, "lr": 0.1 / epoch, "samples": 1280, **shared})
        records.append(
            {"kind": "epoch", "train_loss": loss, "train_top1": top1, "valid_loss": loss * 1.1,
             "valid_top1": top1 - 0.02, "valid_top5": 1.0, "is_best": True, **shared}
        )  # fmt: skip
    return records


def make_run(
    label: str = "demo/001", *, split: TimeSplit | None = None, profile: Profile | None = None, **config
) -> RunData:
    """Return a run that has finished."""
    score = {"loss": 0.1, "top1": 0.986, "top5": 1.0, "samples": 360, "split_samples": 360, "epoch": 5}
    summary = RunSummary(
        folder=RunFolder(Path("runs") / "demo" / "001"), config=Config(**config).resolved(), started=1.7e9,
        state="FINISHED", step=50, epochs=5, best=score, test=score, samples_per_s=1000.0, detail="",
    )  # fmt: skip
    environment = {
        "host": "node1", "device": "cpu", "cores": 2, "packages": {"torch": "2.13.0"}, "world_size": 2,
        "train_samples": 1293,
    }  # fmt: skip
    return RunData(
        label=label, summary=summary, records=make_records(), split=make_split() if split is None else split,
        profile=profile, environments=[environment],
    )  # fmt: skip
