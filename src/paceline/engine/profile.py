"""Measures a profile: steps with and without communication in turn, the buckets of gradients, and the link."""

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity

from paceline.core.config import Config
from paceline.core.errors import ConfigError
from paceline.engine.clock import BACKWARD, COPY, DATA, EXCHANGE, FORWARD, RECORD, UPDATE, clock_for
from paceline.engine.job import Job, build_job
from paceline.engine.loop import Part, Training
from paceline.engine.recorder import Recorder
from paceline.engine.state import Progress
from paceline.parallel.buckets import BucketWatch, Trip
from paceline.parallel.sweep import link_bandwidth, link_latency, sweep_link
from paceline.parallel.team import Team
from paceline.records.profile import Bucket, Profile, RankSteps

NUM_WARM_UP = 4
"""Steps before the first that counts: DDP orders its buckets anew after the first one."""
NUM_PAIRS = 12
NUM_TRACED = 3
PARTS = {"data": DATA, "copy": COPY, "forward": FORWARD, "backward": BACKWARD, "exchange": EXCHANGE, "update": UPDATE}


@contextmanager
def watched_job(config: Config, team: Team, *, nproc: int | None) -> Iterator[tuple[Job, BucketWatch]]:
    """Build a job whose buckets are watched, to be thrown away after its profile. Collective: every rank must."""
    for setting, value, right in (("mode", config.mode, "ddp"), ("exact", config.exact, "order")):
        if value in {"dp", "fsdp", "bitwise"}:
            raise ConfigError(
                f"a profile shows the buckets of gradients that ddp sends, and --{setting} {value} has none",
                hint=f"use --{setting} {right}",
            )
    watch = BucketWatch(team.device)
    with a_group(team):
        yield build_job(config, team, nproc=nproc, watch=watch), watch


def measure_profile(
    job: Job, team: Team, watch: BucketWatch, *, num_pairs: int = NUM_PAIRS, trace: Path | None = None
) -> Profile:
    """Measure a job that is not used for anything else. Collective: every rank must call it."""
    steps = ProfiledSteps(job, team, watch)
    steps.take(NUM_WARM_UP, pairs=False)
    steps.take(num_pairs, pairs=True)
    link = sweep_link(team)
    if trace is not None:
        steps.trace(trace)
    return _profile(job, team, steps, link)


@contextmanager
def a_group(team: Team) -> Iterator[None]:
    """Give a lone rank a process group of its own, which DDP asks for."""
    if team.world.size > 1 or dist.is_initialized():
        yield
        return
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


class ProfiledSteps:
    """Steps as training does them, each begun by all ranks together, and what they took."""

    def __init__(self, job: Job, team: Team, watch: BucketWatch) -> None:
        self.free: list[list[float]] = []
        self.real: list[list[float]] = []
        self.free_trips: list[list[Trip]] = []
        self.real_trips: list[list[Trip]] = []
        self._team = team
        self._watch = watch
        self._clock = clock_for(team, began=None)
        self._clock.before_backward = watch.begin
        self._progress = Progress()
        self._recorder = Recorder(job.plan, self._progress, team, clock=self._clock)
        self._training = Training(job, self._progress, team, self._recorder, clock=self._clock)
        self._batches = self._endless()
        job.model.train()

    def take(self, number: int, *, pairs: bool) -> None:
        """Take real steps, or pairs of a free and a real one that count. Collective: every rank must call it."""
        for _ in range(number):
            if pairs:
                self._step(self.free, self.free_trips, is_free=True)
                self._step(self.real, self.real_trips, is_free=False)
            else:
                self._step([], [], is_free=False)

    def trace(self, path: Path) -> None:
        """Write down what torch.profiler sees in a few real steps. Collective: every rank must call it."""
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (self._team.device.type == "cuda")
        path.parent.mkdir(parents=True, exist_ok=True)
        with torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
            self.take(NUM_TRACED, pairs=False)
        profiler.export_chrome_trace(str(path))

    def _step(self, steps: list[list[float]], trips: list[list[Trip]], *, is_free: bool) -> None:
        self._watch.is_free = is_free
        self._team.meet()
        before = self._read()
        self._training.train_step(*next(self._batches))
        steps.append([now - then for now, then in zip(self._clock.totals(), before, strict=True)])
        trips.append(self._watch.trips())
        self._recorder.meter.take()

    def _read(self) -> list[float]:
        self._clock.totals()  # waits for a device
        self._clock.lap(RECORD)
        return self._clock.totals()

    def _endless(self) -> Iterator[tuple[int, list[Part]]]:
        """Yield steps of whole batches for ever: the last one of an epoch may be smaller, and a run may be short."""
        plan = self._training.job.plan
        whole = max(1, plan.images // plan.global_batch)
        while True:
            for step, parts in self._training.batches_of_epoch():
                if step % plan.steps_per_epoch < whole:
                    yield step, parts
                self._progress.step = (step + 1) % plan.total_steps


def _profile(job: Job, team: Team, steps: ProfiledSteps, link: tuple) -> Profile:
    """Put together what all ranks measured. Collective: every rank must call it."""
    hosts = team.gather(team.world.host)
    by_rank = team.gather((steps.free, steps.real, steps.free_trips, steps.real_trips))
    free, real, free_trips, real_trips = (list(values) for values in zip(*by_rank, strict=True))
    trained = [parameter for parameter in job.model.parameters() if parameter.requires_grad]
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
        parameters=sum(parameter.numel() for parameter in trained),
        gradient_bytes=sum(parameter.numel() * parameter.element_size() for parameter in trained),
        global_batch=job.plan.global_batch,
        images_per_rank=-(-job.plan.global_batch // size),
        accumulate=job.plan.accumulate,
        threads=torch.get_num_threads(),
        free=tuple(_rank_steps(rank) for rank in free),
        real=tuple(_rank_steps(rank) for rank in real),
        buckets=_buckets(free_trips, real_trips),
        link=link,
        latency=link_latency(link, size),
        bandwidth=link_bandwidth(link, size),
    )


def _rank_steps(steps: Sequence[Sequence[float]]) -> RankSteps:
    parts = {name: tuple(round(step[lap], 7) for step in steps) for name, lap in PARTS.items()}
    return RankSteps(**parts, step=tuple(round(sum(step[lap] for lap in PARTS.values()), 7) for step in steps))


def _buckets(free: Sequence[Sequence[list[Trip]]], real: Sequence[Sequence[list[Trip]]]) -> tuple[Bucket, ...]:
    """Return medians over ranks and steps; every step has the same buckets in the same order."""
    without = [step for rank in free for step in rank]
    with_all = [step for rank in real for step in rank]
    return tuple(
        Bucket(
            bytes=first.bytes,
            ready=statistics.median(step[place].ready for step in without),
            ready_real=statistics.median(step[place].ready for step in with_all),
            done_real=statistics.median(step[place].done for step in with_all),
        )
        for place, first in enumerate(with_all[0])
    )
