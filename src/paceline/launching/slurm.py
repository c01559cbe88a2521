"""The text of a Slurm job: what to ask for, and how its tasks become ranks."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from paceline.core.config import MaybeWhole, Whole
from paceline.core.errors import ConfigError, SettingError

JOB = Group("Job", sort_key=1)
TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
LONGEST_NOTICE = 120
Lines = Annotated[tuple[str, ...], Parameter(group=JOB, negative="", allow_leading_hyphen=True, consume_multiple=False)]

READY_FOR_NOTICE = """bash -c 'trap "" USR1; exec "$@"' task"""
"""A task that ignores the notice until training is there to act on it; Slurm starts tasks with the signal's default,
which is death."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRequest:
    """What the user wants from Slurm."""

    nodes: Annotated[Whole, Parameter(group=JOB)] = 1
    """Nodes."""
    gpus_per_node: Annotated[MaybeWhole, Parameter(group=JOB)] = None
    """GPUs of each node; each becomes a rank."""
    tasks_per_node: Annotated[MaybeWhole, Parameter(name="--ntasks-per-node", alias="--tasks-per-node", group=JOB)] = (
        None
    )
    """Ranks on each node, one Slurm task each; one task per GPU when not given, else one task."""
    cpus_per_task: Annotated[MaybeWhole, Parameter(group=JOB)] = None
    """Cores of each task."""
    mem: Annotated[str | None, Parameter(group=JOB)] = None
    """Memory of each node, such as 64G."""
    time: Annotated[str | None, Parameter(group=JOB)] = None
    """Time limit, such as 2:00:00; before it ends the run saves, queues again and goes on."""
    partition: Annotated[str | None, Parameter(group=JOB)] = None
    """Partition."""
    account: Annotated[str | None, Parameter(group=JOB)] = None
    """Account to charge."""
    job_name: Annotated[str, Parameter(group=JOB)] = "paceline"
    """Name of the job."""
    output: Annotated[str | None, Parameter(group=JOB)] = None
    """File for what the job prints, as in sbatch; NAME-JOBID.out when not given."""
    sbatch: Lines = ()
    """One more option of sbatch, as in --sbatch=--constraint=a100; may be repeated."""
    setup: Lines = ()
    """A shell line to run first, as in --setup "module load cuda"; may be repeated."""
    array: Annotated[MaybeWhole, Parameter(group=JOB)] = None
    """Ranks as the tasks of an array job, which start one by one as places become free and meet at --meeting-file."""
    meeting_file: Annotated[Path | None, Parameter(group=JOB)] = None
    """A path on a shared disk where the ranks of an array job meet."""

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
        """How many tasks Slurm starts on each node; a rank of an array job has all GPUs of its node."""
        return self.tasks_per_node or (self.gpus_per_node if self.array is None else None) or 1

    @property
    def output_pattern(self) -> str:
        """Where Slurm writes what the job prints, with %-signs for what only Slurm knows."""
        return self.output or ("%x-%j.out" if self.array is None else "%x-%A_%a.out")

    @property
    def notice_seconds(self) -> int:
        """How long before the time limit to say so: two minutes, but no more than a quarter of the job."""
        return LONGEST_NOTICE if self.time is None else max(1, min(LONGEST_NOTICE, seconds_of(self.time) // 4))

    def output_file(self, job: str) -> Path:
        """Return the file that the job writes, or that rank 0 of an array writes."""
        known = {"%j": job, "%A": job, "%a": "0", "%x": self.job_name}
        name = re.sub(r"%[jAax]", lambda match: known[match[0]], self.output_pattern)
        if "%" in name:
            raise ConfigError(
                f"--output {self.output} names a file that only Slurm knows",
                hint="use %j, %x, %A and %a alone, or add --no-follow",
            )
        return Path(name)


def seconds_of(time: str) -> int:
    """Return a time limit as sbatch reads it: minutes, m:s, h:m:s, days-h, days-h:m or days-h:m:s."""
    match = TIME.fullmatch(time)
    if match is None:
        raise SettingError("time", f'is "{time}", but must be such as 90 (minutes), 2:00:00 or 1-12:00:00')
    days, *parts = [None if part is None else int(part) for part in match.groups()]
    numbers = [part for part in parts if part is not None]
    if days is None and len(numbers) < 3:
        numbers = [0, *numbers]
    hours, minutes, seconds = (*numbers, 0, 0)[:3]
    return ((days or 0) * 24 + hours) * 3600 + minutes * 60 + seconds


def job_script(request: JobRequest, python: str, words: Sequence[str]) -> str:
    """Return the sbatch file that runs `paceline` with these words on every task."""
    command = [python, "-m", "paceline", *words]
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in _options(request))]
    lines += ["", "ulimit -c 0", 'trap "" USR1', *request.setup, ""]
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
        "open-mode": "append",  # what was printed before the job was queued again stays
        "signal": f"USR1@{request.notice_seconds}",
    }
    return [f"--{name}={value}" for name, value in asked.items() if value is not None] + ["--requeue", *request.sbatch]


def _by_hand(request: JobRequest) -> str:
    assert request.meeting_file is not None
    place = shlex.quote(f"file://{request.meeting_file.absolute()}")
    return f'--rank "$SLURM_ARRAY_TASK_ID" --world-size "$SLURM_ARRAY_TASK_COUNT" --init-method {place}'


def _check_array(request: JobRequest) -> None:
    if request.array is None:
        if request.meeting_file is not None:
            raise ConfigError("--meeting-file is for array jobs; other jobs meet by themselves", hint="add --array N")
        return
    if request.meeting_file is None:
        raise ConfigError(
            "the ranks of an array job need a place to meet", hint="add --meeting-file with a path on a shared disk"
        )
    if request.nodes > 1 or request.tasks_per_node not in {None, 1}:
        raise ConfigError(
            "every task of an array job is one rank on one node", hint="drop --nodes and --ntasks-per-node"
        )
