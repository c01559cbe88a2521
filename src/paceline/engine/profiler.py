"""Measures a profile: alternating steps with and without communication, the gradient buckets, and the link."""

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity

from paceline.core.config import Config
from paceline.core.errors import ConfigError
from paceline.engine.clock import RECORD, clock_for
from paceline.engine.job import Job, build_job
from paceline.engine.loop import MicroBatch, Training
from paceline.engine.progress import Progress
from paceline.engine.recorder import Recorder
from paceline.parallel.ddp_hooks import BucketTimer, BucketTiming
from paceline.parallel.join import backend_for
from paceline.parallel.link_sweep import link_bandwidth, link_latency, sweep_link
from paceline.parallel.team import Team
from paceline.records.phases import CLOCK_PHASES, CLOCK_STEP_PHASES
from paceline.records.profile import Profile, ProfiledBucket, RankSteps

NUM_WARM_UP = 4
"""Warm-up steps: DDP rebuilds its buckets after the first step."""
NUM_PAIRS = 12
NUM_TRACED = 3


@contextmanager
def profiled_job(config: Config, team: Team, *, nproc: int | None) -> Iterator[tuple[Job, BucketTimer]]:
    """Build a job with timed buckets, used for the profile only. Collective: every rank must call it."""
    for setting, value, right in (("mode", config.mode, "ddp"), ("exact", config.exact, "order")):
        if value in {"dp", "fsdp", "bitwise"}:
            raise ConfigError(
                f"a profile times ddp's gradient buckets, and --{setting} {value} has none",
                hint=f"use --{setting} {right}",
            )
    timer = BucketTimer(team.device)
    with a_group(team):
        yield build_job(config, team, nproc=nproc, timer=timer), timer


def measure_profile(
    job: Job, team: Team, timer: BucketTimer, *, num_pairs: int = NUM_PAIRS, trace: Path | None = None
) -> Profile:
    """Measure a job that is used for the profile only. Collective: every rank must call it."""
    steps = ProfiledSteps(job, team, timer)
    steps.take(NUM_WARM_UP, pairs=False)
    steps.take(num_pairs, pairs=True)
    link = sweep_link(team)
    if trace is not None:
        steps.trace(trace)
    return _profile(job, team, steps, link)


@contextmanager
def a_group(team: Team) -> Iterator[None]:
    """Create a process group for a lone rank, which DDP requires."""
    if team.world.size > 1 or dist.is_initialized():
        yield
        return
    backend = backend_for(team.device)  # gloo would move the gradients of a GPU through the host
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


class ProfiledSteps:
    """Training steps, each started by all ranks together, with their times."""

    def __init__(self, job: Job, team: Team, timer: BucketTimer) -> None:
        self.free: list[list[float]] = []
        self.real: list[list[float]] = []
        self.free_timings: list[list[BucketTiming]] = []
        self.real_timings: list[list[BucketTiming]] = []
        self._team = team
        self._timer = timer
        self._clock = clock_for(team, began=None)
        self._clock.before_backward = timer.begin
        self._progress = Progress()
        self._recorder = Recorder(job.plan, self._progress, team, scoring=job.scoring, clock=self._clock)
        self._training = Training(job, self._progress, team, self._recorder, clock=self._clock)
        self._batches = self._endless()
        job.model.train()

    def take(self, number: int, *, pairs: bool) -> None:
        """Run warm-up steps, or measured pairs of a step without communication and a real one. Collective."""
        for _ in range(number):
            if pairs:
                self._step(self.free, self.free_timings, is_free=True)
                self._step(self.real, self.real_timings, is_free=False)
            else:
                self._step([], [], is_free=False)

    def trace(self, path: Path) -> None:
        """Record a few real steps with torch.profiler. Collective: every rank must call it."""
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (self._team.device.type == "cuda")
        path.parent.mkdir(parents=True, exist_ok=True)
        with torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
            self.take(NUM_TRACED, pairs=False)
        profiler.export_chrome_trace(str(path))

    def _step(self, steps: list[list[float]], timings: list[list[BucketTiming]], *, is_free: bool) -> None:
        self._timer.skips_communication = is_free
        self._team.barrier()
        before = self._read()
        self._training.train_step(*next(self._batches))
        steps.append([now - then for now, then in zip(self._clock.totals(), before, strict=True)])
        timings.append(self._timer.timings())
        self._recorder.meter.take()

    def _read(self) -> list[float]:
        self._clock.totals()  # waits for a device
        self._clock.end_phase(RECORD)
        return self._clock.totals()

    def _endless(self) -> Iterator[tuple[int, list[MicroBatch]]]:
        """Yield full batches forever, without the smaller last batch of an epoch."""
        plan = self._training.job.plan
        whole = max(1, plan.num_samples // plan.global_batch)
        while True:
            for step, micro_batches in self._training.batches_of_epoch():
                if step % plan.steps_per_epoch < whole:
                    yield step, micro_batches
                self._progress.step = (step + 1) % plan.total_steps


def _profile(job: Job, team: Team, steps: ProfiledSteps, link: tuple) -> Profile:
    """Combine the measurements of all ranks. Collective: every rank must call it."""
    hosts = team.gather(team.world.host)
    by_rank = team.gather((steps.free, steps.real, steps.free_timings, steps.real_timings))
    free, real, free_timings, real_timings = (list(values) for values in zip(*by_rank, strict=True))
    size = team.world.size
    return Profile(
        world_size=size,
        ranks_per_node=tuple(hosts.count(host) for host in dict.fromkeys(hosts)),
        mode=job.choice.mode,
        backend="none" if size == 1 else str(dist.get_backend()),
        device=job.device.type,
        model=job.config.model,
        precision=job.config.precision,
        compress=job.config.compress,
        parameters=job.num_parameters,
        gradient_bytes=job.gradient_bytes,
        global_batch=job.plan.global_batch,
        samples_per_rank=-(-job.plan.global_batch // size),
        accumulate=job.plan.accumulate,
        threads=torch.get_num_threads(),
        free=tuple(_rank_steps(rank) for rank in free),
        real=tuple(_rank_steps(rank) for rank in real),
        buckets=_buckets(free_timings, real_timings),
        link=link,
        latency=link_latency(link, size),
        bandwidth=link_bandwidth(link, size),
    )


def _rank_steps(steps: Sequence[Sequence[float]]) -> RankSteps:
    indices = {name: CLOCK_PHASES.index(name) for name in CLOCK_STEP_PHASES}
    phases = {name: tuple(round(step[index], 7) for step in steps) for name, index in indices.items()}
    return RankSteps(**phases, step=tuple(round(sum(step[i] for i in indices.values()), 7) for step in steps))


def _buckets(
    free: Sequence[Sequence[list[BucketTiming]]], real: Sequence[Sequence[list[BucketTiming]]]
) -> tuple[ProfiledBucket, ...]:
    """Return medians over ranks and steps; every step has the same buckets in the same order."""
    without = [step for rank in free for step in rank]
    with_all = [step for rank in real for step in rank]
    return tuple(
        ProfiledBucket(
            bytes=first.bytes,
            ready=statistics.median(step[place].ready for step in without),
            ready_real=statistics.median(step[place].ready for step in with_all),
            done_real=statistics.median(step[place].done for step in with_all),
        )
        for place, first in enumerate(with_all[0])
    )
