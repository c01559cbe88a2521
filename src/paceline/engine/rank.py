"""The stages of a rank: join, build, restore, train, leave."""

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from paceline.core.config import Config
from paceline.core.errors import ConfigError, RunError, flag
from paceline.core.load import config_text
from paceline.core.messages import say
from paceline.core.start import Start
from paceline.core.stopping import StopRequest, interruptible, stop_on_signals
from paceline.core.world import World
from paceline.engine.capture import describe_state
from paceline.engine.checkpoint import NO_OTHERS, Checkpoints
from paceline.engine.clock import clock_for
from paceline.engine.compute_check import refuse_unchecked
from paceline.engine.data_check import data_changes
from paceline.engine.disk_room import check_room
from paceline.engine.header import rank_dependent, settings_warnings
from paceline.engine.initial_weights import load_initial_weights
from paceline.engine.job import Job, build_job, reads_shards
from paceline.engine.profiler import NUM_PAIRS, measure_profile, profiled_job
from paceline.engine.progress import Progress
from paceline.engine.recorded_job import RecordedJob
from paceline.engine.resume_checks import changes_since, chosen_by_lead, refuse_finished
from paceline.engine.run import JobRun
from paceline.engine.user_code import own_code
from paceline.models.summary import layer_table
from paceline.parallel.amx import limit_isa
from paceline.parallel.device import choose_kernels, describe_device, gpu_versions
from paceline.parallel.exact.determinism import deterministic_only, fingerprint, refuse_other_bits
from paceline.parallel.join import joined
from paceline.parallel.lost_ranks import lost_rank_named
from paceline.parallel.speed_check import measure_speeds, outliers, speeds_text
from paceline.parallel.stacks import stack_on_request
from paceline.parallel.team import Team
from paceline.records.attempt import sees_attempt, take_over, unlocked_note
from paceline.records.code import code_changes, keep_code
from paceline.records.entries import Note, RunResult, State
from paceline.records.environment import cpu_name, describe_environment
from paceline.records.folder import RunFolder, create_run, list_runs_below, make_inner
from paceline.records.profile import Profile, write_profile
from paceline.records.reader import read_environments, run_state
from paceline.records.storage import Storage
from paceline.records.writer import write_json, write_rank, write_text

ALONE = Start()
MACHINE_SETTINGS = frozenset({"data_dir", "device", "threads", "runs_dir", "workers"})


def run_rank(
    config: Config, world: World, *, start: Start = ALONE, resume: RunFolder | None = None, show_table: bool = False
) -> RunResult:
    """Train as one of the ranks of a run, and return its result. Collective: every rank must call it."""
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
    ):
        return Startup(config, team, start).run(stop, resume, show_table=show_table)


def profile_rank(
    config: Config, world: World, *, start: Start = ALONE, num_pairs: int = NUM_PAIRS, trace: bool = False
) -> tuple[RunFolder, Profile]:
    """Measure a profile as one of the ranks, and return it with its folder. Collective: every rank must call it."""
    with joined(world, device=config.device, threads=config.threads, timeout=start.timeout) as team:
        return Startup(config, team, start).profile(num_pairs, trace=trace)


class Startup:
    """Starts a run from its settings, once the ranks have joined."""

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
            refuse_unchecked(job, team.world)
            launches = self.launches()
            resume = self.run_to_resume(resume, launches)
            progress = (
                Progress()
                if resume is None or not team.from_lead(resume.is_run)  # --resume auto reserves a folder
                else restore(job, team, resume, self.notes)
            )
            if progress.step == 0 and self.config.init is not None:
                self.notes.append(Note(text=load_initial_weights(job, team)))
            self.notes[:0] = check_room(job, progress, team, resume)
        # from here on there is a run folder, and a signal ends the run after a step, with a checkpoint
        folder = team.from_lead(
            open_run_folder(job, resume, team.world, launches) if team.is_lead else RunFolder(Path())
        )
        check_shared(folder, job, team)
        if team.is_lead:
            self.notes += unlocked_note(folder)
        if profile is not None and team.is_lead:
            write_profile(folder, profile)
        world = team.world
        tell_joined(self.start, world)
        with (
            stack_on_request(folder.rank_stack(world.rank)),
            lost_rank_named(folder, world, self.start.timeout),
            quiet_unless_lead(folder, world),
        ):
            run = JobRun(job, progress, team, folder, clock=clock)
            cautions = [Note(text=text, level="warning") for text in [*job.data.warnings, *settings_warnings(job)]]
            with deterministic_only() if self.config.exact == "bitwise" else nullcontext():
                return run.execute(stop, [*self.notes, *cautions], show_table=show_table)

    @contextmanager
    def interruptible(self, stop: StopRequest) -> Iterator[None]:
        """Let a signal end the block at once, even while it waits for other ranks: there is nothing to save."""
        with interruptible("building the data and the model"), self.team.starting(lambda: stop.signal):
            yield

    def agree(self) -> None:
        """Refuse ranks with different settings, and CPUs that do not support them. Collective."""
        if self.start.devices and self.team.device.type == "cpu":
            raise ConfigError(
                f"--devices {','.join(map(str, self.start.devices))} chooses GPUs, but this rank trains on the CPU",
                hint="drop it; for several ranks on the CPU use --nproc 2",
            )
        self.config = chosen_by_lead(self.config, self.team)
        self.team.agree(shared_facts(self.config))
        choose_kernels(self.team.device, bitwise=self.config.exact == "bitwise")
        if self.config.precision == "bf16":
            note = limit_isa(self.team, os.environ)
            self.notes += [] if note is None else [Note(text=note, level="warning")]
        if self.config.exact == "bitwise":
            self.team.agree(fingerprint(self.config, self.team.device))
        if self.start.check_up:
            speeds = measure_speeds(self.team)
            self.notes.append(Note(text=f"speed    {speeds_text(speeds)}"))
            self.notes += [Note(text=text, level="warning") for text in outliers(speeds)]

    def measured(self, stop: StopRequest) -> Profile:
        """Measure a profile before the run starts. Collective: every rank must call it."""
        with ExitStack() as stack:
            with self.interruptible(stop):
                job, timer = stack.enter_context(profiled_job(self.config, self.team, nproc=self.start.nproc))
            return measure_profile(job, self.team, timer)

    def profile(self, num_pairs: int, *, trace: bool) -> tuple[RunFolder, Profile]:
        """Agree, build, measure: a run that never trains. Collective: every rank must call it."""
        team, world = self.team, self.team.world
        self.agree()
        launches = self.launches()
        with profiled_job(self.config, team, nproc=self.start.nproc) as (job, timer):
            folder = team.from_lead(open_run_folder(job, None, world, launches) if team.is_lead else RunFolder(Path()))
            with lost_rank_named(folder, world, self.start.timeout), quiet_unless_lead(folder, world):
                path = folder.trace(world.rank) if trace else None
                profile = measure_profile(job, team, timer, num_pairs=num_pairs, trace=path)
        if team.is_lead:
            write_profile(folder, profile)
            write_rank(folder.rank(0), world, State.FINISHED, step=0)
        return folder, profile

    def run_to_resume(self, resume: RunFolder | None, launches: set[str]) -> RunFolder | None:
        """Return the run to resume: that of --resume, or after a restart the interrupted one. Collective."""
        # nodes of an elastic job count their restarts separately
        restarted = self.team.any(self.team.world.attempt > 0)
        if restarted and resume is None and self.team.is_lead:
            resume = interrupted_run(self.config, launches)
        return self.team.from_lead(resume)

    def launches(self) -> set[str]:
        """Return the names of the launches of all nodes; after a restart another node may have the lead. Collective."""
        return {name for name in self.team.gather(self.team.world.launch_id) if name is not None}


def tell_joined(start: Start, world: World) -> None:
    """Say that a rank that the user started by hand trains: only the lead shows the progress."""
    if start.by_hand and not world.is_lead:
        say(f"rank {world.rank} of {world.size} trains; rank 0 shows the progress")


def shared_facts(config: Config) -> dict[str, Any]:
    """Return what must be the same on every rank: versions, and every setting that is not specific to a machine."""
    settings = {key: value for key, value in config.as_dict().items() if key not in MACHINE_SETTINGS}
    return {"paceline": version("paceline"), "torch": torch.__version__} | {
        flag(key): settings[key] for key in settings
    }


def interrupted_run(config: Config, launches: set[str]) -> RunFolder | None:
    """Return the run that an earlier attempt of these launches started and saved, to resume it after a restart."""
    for folder in list_runs_below(config.runs_dir / config.run_name):
        if any(launches.intersection(environment.get("launches", ())) for environment in read_environments(folder)):
            return folder if folder.saved_steps() else None
    return None


def restore(job: Job, team: Team, folder: RunFolder, notes: list[Note]) -> Progress:
    """Resume a run from its newest intact checkpoint, or from its start if none was saved, unless it has finished.

    Only the lead needs to see the files, unless fsdp has written them. Collective: every rank must call it.
    """
    checkpoints = Checkpoints(folder.checkpoints, keep=job.config.keep)
    if team.is_lead:
        checkpoints.recover()
    state_before = team.from_lead(run_state(folder))
    if state_before != State.FINISHED and not team.from_lead(folder.saved_steps()):
        notes.append(Note(text=f"{folder.path} was stopped before it saved a checkpoint: starting over"))
        return Progress()
    reads_itself = reads_shards(job, checkpoints, team)
    state: dict[str, Any] = {}
    if team.is_lead or reads_itself:
        damaged: list[str] = []
        state, path = checkpoints.newest_good(team if reads_itself else NO_OTHERS, damaged.append)
        if damaged:
            damaged.append(f"continuing from {path}")
        notes += [Note(text=text, level="warning") for text in damaged]
    if not reads_itself:
        state = describe_state(state, team)
    if job.reducer is not None and state.get("fingerprint") is not None:
        refuse_other_bits(state["fingerprint"], fingerprint(job.config, job.device))
    progress = job.restore(state, NO_OTHERS if reads_itself else team)
    notes += changes_since(state["config"], job)
    notes += [
        Note(text=text, level="warning") for text in data_changes(state.get("data_digests"), job.data, job.config)
    ]
    notes += [Note(text=text, level="warning") for text in code_changes(folder, state.get("code", {}), job.code)]
    if state_before == State.FINISHED or progress.step > job.plan.total_steps:
        refuse_finished(folder, progress, job)
    return progress


def open_run_folder(
    job: RecordedJob, resume: RunFolder | None, world: World, launches: Iterable[str] = ()
) -> RunFolder:
    """Create or reopen the run folder; write settings, environment and model. Only the lead calls it."""
    if job.config.upload is not None:
        # wrong credentials fail before there is a folder
        Storage(job.config.upload).sizes(f"{job.config.run_name}/000")
    folder = create_run(job.config) if resume is None else make_inner(resume)
    environment = describe_environment(os.environ, device=describe_device(job.device, cpu_name()))
    environment |= {"gpu": gpu_versions(job.device)} if job.device.type == "cuda" else {}
    environment |= {"launches": sorted(launches), "launcher": world.launcher}
    environment |= {"world_size": world.size, "num_devices": job.num_devices, "mode": str(job.choice)}
    environment |= {"train_samples": job.plan.num_samples, "rank_dependent": rank_dependent(job)}
    try:
        folder = take_over(folder)
        write_text(folder.config, config_text(job.config.resolved()))
        write_json(folder.environment, [*read_environments(folder), environment])
        write_text(folder.model_table, layer_table(job.model) + "\n")
        keep_code(folder, own_code(job.config))
    except OSError as cause:
        raise RunError(f"cannot write to {folder.path}: {cause.strerror}", hint="choose another --runs-dir") from cause
    return folder


def check_shared(folder: RunFolder, job: Job, team: Team) -> None:
    """Refuse fsdp if a rank does not see the run folder, to which each writes its shards. Collective."""
    if job.choice.mode != "fsdp":
        return
    blind = [
        place for place in team.gather(None if sees_attempt(folder) else (team.world.rank, team.world.host)) if place
    ]
    if blind:
        raise RunError(
            f"rank {blind[0][0]} on {blind[0][1]} does not see the run folder {folder.path} of rank 0",
            hint="with --mode fsdp, set --runs-dir to a folder that every rank can see",
        )


@contextmanager
def quiet_unless_lead(folder: RunFolder, world: World) -> Iterator[None]:
    """Redirect the output of other ranks to their log files, so that only the lead prints."""
    if world.is_lead:
        yield
        return
    log = folder.rank_log(world.rank)
    log.parent.mkdir(parents=True, exist_ok=True)  # without a shared disk only the lead has created it
    with log.open("a", encoding="utf-8") as file, redirect_stdout(file), redirect_stderr(file):
        yield
