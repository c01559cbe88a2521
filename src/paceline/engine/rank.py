"""The life of a rank: join, build, restore, train, leave."""

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from paceline.core.config import Config, flag
from paceline.core.errors import RunError
from paceline.core.load import write_config
from paceline.core.start import Start
from paceline.core.stopping import interruptible
from paceline.core.world import World
from paceline.engine.checkpoint import Checkpoints
from paceline.engine.clock import clock_for
from paceline.engine.header import warnings
from paceline.engine.heartbeat import silence_explained
from paceline.engine.job import Job, build_job, own_code
from paceline.engine.portable import share_state
from paceline.engine.profile import NUM_PAIRS, measure_profile, watched_job
from paceline.engine.run import Run
from paceline.engine.signals import StopRequest, stop_on_signals
from paceline.engine.state import Progress
from paceline.models.table import layer_table
from paceline.parallel.amx import limit_isa
from paceline.parallel.device import choose_device, describe_device, hold_memory, set_threads
from paceline.parallel.exact.determinism import deterministic_only
from paceline.parallel.exact.fingerprint import fingerprint, refuse_other_bits
from paceline.parallel.network import choose_interface
from paceline.parallel.team import Team, join
from paceline.records.code import code_changes, keep_code
from paceline.records.entries import Note, RunResult, State
from paceline.records.environment import cpu_name, describe_environment
from paceline.records.folder import RunFolder, create_run, list_runs_below
from paceline.records.profile import Profile, write_profile
from paceline.records.reader import read_environments
from paceline.records.writer import write_json, write_rank

ALONE = Start()
POWERSGD_BEGINS_ANEW = (
    "--compress powersgd begins anew: what each rank had still to send is not in a checkpoint, so from here on the "
    "result differs from that of a run that never stopped"
)
MACHINE_SETTINGS = frozenset({"data_dir", "device", "threads", "runs_dir", "workers"})


def run_rank(
    config: Config, world: World, *, start: Start = ALONE, resume: RunFolder | None = None, show_table: bool = False
) -> RunResult:
    """Live through a run as one of its ranks, and return how it ended. Collective: every rank must call it."""
    hold_memory()
    device = choose_device(config.device, world)
    choose_interface(world, os.environ)
    with stop_on_signals() as stop, join(world, device, timeout=start.timeout, asked=lambda: stop.signal) as team:
        threads = 1 if config.threads is None and config.exact == "bitwise" else config.threads
        set_threads(threads, num_sharing=team.num_sharing)
        return Beginning(config, team, start).run(stop, resume, show_table=show_table)


def profile_rank(
    config: Config, world: World, *, start: Start = ALONE, num_pairs: int = NUM_PAIRS, trace: bool = False
) -> tuple[RunFolder, Profile]:
    """Measure a profile as one of the ranks, and return it with its folder. Collective: every rank must call it."""
    hold_memory()
    device = choose_device(config.device, world)
    choose_interface(world, os.environ)
    with join(world, device, timeout=start.timeout) as team:
        set_threads(config.threads, num_sharing=team.num_sharing)
        return Beginning(config, team, start).profile(num_pairs, trace=trace)


class Beginning:
    """From settings to a run that trains, once the ranks have met."""

    def __init__(self, config: Config, team: Team, start: Start) -> None:
        self.config = config
        self.team = team
        self.start = start
        self.notes: list[Note] = []

    def run(self, stop: StopRequest, resume: RunFolder | None, *, show_table: bool = False) -> RunResult:
        """Agree, build, restore, train. Collective: every rank must call it."""
        clock, team = clock_for(self.team, began=self.team.world.began), self.team
        with self.interruptible(stop):
            self.agree()
        profile = self.measured(stop) if self.config.profile else None
        with self.interruptible(stop):
            job = build_job(self.config, team, nproc=self.start.nproc)
            launches = self.launches()
            resume = self.whether_to_resume(resume, launches)
            progress = Progress() if resume is None else restore(job, team, resume, self.notes)
        # from here on there is a folder, and a signal ends the run after its first step, with a checkpoint
        folder = team.from_lead(open_folder(job, resume, team.world, launches) if team.is_lead else RunFolder(Path()))
        if profile is not None and team.is_lead:
            write_profile(folder, profile)
        with silence_explained(folder, team.world, self.start.timeout), quiet_unless_lead(folder, team.world):
            run = Run(job, progress, team, folder, clock=clock)
            cautions = [Note(text=text, level="warning") for text in warnings(job)]
            with deterministic_only() if self.config.exact == "bitwise" else nullcontext():
                return run.live(stop, [*self.notes, *cautions], show_table=show_table)

    @contextmanager
    def interruptible(self, stop: StopRequest) -> Iterator[None]:
        """Let a signal end the block at once, on this rank and where it waits for others: there is nothing to save."""
        with interruptible("building the data and the model"), self.team.starting(lambda: stop.signal):
            yield

    def agree(self) -> None:
        """Refuse ranks with different settings, and CPUs that cannot compute with them. Collective."""
        self.team.agree(shared_facts(self.config))
        if self.config.precision == "bf16":
            note = limit_isa(self.team, os.environ)
            self.notes += [] if note is None else [Note(text=note, level="warning")]
        if self.config.exact == "bitwise":
            self.team.agree(fingerprint(self.config, self.team.device))

    def measured(self, stop: StopRequest) -> Profile:
        """Measure a profile before the run begins. Collective: every rank must call it."""
        with ExitStack() as stack:
            with self.interruptible(stop):
                job, watch = stack.enter_context(watched_job(self.config, self.team, nproc=self.start.nproc))
            return measure_profile(job, self.team, watch)

    def profile(self, num_pairs: int, *, trace: bool) -> tuple[RunFolder, Profile]:
        """Agree, build, measure: a run that never trains. Collective: every rank must call it."""
        team, world = self.team, self.team.world
        self.agree()
        launches = self.launches()
        with watched_job(self.config, team, nproc=self.start.nproc) as (job, watch):
            folder = team.from_lead(open_folder(job, None, world, launches) if team.is_lead else RunFolder(Path()))
            with silence_explained(folder, world, self.start.timeout), quiet_unless_lead(folder, world):
                path = folder.trace(world.rank) if trace else None
                profile = measure_profile(job, team, watch, num_pairs=num_pairs, trace=path)
        if team.is_lead:
            write_profile(folder, profile)
            write_rank(folder.rank(0), world, State.FINISHED, step=0)
        return folder, profile

    def whether_to_resume(self, resume: RunFolder | None, launches: set[str]) -> RunFolder | None:
        """Return the run to go on with: the one asked for, or after a restart the one begun. Collective."""
        restarted = self.team.any(self.team.world.attempt > 0)  # nodes of an elastic job count their restarts apart
        if restarted and resume is None and self.team.is_lead:
            resume = interrupted_run(self.config, launches)
        return self.team.from_lead(resume)

    def launches(self) -> set[str]:
        """Return what names the launches of all nodes; after a restart another may have the lead. Collective."""
        return {name for name in self.team.gather(self.team.world.launch_id) if name is not None}


def shared_facts(config: Config) -> dict[str, Any]:
    """Return what must be the same on every rank: versions, and every setting that is not about one machine."""
    settings = {key: value for key, value in config.as_dict().items() if key not in MACHINE_SETTINGS}
    return {"paceline": version("paceline"), "torch": torch.__version__} | {
        flag(key): settings[key] for key in settings
    }


def interrupted_run(config: Config, launches: set[str]) -> RunFolder | None:
    """Return the run that an earlier attempt of these launches began and saved: a restart goes on with it."""
    for folder in list_runs_below(config.runs_dir / config.run_name):
        if any(launches.intersection(environment.get("launches", ())) for environment in read_environments(folder)):
            return folder if any(folder.checkpoints.glob("step-*.pt")) else None
    return None


def restore(job: Job, team: Team, folder: RunFolder, notes: list[Note]) -> Progress:
    """Continue a run from its newest good checkpoint, unless it has nothing left to do.

    Only the lead needs to see the file. Collective: every rank must call it.
    """
    state: dict[str, Any] = {}
    if team.is_lead:
        damaged: list[str] = []
        state, path = Checkpoints(folder.checkpoints, keep=job.config.keep).newest_good(damaged.append)
        if damaged:
            damaged.append(f"continuing from {path}")
        notes += [Note(text=text, level="warning") for text in damaged]
    state = share_state(state, team)
    if job.reducer is not None and state.get("fingerprint") is not None:
        refuse_other_bits(state["fingerprint"], fingerprint(job.config, job.device))
    progress = job.restore(state, team)
    notes += changes_since(state["config"], job)
    notes += [Note(text=text, level="warning") for text in code_changes(folder, state.get("code", {}), job.code)]
    done = progress.step / job.plan.steps_per_epoch
    if progress.stopped_early:
        raise RunError(f"{folder.path} has finished: it stopped early after {done:g} epochs")
    if progress.step >= job.plan.total_steps:
        raise RunError(
            f"{folder.path} has finished: {done:g} epochs, {progress.step} steps",
            hint=f"to train longer add --epochs {2 * round(done) or 2}; to start anew: --config {folder.config}",
        )
    return progress


def changes_since(before: dict[str, Any], job: Job) -> Iterator[Note]:
    """Yield what is no longer as it was when a checkpoint with these settings was saved."""
    if any(before.get(name) != job.config.as_dict().get(name) for name in ("epochs", "steps")):
        yield Note(text="the length has changed: from here on the learning rate follows the new plan")
    promised = before.get("exact", "order")
    if promised != job.config.exact:
        yield Note(text=f"--exact was {promised} until here, and is {job.config.exact} from here on")
    if job.config.compress == "powersgd" and job.choice.mode == "ddp":
        yield Note(text=POWERSGD_BEGINS_ANEW, level="warning")


def open_folder(job: Job, resume: RunFolder | None, world: World, launches: Iterable[str] = ()) -> RunFolder:
    """Make the run folder, or go back to it; write down settings, environment and model. Only the lead calls it."""
    folder = create_run(job.config) if resume is None else resume
    environment = describe_environment(os.environ, device=describe_device(job.device, cpu_name()))
    environment |= {"launches": sorted(launches), "told_by": world.told_by}
    environment |= {"world_size": world.size, "num_devices": job.num_devices, "mode": str(job.choice)}
    environment |= {"train_images": job.plan.images}
    try:
        write_config(job.config.resolved(), folder.config)
        write_json(folder.environment, [*read_environments(folder), environment])
        folder.model_table.write_text(layer_table(job.model) + "\n", encoding="utf-8")
        keep_code(folder, own_code(job.config))
    except OSError as cause:
        raise RunError(f"cannot write to {folder.path}: {cause.strerror}", hint="choose another --runs-dir") from cause
    return folder


@contextmanager
def quiet_unless_lead(folder: RunFolder, world: World) -> Iterator[None]:
    """Send what other ranks print to their own log, so that the lead alone speaks."""
    if world.is_lead:
        yield
        return
    log = folder.rank_log(world.rank)
    log.parent.mkdir(parents=True, exist_ok=True)  # on a node of its own disk only the lead has made it
    with log.open("a", encoding="utf-8") as file, redirect_stdout(file), redirect_stderr(file):
        yield
