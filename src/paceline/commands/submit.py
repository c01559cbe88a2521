"""`paceline submit`: write the Slurm job that trains, submit it, follow it."""

import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from paceline.commands.train import ALONE, train_command
from paceline.commands.words import read_words
from paceline.core.config import flag
from paceline.core.errors import ConfigError, ExitCode
from paceline.core.start import Start
from paceline.launching.queue import Tail, changes, submit_job
from paceline.launching.slurm import JobRequest, job_script

WATCHING = Group("Watching", sort_key=2)
ONE_NODE = JobRequest()
Word = Annotated[str, Parameter(allow_leading_hyphen=True)]


def submit_command(
    *words: Word,
    request: Annotated[JobRequest, Parameter(name="*")] = ONE_NODE,
    dry_run: Annotated[bool, Parameter(group=WATCHING, negative="")] = False,
    follow: Annotated[bool, Parameter(group=WATCHING)] = True,
) -> int:
    """Write the Slurm job that trains, submit it, and follow it.

    What comes after -- is what each task runs. Before the time limit the run saves, queues again and goes on.
    Ctrl-C stops following; the job goes on.

    Examples:

      paceline submit --nodes 2 --gpus-per-node 4 --time 2:00:00 -- train --model resnet20 --epochs 100

      paceline submit --nodes 2 --ntasks-per-node 8 --cpus-per-task 4 -- train --model resnet20

      paceline submit --nodes 2 --dry-run -- train --nproc 4

      paceline submit --array 3 --meeting-file /shared/meet -- train --model resnet20

    Parameters
    ----------
    words
        The command for every task: train and its flags, after --.
    dry_run
        Print the job's text and submit nothing.
    follow
        Print the job's state and output until it ends.
    """
    check_words(words, request)
    script = job_script(request, sys.executable, words)
    if dry_run:
        print(script, end="")
        return ExitCode.FINISHED
    if follow:
        request.output_file("0")  # says now, not after submitting, that the file cannot be followed
    parent = Path(request.output_pattern).parent
    if "%" not in str(parent):
        parent.mkdir(parents=True, exist_ok=True)  # where it is missing, Slurm ends the job without a word
    job = submit_job(script)
    print(f"submitted job {job}", flush=True)
    return follow_job(job, request.output_file(job)) if follow else ExitCode.FINISHED


def check_words(words: tuple[str, ...], request: JobRequest) -> None:
    """Find now, not after hours in the queue, what is wrong with the words for the tasks."""
    if words[:1] != ("train",):
        given = f'"{words[0]}"' if words else "nothing"
        raise ConfigError(
            f"a job runs train, but after -- there is {given}",
            hint="paceline submit --nodes 2 -- train --model resnet20",
        )
    arguments = read_words(train_command, "train", words[1:], os.environ)
    start = arguments.arguments.get("start", ALONE)
    for name in ("rank", "world_size", "nnodes", "node_rank", "rendezvous"):
        if getattr(start, name) != getattr(ALONE, name):
            raise ConfigError(f"Slurm decides what {flag(name)} would say", hint=f"drop {flag(name)} after --")
    _check_nproc(start, request)


def _check_nproc(start: Start, request: JobRequest) -> None:
    if (start.nproc or 1) > 1 and (request.tasks_on_node > 1 or request.array is not None):
        raise ConfigError(
            f"every Slurm task is a rank already, and --nproc {start.nproc} would start ranks in each of them",
            hint="drop --nproc after --",
        )


def follow_job(job: str, output: Path) -> int:
    """Print the job's changes of state and what it prints, until it ends or the user has seen enough."""
    tail = Tail(output)
    state = None
    try:
        for change in changes(job):
            print(tail.read(), end="", flush=True)
            if change is not None:
                state = change
                print(f"job {job}: {state}", flush=True)
        print(tail.read(), end="", flush=True)
    except KeyboardInterrupt:
        print(f"\njob {job} goes on; to follow it: tail -F {output}; to stop it: scancel {job}", flush=True)
        return ExitCode.FINISHED
    return ExitCode.FINISHED if state is not None and state.is_good else ExitCode.FAILED
