"""The script of a Slurm job: the resources to request, and how its tasks become ranks."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from paceline.core.errors import ConfigError, SettingError
from paceline.core.setting_types import MaybeWhole, Whole

JOB = Group("Job", sort_key=1)
TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
LONGEST_NOTICE = 120
Lines = Annotated[tuple[str, ...], Parameter(group=JOB, negative="", allow_leading_hyphen=True, consume_multiple=False)]

READY_FOR_NOTICE = """bash -c 'trap "" USR1; exec "$@"' task"""
"""Ignores the signal until training handles it; by default it would kill the task."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRequest:
    """The resources and options of a Slurm job."""

    nodes: Annotated[Whole, Parameter(group=JOB)] = 1
    """Nodes."""
    gpus_per_node: Annotated[MaybeWhole, Parameter(group=JOB)] = None
    """GPUs per node; one rank per GPU."""
    tasks_per_node: Annotated[MaybeWhole, Parameter(name="--ntasks-per-node", alias="--tasks-per-node", group=JOB)] = (
        None
    )
    """Ranks per node, each a Slurm task. Default: one per GPU, or 1 without GPUs."""
    cpus_per_task: Annotated[MaybeWhole, Parameter(group=JOB)] = None
    """CPU cores per task."""
    mem: Annotated[str | None, Parameter(group=JOB)] = None
    """Memory per node, such as 64G."""
    time: Annotated[str | None, Parameter(group=JOB)] = None
    """Time limit, such as 2:00:00; shortly before it the job saves, requeues itself and later resumes."""
    partition: Annotated[str | None, Parameter(group=JOB)] = None
    """Partition."""
    account: Annotated[str | None, Parameter(group=JOB)] = None
    """Account to charge."""
    job_name: Annotated[str, Parameter(group=JOB)] = "paceline"
    """Name of the job."""
    output: Annotated[str | None, Parameter(group=JOB)] = None
    """Output file of the job, as in sbatch. Default: NAME-JOBID.out."""
    sbatch: Lines = ()
    """Another sbatch option, such as --sbatch=--constraint=a100; may be repeated."""
    setup: Lines = ()
    """A shell command to run first, such as --setup "module load cuda"; may be repeated."""
    array: Annotated[MaybeWhole, Parameter(group=JOB)] = None
    """Number of ranks as tasks of an array job, which start independently and connect through --rendezvous-file."""
    rendezvous_file: Annotated[Path | None, Parameter(name=("--rendezvous-file", "--meeting-file"), group=JOB)] = None
    """Path on a shared disk through which the ranks of an array job connect."""

    def __post_init__(self) -> None:
        for name in ("nodes", "gpus_per_node", "tasks_per_node", "cpus_per_task", "array"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingError(name, f"is {value}, but must be at least 1")
        for name in ("mem", "partition", "account", "job_name", "output"):
            value = getattr(self, name)
            if value is not None and (not value or re.search(r"\s", value)):
                raise SettingError(name, f'is "{value}", but must be one word')
        if self.time is not None:
            seconds_of(self.time)
        if any("\n" in line for line in (*self.sbatch, *self.setup)):
            raise ConfigError("--sbatch and --setup take one line each", hint="repeat the flag")
        _check_array(self)

    @property
    def tasks_on_node(self) -> int:
        """The number of tasks per node; a rank of an array job has all GPUs of its node."""
        return self.tasks_per_node or (self.gpus_per_node if self.array is None else None) or 1

    @property
    def output_pattern(self) -> str:
        """The output file of the job, with Slurm's %-placeholders."""
        return self.output or ("%x-%j.out" if self.array is None else "%x-%A_%a.out")

    @property
    def notice_seconds(self) -> int:
        """Seconds from the warning signal to the time limit: two minutes, but at most a quarter of the job."""
        return LONGEST_NOTICE if self.time is None else max(1, min(LONGEST_NOTICE, seconds_of(self.time) // 4))

    def output_file(self, job: str) -> Path:
        """Return the output file of the job, or of rank 0 of an array."""
        known = {"%j": job, "%A": job, "%a": "0", "%x": self.job_name}
        name = re.sub(r"%[jAax]", lambda match: known[match[0]], self.output_pattern)
        if "%" in name:
            raise ConfigError(
                f"--output {self.output} has placeholders that only Slurm can fill in",
                hint="use only %j, %x, %A and %a, or add --no-follow",
            )
        return Path(name)


def seconds_of(time: str) -> int:
    """Read a time limit in the format of sbatch: minutes, m:s, h:m:s, days-h, days-h:m or days-h:m:s."""
    match = TIME.fullmatch(time)
    if match is None:
        raise SettingError("time", f'is "{time}", but must be such as 90 (minutes), 2:00:00 or 1-12:00:00')
    days, *parts = [None if part is None else int(part) for part in match.groups()]
    numbers = [part for part in parts if part is not None]
    if days is None and len(numbers) < 3:
        numbers = [0, *numbers]
    hours, minutes, seconds = (*numbers, 0, 0)[:3]
    return ((days or 0) * 24 + hours) * 3600 + minutes * 60 + seconds


def job_script(request: JobRequest, python: str, args: Sequence[str]) -> str:
    """Return the sbatch file that runs `paceline` with these args on every task."""
    command = [python, "-m", "paceline", *args]
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in _options(request))]
    lines += ["", f"# written by paceline {version('paceline')}"]
    if request.gpus_per_node and request.cpus_per_task is None:
        lines.append(
            "# without --cpus-per-task each rank has the site's default, often one core for it and its loaders"
        )
    lines += ["ulimit -c 0", 'trap "" USR1']
    lines += ["set -e", *request.setup, "set +e", ""] if request.setup else [""]
    srun = ["srun", "--kill-on-bad-exit=1"]
    if request.cpus_per_task is not None:  # Slurm 22.05 and later do not pass it from sbatch to srun
        srun.append(f"--cpus-per-task={request.cpus_per_task}")
    if request.array is None:
        lines.append(f"exec {' '.join(srun)} {READY_FOR_NOTICE} \\\n    {shlex.join(command)}")
    else:
        lines.append(f"exec {' '.join(srun)} {READY_FOR_NOTICE} \\\n    {shlex.join(command)} {_by_hand(request)}")
    return "\n".join(lines) + "\n"


def _options(request: JobRequest) -> list[str]:
    asked = {
        "job-name": request.job_name,
        "nodes": request.nodes,
        "ntasks-per-node": request.tasks_on_node,
        "gpus-per-node": request.gpus_per_node,
        "cpus-per-task": request.cpus_per_task,
        "mem": request.mem,
        "time": request.time,
        "partition": request.partition,
        "account": request.account,
        "array": None if request.array is None else f"0-{request.array - 1}",
        "output": request.output_pattern,
        "open-mode": "append",  # keep the output from before a requeue
        "signal": f"USR1@{request.notice_seconds}",
    }
    return [f"--{name}={value}" for name, value in asked.items() if value is not None] + ["--requeue", *request.sbatch]


def _by_hand(request: JobRequest) -> str:
    assert request.rendezvous_file is not None
    place = shlex.quote(f"file://{request.rendezvous_file.absolute()}")
    return f'--rank "$SLURM_ARRAY_TASK_ID" --world-size "$SLURM_ARRAY_TASK_COUNT" --init-method {place}'


def _check_array(request: JobRequest) -> None:
    if request.array is None:
        if request.rendezvous_file is not None:
            raise ConfigError("--rendezvous-file is only for array jobs", hint="add --array N")
        return
    if request.rendezvous_file is None:
        raise ConfigError(
            "--array needs --rendezvous-file, through which the ranks connect",
            hint="add --rendezvous-file PATH, on a shared disk",
        )
    if request.nodes > 1 or request.tasks_per_node not in {None, 1}:
        raise ConfigError(
            "every task of an array job is one rank on one node", hint="drop --nodes and --ntasks-per-node"
        )
