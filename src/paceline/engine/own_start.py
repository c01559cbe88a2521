"""Starts a run with a loop of the user: joins the ranks, reads the checkpoint, opens the run folder."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from paceline.core.config import Config
from paceline.core.errors import RunError, TaskError
from paceline.core.keys import mix
from paceline.core.plugin import is_plugin, load_plugin
from paceline.core.start import Start
from paceline.core.stopping import StopRequest, stop_on_signals
from paceline.core.world import World
from paceline.data.seeding import seed_generators
from paceline.engine.capture import describe_state
from paceline.engine.checkpoint import NO_OTHERS, Checkpoints
from paceline.engine.clock import START, clock_for
from paceline.engine.header import settings_warnings
from paceline.engine.model_setup import INITIAL_WEIGHTS
from paceline.engine.own_job import OwnJob, OwnMeter, own_header
from paceline.engine.own_run import Run
from paceline.engine.own_steps import OwnSteps
from paceline.engine.progress import Progress
from paceline.engine.rank import ALONE, Startup, open_run_folder, quiet_unless_lead
from paceline.engine.recorded_run import RecordedRun
from paceline.engine.resume_checks import changes_since, refuse_finished
from paceline.engine.user_code import agreed_code
from paceline.parallel.exact.determinism import deterministic_only, fingerprint, refuse_other_bits
from paceline.parallel.join import joined
from paceline.parallel.lost_ranks import lost_rank_named
from paceline.parallel.stacks import stack_on_request
from paceline.parallel.team import Team
from paceline.records.attempt import unlocked_note
from paceline.records.code import code_changes
from paceline.records.entries import Note, RunResult, State
from paceline.records.folder import RunFolder
from paceline.records.reader import run_state


def run_loop(config: Config, world: World, *, start: Start = ALONE, resume: RunFolder | None = None) -> RunResult:
    """Train with the loop of the settings as one of the ranks, and return the result. Collective."""
    assert config.loop is not None
    if not is_plugin(config.loop) or ":" not in config.loop:
        raise RunError(
            f"{config.loop} is a script that calls start_run: paceline train cannot start it",
            hint="run the script again, with start_run(resume=...), or name a function: --loop gan.py:train",
        )
    with started(config, world, start=start, resume=resume) as run:
        load_loop(config.loop)(run)
    assert run.result is not None
    return run.result


def load_loop(name: str) -> Callable[[Run], Any]:
    """Return the user's loop, and refuse what cannot be called with a Run."""
    loop = load_plugin(name, TaskError)
    if inspect.isgeneratorfunction(loop) or inspect.iscoroutinefunction(loop):
        kind, word = ("a generator", "yield") if inspect.isgeneratorfunction(loop) else ("a coroutine", "async")
        raise TaskError(f"{name} is {kind}: a call of it runs nothing", hint=f"remove {word} from the function")
    try:
        inspect.signature(loop).bind(None)
    except TypeError as cause:
        raise TaskError(
            f"{name} cannot be called with a Run: {cause}", hint=f"write def {name.rpartition(':')[2]}(run): ..."
        ) from cause
    return loop


@contextmanager
def started(config: Config, world: World, *, start: Start = ALONE, resume: RunFolder | None = None) -> Iterator[Run]:
    """Start a run for a loop, and end it with the block. Collective: every rank must call it."""
    threads = 1 if config.threads is None and config.exact == "bitwise" else config.threads
    with (
        stop_on_signals() as stop,
        joined(
            world,
            device=config.device,
            threads=threads,
            timeout=start.timeout,
            backend=start.backend,
            asked=lambda: stop.signal,
        ) as team,
        started_on(Startup(config, team, start), stop, resume) as run,
    ):
        yield run


@contextmanager
def started_on(startup: Startup, stop: StopRequest, resume: RunFolder | None) -> Iterator[Run]:
    """Start a run on ranks that have joined, and end it with the block. Collective: every rank must call it."""
    with deterministic_only() if startup.config.exact == "bitwise" else nullcontext():
        opening = _Opening(startup, stop)
        with opening.startup.interruptible(stop):
            opening.startup.agree()
            run = opening.prepared(resume)
        with run.opened():
            yield run


class _Opening:
    """Opens the run folder when the first batch is asked for: by then the number of samples is known."""

    def __init__(self, startup: Startup, stop: StopRequest) -> None:
        self.startup, self._stop = startup, stop
        self._team: Team = startup.team
        self._clock = clock_for(startup.team, began=startup.team.world.began)
        self._launches: set[str] = set()
        self._resume: RunFolder | None = None
        self._saved: dict[str, Any] | None = None

    def prepared(self, resume: RunFolder | None) -> Run:
        """Read the checkpoint to resume from, and return the run. Collective: every rank must call it."""
        config, team = self.startup.config, self._team
        self._launches = self.startup.launches()
        self._resume = self.startup.run_to_resume(resume, self._launches)
        if config.loop is not None and ":" in config.loop:
            load_loop(config.loop)  # before its code is hashed
        code = agreed_code(config, team)
        if self._resume is not None and team.from_lead(self._resume.is_run):  # --resume auto reserves a folder
            self._saved = self._read(self._resume, code)
        seed_generators(mix(config.seed, INITIAL_WEIGHTS), team.device)
        return Run(
            config, team, self._stop, clock=self._clock, saved=self._saved, code=code, open_steps=self.open_steps
        )

    def _read(self, folder: RunFolder, code: dict[str, str]) -> dict[str, Any] | None:
        """Return the newest intact checkpoint; elsewhere than on the lead without contents. Collective."""
        config, team, notes = self.startup.config, self._team, self.startup.notes
        checkpoints = Checkpoints(folder.checkpoints, keep=config.keep)
        if team.is_lead:
            checkpoints.recover()
        if not team.from_lead(folder.saved_steps()):
            notes.append(Note(text=f"{folder.path} was stopped before it saved a checkpoint: starting over"))
            return None
        state: dict[str, Any] = {}
        if team.is_lead:
            damaged: list[str] = []
            state, path = checkpoints.newest_good(NO_OTHERS, damaged.append)
            if damaged:
                damaged.append(f"continuing from {path}")
            notes += [Note(text=text, level="warning") for text in damaged]
        state = describe_state(state, team)
        if "parts" not in state:
            raise RunError(f"{folder.path} was not trained with a loop of your own", hint="drop --loop to resume it")
        if config.exact == "bitwise" and state.get("fingerprint") is not None:
            refuse_other_bits(state["fingerprint"], fingerprint(config, team.device))
        notes += [Note(text=text, level="warning") for text in code_changes(folder, state.get("code", {}), code)]
        return state

    def open_steps(self, job: OwnJob, progress: Progress, stack: ExitStack, meter: OwnMeter) -> OwnSteps:
        """Open the run folder, its heartbeat and its trackers. Collective: every rank must call it."""
        team, world = self._team, self._team.world
        if self._resume is not None and team.from_lead(run_state(self._resume)) == State.FINISHED:
            refuse_finished(self._resume, progress, job)
        folder = team.from_lead(
            open_run_folder(job, self._resume, world, self._launches) if team.is_lead else RunFolder(Path())
        )
        stack.enter_context(stack_on_request(folder.rank_stack(world.rank)))
        stack.enter_context(lost_rank_named(folder, world, self.startup.start.timeout))
        stack.enter_context(quiet_unless_lead(folder, world))
        run = RecordedRun(job, progress, team, folder, clock=self._clock)
        run.recorder.own_sums = meter
        stack.enter_context(run.uploading())
        stack.enter_context(run.heartbeat.beating(self._stop))
        stack.enter_context(run.recorder.attached(run.trackers(), run.info()))
        for line in own_header(job, team, folder):
            run.recorder.say(line)
        notes = [*self.startup.notes, *(unlocked_note(folder) if team.is_lead else ())]
        notes += [] if self._saved is None else changes_since(self._saved["config"], job)
        for note in [*notes, *(Note(text=text, level="warning") for text in settings_warnings(job))]:
            run.recorder.put(note)
        if progress.step:
            run.recorder.say(f"resumed after step {progress.step} of {job.plan.total_steps}")
        run.recorder.put(run.rank_facts())
        run.heartbeat.note(State.TRAINING)
        self._clock.end_phase(START)
        return OwnSteps(job, progress, run, meter)
