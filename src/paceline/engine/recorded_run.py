"""A job in its run folder: its records, checkpoints and heartbeat, whoever wrote its loop."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Generic, TypeVar

import torch

from paceline.core.config import Config
from paceline.core.errors import CheckpointError, DivergedError, RanksError
from paceline.core.messages import say, say_if_slow
from paceline.core.metrics import Scores
from paceline.core.stopping import KILL_VARIABLE, StopRequest
from paceline.core.world import World
from paceline.engine.background_saver import BackgroundSaver
from paceline.engine.checkpoint import Checkpoints
from paceline.engine.checkpoint_folder import Captured
from paceline.engine.clock import Clock
from paceline.engine.heartbeat import Heartbeat
from paceline.engine.progress import Progress
from paceline.engine.recorded_job import RecordedJob
from paceline.engine.recorder import MOST_NAMES, Recorder
from paceline.engine.uploader import Uploader
from paceline.parallel.device import cores
from paceline.parallel.replicas import check_replicas, describe_mismatches, repair_replicas, save_mismatches
from paceline.parallel.team import Team
from paceline.records.attempt import fenced
from paceline.records.entries import RunResult, State
from paceline.records.folder import RunFolder
from paceline.records.mirror import choose_mirror
from paceline.records.phases import RankFacts
from paceline.records.reader import read_environments
from paceline.records.writer import write_json
from paceline.trackers.base import RunInfo, Tracker
from paceline.trackers.choose import choose_trackers

J = TypeVar("J", bound=RecordedJob)


class RecordedRun(Generic[J]):
    """A job with its folder, records and checkpoints."""

    def __init__(self, job: J, progress: Progress, team: Team, folder: RunFolder, *, clock: Clock) -> None:
        self.job = job
        self.progress = progress
        self.team = team
        self.folder = folder
        self.clock = clock
        self.recorder = Recorder(job.plan, progress, team, scoring=job.scoring, clock=clock)
        self.uploader = uploader_of(folder, job.config) if team.is_lead else None
        self.checkpoints = Checkpoints(
            folder.checkpoints, keep=job.config.keep, fence=partial(fenced, folder), committed=self.committed
        )
        self.heartbeat = Heartbeat(folder, team.world, progress, clock)
        self.background = self.background_saver() if job.config.save_async else None
        self.names_unused = True
        """Whether unused parameters are still to be named: at the first save, after some steps."""

    def save(self, *, is_best: bool = False) -> None:
        """Save a checkpoint, here or in the background. Collective: every rank must call it."""
        _die_if_planned(self.team.world, self.progress.step)
        self.job.average_buffers(self.team)
        self.check_replicas(averaged=True)
        self.name_unused()
        captured = Captured.of(self.job.capture(self.progress))
        step, best_step = self.progress.step, self.progress.best_step or None
        facts = {"step": step, "best_step": step if is_best else best_step}
        if self.background is None:
            self.checkpoints.save(captured, self.team, **facts)
        else:
            self.background.save(captured, **facts)
        self.report_uploads()
        self.heartbeat.note(State.TRAINING)

    def committed(self) -> None:
        """Start to copy a checkpoint that is safely on disk."""
        if self.uploader is not None:
            self.uploader.notify()

    @contextmanager
    def uploading(self) -> Iterator[None]:
        """Copy the run to an object store while the block runs, and finish that after it."""
        try:
            yield
        finally:
            if self.uploader is not None:
                with say_if_slow(f"copying the run to {self.uploader.address}"):
                    self.uploader.close()
                for text in self.uploader.news():
                    say(text, prefix="warning: ")

    def report_uploads(self) -> None:
        """Record the failures of uploads since the last call."""
        for text in () if self.uploader is None else self.uploader.news():
            self.recorder.warn(text)

    def background_saver(self) -> BackgroundSaver:
        """Return what saves in the background; ranks that write shards connect once more for it. Collective."""
        shares = self.job.choice.mode == "fsdp"
        return BackgroundSaver(self.checkpoints, self.team.for_thread() if shares else self.team)

    def name_unused(self) -> None:
        """Name the parameters that have had no gradient so far, once."""
        unused = self.job.unused_parameters() if self.names_unused else []
        self.names_unused = False
        if unused:
            others = f" and {len(unused) - MOST_NAMES} more" if len(unused) > MOST_NAMES else ""
            names = ", ".join(unused[:MOST_NAMES]) + others
            self.recorder.warn(f"parameters without a gradient until step {self.progress.step}, not updated: {names}")

    def check_replicas(self, *, averaged: bool = False) -> None:
        """Check that the replicas of all ranks are equal bit by bit; shards differ by design. Collective.

        Buffers that each rank updates from its own samples are compared only when they have just been averaged.
        """
        if self.job.choice.mode == "fsdp":
            return
        tensors = self.job.replicated(averaged=averaged)
        mismatches = check_replicas(tensors.items(), self.team)
        if not mismatches:
            return
        save_mismatches(mismatches, tensors, self.folder, self.team.world, self.progress.step)
        found = describe_mismatches(mismatches, self.progress.step)
        if self.job.config.repair_replicas and repair_replicas(mismatches, tensors, self.team):
            self.recorder.warn(f"{found}; repaired from the majority")
            return
        first, other = (self.folder.rank_tensors(group[0]) for group in mismatches[0].groups[:2])
        if self.job.config.repair_replicas:
            found += "; they cannot be repaired, as no majority of ranks agrees"
        raise RanksError(
            found,
            hint=f"to see the differences: paceline compare {first} {other}; "
            "to find the first such step: --check-replicas 1",
        )

    def trackers(self) -> list[Tracker]:
        """Return the trackers of this rank."""
        return choose_trackers(
            self.job.config.track,
            say=self.recorder.say,
            is_lead=self.team.is_lead,
            quiet=self.job.config.console == "quiet",
        )

    def rank_facts(self) -> RankFacts:
        """Return the facts about the ranks that paceline explain needs. Collective: every rank must call it."""
        own = (self.team.world.host, torch.get_num_threads(), len(cores()))
        hosts, threads, num_cores = (list(values) for values in zip(*self.team.gather(own), strict=True))
        return RankFacts(
            first_step=self.progress.step,
            hosts=hosts,
            threads=threads,
            cores=num_cores,
            mode=self.job.choice.mode,
            device=self.job.device.type,
            parameters=self.job.num_parameters,
            gradient_bytes=self.job.gradient_bytes,
            global_batch=self.job.plan.global_batch,
            num_devices=self.job.num_devices,
        )

    def info(self) -> RunInfo:
        """Return the facts about the run for the trackers."""
        return RunInfo(
            folder=self.folder,
            config=self.job.config.resolved(),
            total_steps=self.job.plan.total_steps,
            steps_per_epoch=self.job.plan.steps_per_epoch,
            first_step=self.progress.step,
        )

    def result(self, state: State, test: tuple[Scores, int] | None, stop: StopRequest) -> RunResult:
        """Return the result of the run. Collective: every rank must call it."""
        unreadable = self.job.unreadable(self.team)
        cpu_seconds = sum(self.team.gather(process_seconds()))
        if self.team.is_lead:
            note_end(self.folder, seconds=round(self.clock.seconds, 3), cpu_seconds=round(cpu_seconds, 3))
        return RunResult(
            folder=self.folder.path,
            state=state,
            step=self.progress.step,
            epochs=self.progress.step / self.job.plan.steps_per_epoch,
            best=self.progress.best,
            test=None if test is None else test[0],
            test_step=None if test is None else test[1],
            seconds=self.clock.seconds,
            signal=None if state is State.FINISHED else max(self.team.gather(int(stop.signal or 0))),
            num_unreadable=None if unreadable is None else len(unreadable),
        )

    def located(self, problem: DivergedError) -> DivergedError:
        """Add the step to a divergence error, and the last saved checkpoint."""
        try:
            kept = f"the last good state is {self.checkpoints.named('last')}"
        except CheckpointError:
            kept = "no checkpoint had been saved yet"
        return DivergedError(f"{problem.message} at step {self.progress.step + 1}; {kept}", hint=problem.hint)


def uploader_of(folder: RunFolder, config: Config) -> Uploader | None:
    """Return what copies a run to the object store of its settings; None without one."""
    return None if config.upload is None else Uploader(folder, choose_mirror(folder, config.upload))


def process_seconds() -> float:
    """Return the CPU time of this process and of its loader processes that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def note_end(folder: RunFolder, **facts: float) -> None:
    """Add the times of this start to its environment; a disk that is full leaves them out. Only the lead calls it."""
    *earlier, last = read_environments(folder) or [None]
    if last is not None:
        with suppress(OSError):
            write_json(folder.environment, [*earlier, last | facts], fence=partial(fenced, folder))


def _die_if_planned(world: World, step: int) -> None:
    """Kill this process with SIGKILL, as when memory runs out, at the step chosen by `paceline verify`."""
    if os.environ.get(KILL_VARIABLE) == f"{world.rank}:{step}":
        os.kill(os.getpid(), signal.SIGKILL)
