"""Records of phases.jsonl, runs and profiles with given times, without running anything."""

import numpy as np

from paceline.core.config import Config
from paceline.core.setting_types import Interval
from paceline.explain.time_split import TimeSplit, split_time
from paceline.records.phases import PHASES, PhaseRecord, RankFacts
from paceline.records.profile import LinkPoint, Profile, ProfiledBucket, RankSteps

STEPS = 20
HEALTHY = {"data": 0.001, "copy": 0.0005, "forward": 0.03, "backward": 0.06, "communication": 0.004, "update": 0.002}
CONFIG = Config(global_batch=8, save_every=Interval(10, "step"))


def facts(ranks=2, **more):
    usual = {
        "first_step": 0, "hosts": ["a"] * ranks, "threads": [1] * ranks, "cores": [2] * ranks, "mode": "ddp",
        "device": "cpu", "parameters": 250, "gradient_bytes": 1000, "global_batch": 8,
    }  # fmt: skip
    return RankFacts(**(usual | more))


def interval(step, steps=10, ranks=2, **phases):
    values = {phase: [0.0] * ranks for phase in PHASES} | phases
    seconds = np.sum([values[phase] for phase in PHASES], axis=0) + 0.5
    return PhaseRecord(
        step=step, steps=steps, seconds=seconds.tolist(), phases=values, last=[steps] + [0] * (ranks - 1),
        cpu=[1.0] * ranks, cpu_wait=[0.0] * ranks,
    )  # fmt: skip


def a_run(ranks=2, *, about=None, **own) -> TimeSplit:
    """Return a run of steps with these phases, a number or one for every rank; stragglers follow from them."""
    step = {phase: np.broadcast_to(own.get(phase, HEALTHY.get(phase, 0.0)), ranks).astype(float) for phase in PHASES}
    alone = step["data"] + step["copy"] + step["forward"] + step["backward"]
    step["straggler"] = alone.max() - alone
    seconds = np.sum(list(step.values()), axis=0)
    cpu_wait = np.broadcast_to(own.get("cpu_wait", 0.0), ranks) * seconds * STEPS
    cpu = np.broadcast_to(own.get("cpu", 0.05), ranks) * STEPS
    often = own.get("last", 1.0) * STEPS  # steps in which the slowest rank is the last; in the others it is rank 0
    last = [often * (rank == alone.argmax()) + (STEPS - often) * (rank == 0) for rank in range(ranks)]
    records = [
        PhaseRecord(
            step=number * STEPS, steps=STEPS, seconds=(seconds * STEPS).tolist(),
            phases={phase: (values * STEPS).tolist() for phase, values in step.items()},
            last=last, cpu=cpu.tolist(), cpu_wait=cpu_wait.tolist(),
        )
        for number in (1, 2, 3)
    ]  # fmt: skip
    split = split_time([facts(ranks, **(about or {})), *records])
    assert split is not None
    return split


def profile_of(*, bandwidth: float) -> Profile:
    """Return a profile of the run above, in which half of the gradients are ready after a third of the backward."""
    rank = RankSteps(
        data=(0.001,) * 4, copy=(0.0005,) * 4, forward=(0.03,) * 4, backward=(0.3,) * 4, grad_sync=(0.0,) * 4,
        update=(0.002,) * 4, step=(0.3335,) * 4,
    )  # fmt: skip
    half = 22_350_000
    return Profile(
        world_size=2, ranks_per_node=(1, 1), mode="ddp", backend="gloo", device="cuda", model="m", precision="fp32",
        compress="none", parameters=4 * half, gradient_bytes=2 * half, global_batch=8, samples_per_rank=4, accumulate=1,
        threads=1, free=(rank, rank), real=(rank, rank),
        buckets=(
            ProfiledBucket(bytes=half, ready=0.2, ready_real=0.2, done_real=0.38),
            ProfiledBucket(bytes=half, ready=0.3, ready_real=0.3, done_real=0.56),
        ),
        link=(LinkPoint(bytes=half, in_flight=2, samples=(0.1,)),), latency=0.0, bandwidth=bandwidth,
    )  # fmt: skip
