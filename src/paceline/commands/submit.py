"""`paceline submit`: write a job for Slurm, Kubernetes or Ray, and submit it."""

import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from paceline.commands.defaults import ALONE, DEFAULTS, SHORT_FORMS
from paceline.commands.settings_files import parse_args_of
from paceline.commands.train import train_command
from paceline.core.config import Config
from paceline.core.errors import ConfigError, ExitCode, flag
from paceline.core.start import Start
from paceline.launching.engines import EngineRequest, check_request, commands_by_hand
from paceline.launching.kubernetes_job import as_yaml, create_objects, kubernetes_objects
from paceline.launching.ray_train import submit_to_ray
from paceline.launching.slurm_queue import Tail, changes, submit_job
from paceline.launching.slurm_script import JobRequest, job_script
from paceline.records.auto_resume import is_auto

WATCHING = Group("Watching", sort_key=3)
ONE_NODE = JobRequest()
SLURM = EngineRequest()
Word = Annotated[str, Parameter(allow_leading_hyphen=True)]


def submit_command(
    *args: Word,
    request: Annotated[JobRequest, Parameter(name="*")] = ONE_NODE,
    engine: Annotated[EngineRequest, Parameter(name="*")] = SLURM,
    dry_run: Annotated[bool, Parameter(group=WATCHING, negative="")] = False,
    follow: Annotated[bool, Parameter(group=WATCHING)] = True,
) -> int:
    """Submit training as a job of Slurm, Kubernetes or Ray.

    Each task runs the command after --. Before a time limit of Slurm, and when Kubernetes or Ray preempts it, the job
    saves a checkpoint, starts again and resumes. A job of Slurm is followed; Ctrl-C stops following, the job continues.

    Examples:

      paceline submit --nodes 2 --gpus-per-node 4 --time 2:00:00 -- train --model resnet20 --epochs 100

      paceline submit --nodes 2 --ntasks-per-node 8 --cpus-per-task 4 -- train --model resnet20

      paceline submit --nodes 2 --dry-run -- train --nproc 4

      paceline submit --array 3 --rendezvous-file /shared/rendezvous -- train --model resnet20

      paceline submit --on kubernetes --nodes 2 --gpus-per-node 4 --image me/paceline --claim disk:/disk
      -- train --runs-dir /disk/runs

      paceline submit --on ray --nodes 2 --gpus-per-node 4 --address http://head:8265 -- train --runs-dir /shared/runs

      paceline submit --on print --nodes 2 -- train              the command of every node

    Parameters
    ----------
    args
        Command of every task, after --: train and its flags.
    dry_run
        Print the job without submitting it.
    follow
        Print the state and output of a Slurm job until it ends.
    """
    settings = checked(args, request, engine)
    if engine.on != "slurm":
        print(_submitted(args, request, engine, settings, dry_run=dry_run), end="")
        return ExitCode.FINISHED
    script = job_script(request, sys.executable, args)
    if dry_run:
        print(script, end="")
        return ExitCode.FINISHED
    if follow:
        request.output_file("0")  # fails here, not after submitting, if the file cannot be followed
    parent = Path(request.output_pattern).parent
    if "%" not in str(parent):
        parent.mkdir(parents=True, exist_ok=True)  # if it is missing, Slurm ends the job without an error message
    job = submit_job(script)
    print(f"submitted job {job}", flush=True)
    return follow_job(job, request.output_file(job)) if follow else ExitCode.FINISHED


def _submitted(
    args: tuple[str, ...], request: JobRequest, engine: EngineRequest, settings: tuple[Config, Start], *, dry_run: bool
) -> str:
    """Submit to another engine than Slurm, and return what to print."""
    config, start = settings
    if engine.on == "print":
        return commands_by_hand(request, sys.executable, args)
    if engine.on == "ray":
        return submit_to_ray(config, request, engine, max_failures=start.max_requeues, dry_run=dry_run) + "\n"
    text = as_yaml(kubernetes_objects(request, engine, args, max_requeues=start.max_requeues))
    return text if dry_run else create_objects(text, request, engine) + "\n"


def checked(args: tuple[str, ...], request: JobRequest, engine: EngineRequest) -> tuple[Config, Start]:
    """Check the arguments of the tasks now, not after hours in the queue; return what they set."""
    if args and args[0].startswith("-"):
        raise ConfigError(
            f"paceline submit has no flag {args[0]}",
            hint=f"give sbatch its own options with --sbatch={args[0].partition('=')[0]}=…, before --",
        )
    if args[:1] != ("train",):
        given = f'"{args[0]}"' if args else "nothing"
        raise ConfigError(
            f"a job runs paceline train, but after -- there is {given}",
            hint="paceline submit --nodes 2 -- train --model resnet20",
        )
    settings_args = [SHORT_FORMS.get(arg, arg) for arg in args[1:]]
    arguments = parse_args_of(train_command, "train", settings_args, os.environ)
    start = arguments.arguments.get("start", ALONE)
    for name in ("rank", "world_size", "nnodes", "node_rank", "rendezvous"):
        if getattr(start, name) != getattr(ALONE, name):
            raise ConfigError(f"{flag(name)} is set by the job itself", hint=f"drop {flag(name)} after --")
    _check_nproc(start, request)
    settings = arguments.arguments.get("settings", DEFAULTS)
    resume = arguments.arguments.get("resume")
    if engine.on == "ray" and resume is not None and not is_auto(resume):
        raise ConfigError(
            f"--resume {resume} has no effect with --on ray, which resumes the newest run of --name",
            hint="use --resume auto with the --name of that run",
        )
    check_request(engine, request, start, settings.runs_dir)
    return settings, start


def _check_nproc(start: Start, request: JobRequest) -> None:
    if (start.nproc or 1) > 1 and (request.tasks_on_node > 1 or request.array is not None):
        raise ConfigError(
            f"every task of the job is already a rank; --nproc {start.nproc} would start ranks in each of them",
            hint="drop --nproc after --",
        )


def follow_job(job: str, output: Path) -> int:
    """Print the job's state changes and output until it ends or the user presses Ctrl-C."""
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
        print(f"\njob {job} continues; to follow it: tail -F {output}; to stop it: scancel {job}", flush=True)
        return ExitCode.FINISHED
    return ExitCode.FINISHED if state is not None and state.is_good else ExitCode.FAILED
