"""A job in its run folder: trains, tests, and reports the result."""

from paceline.core.errors import DivergedError
from paceline.core.metrics import Scores
from paceline.core.stopping import StopRequest
from paceline.core.units import duration, plural
from paceline.engine.capture import describe_state
from paceline.engine.checkpoint import NO_OTHERS
from paceline.engine.clock import EVALUATE, START
from paceline.engine.evaluate import evaluate, scored_ids
from paceline.engine.header import header, settings_table
from paceline.engine.job import Job, reads_shards
from paceline.engine.loop import Training
from paceline.engine.out_of_memory import memory_explained
from paceline.engine.recorded_run import RecordedRun
from paceline.models.summary import layer_table
from paceline.records.entries import EvalRecord, Note, RunResult, State


class JobRun(RecordedRun[Job]):
    """A job in its folder, with Paceline's own loop."""

    def execute(self, stop: StopRequest, notes: list[Note], *, show_table: bool) -> RunResult:
        """Train, test and return the result. Collective."""
        with self.uploading(), self.heartbeat.beating(stop), self.recorder.attached(self.trackers(), self.info()):
            self.introduce(notes, show_table=show_table)
            self.recorder.put(self.rank_facts())
            state = self.train(stop)
            test = self.test() if state is State.FINISHED else None
            self.recorder.end()
            self.recorder.result = self.result(state, test, stop)
            self.heartbeat.note(state)
            self.report_end(self.recorder.result)
            return self.recorder.result

    def introduce(self, notes: list[Note], *, show_table: bool) -> None:
        """Print the header, warnings and the layer table."""
        for line in header(self.job, self.team, self.folder):
            self.recorder.say(line)
        if self.job.config.console == "verbose":
            self.recorder.say(settings_table(self.job.config))
        if self.uploader is not None:
            self.recorder.say(f"upload   {self.uploader.address}")
        for note in notes:
            self.recorder.put(note)
        if show_table:
            self.recorder.say(layer_table(self.job.model))
        if self.progress.step:
            self.recorder.say(f"resumed after step {self.progress.step} of {self.job.plan.total_steps}")

    def train(self, stop: StopRequest) -> State:
        """Run the loop; in any case finish a checkpoint that is being written."""
        training = Training(self.job, self.progress, self.team, self.recorder, clock=self.clock)
        self.heartbeat.note(State.TRAINING)
        self.clock.end_phase(START)
        try:
            with memory_explained(self.job):
                return training.run(stop, save=self.save, check=self.check_replicas)
        except DivergedError as problem:
            raise self.located(problem) from problem
        finally:
            if self.background is not None:
                self.background.close()

    def load_best(self) -> int:
        """Load the model of the best checkpoint, and return its step. Collective."""
        checkpoints, team = self.checkpoints, self.team
        if reads_shards(self.job, checkpoints, team):
            state = checkpoints.load(team.from_lead(checkpoints.named("best")), team)
            return self.job.restore_evaluated(state, NO_OTHERS).step
        state = checkpoints.load(checkpoints.named("best"), NO_OTHERS) if team.is_lead else {}
        return self.job.restore_evaluated(describe_state(state, team), team).step

    def test(self) -> tuple[Scores, int]:
        """Score the best checkpoint on the test samples, and return the score and its step. Collective."""
        step = self.load_best()
        start = self.clock.seconds
        split = self.job.splits.test
        score = evaluate(self.job, self.team, split, scored_ids(self.job, split))
        self.clock.end_phase(EVALUATE)
        record = EvalRecord(
            step=step,
            epoch=self.job.plan.epoch_of(step),
            split="test",
            score=score,
            is_best=False,
            seconds=self.clock.seconds - start,
            split_samples=len(split),
        )
        self.recorder.put(record)
        return score, step

    def report_end(self, result: RunResult) -> None:
        """Print the outcome, and what to type next."""
        if result.num_unreadable:
            self.recorder.warn(f"{plural(result.num_unreadable, 'image')} of this data set could not be decoded")
        if result.state is State.STOPPED:
            self.recorder.say(
                f"stopped after step {self.progress.step} of {self.job.plan.total_steps}, saved; "
                f"to resume: paceline train --resume {self.folder.path}"
            )
            return
        why = f"no improvement in {self.job.config.patience} evaluations, " if self.progress.stopped_early else ""
        step = self.progress.best_step
        best = f"best was step {step} in epoch {self.job.plan.epoch_of(step)}"
        self.recorder.say(f"finished in {duration(self.clock.seconds)}: {why}{best}; {self.folder.path}")
