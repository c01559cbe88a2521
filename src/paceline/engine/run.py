"""A job in its folder: trains, saves, tests, and says how it ended."""

import os

from paceline.core.errors import CheckpointError, DivergedError, RanksError
from paceline.core.metrics import Score
from paceline.core.units import duration, plural
from paceline.engine.checkpoint import BackgroundSaver, Checkpoints, load_checkpoint
from paceline.engine.clock import EVALUATE, START, Clock
from paceline.engine.evaluate import evaluate, scored_ids
from paceline.engine.evidence import leave_evidence
from paceline.engine.facts import facts_of_ranks
from paceline.engine.header import header
from paceline.engine.heartbeat import Heartbeat
from paceline.engine.job import Job
from paceline.engine.kill import die_if_planned
from paceline.engine.loop import Training
from paceline.engine.portable import share_state
from paceline.engine.recorder import Recorder
from paceline.engine.signals import StopRequest
from paceline.engine.state import Progress
from paceline.models.table import layer_table
from paceline.parallel.replicas import check_replicas, describe
from paceline.parallel.team import Team
from paceline.records.entries import EvalRecord, Note, RunResult, State
from paceline.records.folder import RunFolder
from paceline.trackers.base import RunInfo, Tracker
from paceline.trackers.choose import choose_trackers


class Run:
    """A job in its folder."""

    def __init__(self, job: Job, progress: Progress, team: Team, folder: RunFolder, *, clock: Clock) -> None:
        self.job = job
        self.progress = progress
        self.team = team
        self.folder = folder
        self.clock = clock
        self.recorder = Recorder(job.plan, progress, team, clock=clock)
        self.checkpoints = Checkpoints(folder.checkpoints, keep=job.config.keep)
        self.heartbeat = Heartbeat(folder, team.world, progress, clock)
        self.background = BackgroundSaver(self.checkpoints) if job.config.save_async else None

    def live(self, stop: StopRequest, notes: list[Note], *, show_table: bool) -> RunResult:
        """Train, test and return how it went. Collective."""
        with self.heartbeat.beating(), self.recorder.to(self.trackers(), self.info()):
            self.introduce(notes, show_table=show_table)
            self.recorder.put(facts_of_ranks(self.job, self.team, first_step=self.progress.step))
            state = self.train(stop)
            test = self.test() if state is State.FINISHED else None
            self.recorder.end()
            self.recorder.result = self.result(state, test, stop)
            self.heartbeat.note(state)
            self.say_how_it_ended(self.recorder.result)
            return self.recorder.result

    def introduce(self, notes: list[Note], *, show_table: bool) -> None:
        """Say what is about to happen."""
        for line in header(self.job, self.team, self.folder):
            self.recorder.say(line)
        for note in notes:
            self.recorder.put(note)
        if show_table:
            self.recorder.say(layer_table(self.job.model))
        if self.progress.step:
            self.recorder.say(f"resumed after step {self.progress.step} of {self.job.plan.total_steps}")

    def train(self, stop: StopRequest) -> State:
        """Run the loop; whatever happens, a checkpoint that is being written gets finished."""
        training = Training(self.job, self.progress, self.team, self.recorder, clock=self.clock)
        self.heartbeat.note(State.TRAINING)
        self.clock.lap(START)
        try:
            return training.run(stop, save=self.save, check=self.check_replicas)
        except DivergedError as problem:
            raise self.located(problem) from problem
        finally:
            if self.background is not None:
                self.background.close()

    def save(self, *, is_best: bool = False) -> None:
        """Save a checkpoint, here or in the background. Collective: every rank must call it."""
        die_if_planned(os.environ, self.team.world, self.progress.step)
        self.job.settle(self.team)
        self.check_replicas(averaged=True)
        state = self.job.capture(self.progress)
        if self.team.is_lead:
            saver = self.checkpoints if self.background is None else self.background
            saver.save(state, step=self.progress.step, world_size=self.team.world.size, is_best=is_best)
        self.heartbeat.note(State.TRAINING)

    def check_replicas(self, *, averaged: bool = False) -> None:
        """Make sure that all ranks hold the same bits; shards differ by design. Collective: every rank must call it.

        Buffers that each rank updates from its own images are compared only when they have just been averaged.
        """
        if self.job.choice.mode == "fsdp":
            return
        tensors = self.job.replicated(averaged=averaged)
        mismatches = check_replicas(tensors.items(), self.team)
        if mismatches:
            leave_evidence(mismatches, tensors, self.folder, self.team.world, self.progress.step)
            first, other = (self.folder.rank_tensors(group[0]) for group in mismatches[0].groups[:2])
            raise RanksError(
                describe(mismatches, self.progress.step),
                hint=f"paceline compare {first} {other} shows by how much; --check-replicas 1 finds the first step",
            )

    def load_best(self) -> int:
        """Load what is evaluated of the best checkpoint, and return its step. Collective.

        Only the lead needs to see its file.
        """
        state = load_checkpoint(self.checkpoints.named("best"), mapped=True) if self.team.is_lead else {}
        return self.job.restore_evaluated(share_state(state, self.team), self.team).step

    def test(self) -> tuple[Score, int]:
        """Score the best checkpoint on the test images, and return its step too. Collective."""
        step = self.load_best()
        start = self.clock.seconds
        split = self.job.splits.test
        score = evaluate(self.job, self.team, split, scored_ids(self.job.plan, split))
        self.clock.lap(EVALUATE)
        record = EvalRecord(
            step=step,
            epoch=self.job.plan.epoch_of(step),
            split="test",
            score=score,
            is_best=False,
            seconds=self.clock.seconds - start,
            split_images=len(split),
        )
        self.recorder.put(record)
        return score, step

    def trackers(self) -> list[Tracker]:
        """Return the trackers of this rank: only the lead has any."""
        return choose_trackers(self.job.config.track, say=self.recorder.say) if self.team.is_lead else []

    def info(self) -> RunInfo:
        """Return what the trackers need to know."""
        return RunInfo(
            folder=self.folder,
            config=self.job.config.resolved(),
            total_steps=self.job.plan.total_steps,
            steps_per_epoch=self.job.plan.steps_per_epoch,
            first_step=self.progress.step,
        )

    def result(self, state: State, test: tuple[Score, int] | None, stop: StopRequest) -> RunResult:
        """Return the end of the run in numbers. Collective: every rank must call it."""
        unreadable = self.job.unreadable(self.team)
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

    def say_how_it_ended(self, result: RunResult) -> None:
        """Tell the user what there is now, and what to type next."""
        if result.num_unreadable:
            self.recorder.warn(f"{plural(result.num_unreadable, 'image')} of this data set could not be decoded")
        if result.state is State.STOPPED:
            self.recorder.say(
                f"stopped after step {self.progress.step} of {self.job.plan.total_steps}, saved; "
                f"to go on: paceline train --resume {self.folder.path}"
            )
            return
        why = f"no better for {self.job.config.patience} evaluations, " if self.progress.stopped_early else ""
        step = self.progress.best_step
        best = f"best was step {step} in epoch {self.job.plan.epoch_of(step)}"
        self.recorder.say(f"finished in {duration(self.clock.seconds)}: {why}{best}; {self.folder.path}")

    def located(self, problem: DivergedError) -> DivergedError:
        """Add the step to a divergence, and say what is left."""
        try:
            kept = f"the last good state is {self.checkpoints.named('last')}"
        except CheckpointError:
            kept = "nothing had been saved yet"
        return DivergedError(f"{problem.message} at step {self.progress.step + 1}; {kept}", hint=problem.hint)
