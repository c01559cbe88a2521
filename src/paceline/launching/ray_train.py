"""Training on the workers of a Ray cluster, each of them a rank: what `paceline submit --on ray` runs as a driver."""

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from paceline.core.config import Config
from paceline.core.errors import PacelineError
from paceline.launching.engines import EngineRequest
from paceline.launching.slurm_script import JobRequest

MODULE = "paceline.launching.ray_train"


def train_on_workers(
    config: Config, *, num_workers: int, gpus: int = 0, cpus: int | None = None, max_failures: int = 0
) -> Any:
    """Train on this many workers, and return Ray's result. Ray restarts them after a failure, and the run continues.

    `gpus` and `cpus` are those of a worker. The runs folder must be one that every node of the cluster can see.
    """
    ray_train, torch_trainer = import_module("ray.train"), import_module("ray.train.torch").TorchTrainer
    resources = ({"CPU": cpus} if cpus is not None else {}) | ({"GPU": gpus} if gpus else {})
    trainer = torch_trainer(
        train_worker,
        train_loop_config=config.as_dict(),
        scaling_config=ray_train.ScalingConfig(
            num_workers=num_workers, use_gpu=gpus > 0, resources_per_worker=resources or None
        ),
        run_config=ray_train.RunConfig(
            storage_path=str(config.runs_dir.absolute() / ".ray"),
            failure_config=ray_train.FailureConfig(max_failures=max_failures),
        ),
    )
    return trainer.fit()


def train_worker(settings: dict[str, Any]) -> None:
    """Train as one worker: start the run, or resume it after Ray has restarted the workers."""
    from paceline import train  # noqa: PLC0415 - imports torch, in a worker

    train(Config.from_dict(settings), resume="auto")


def submit_to_ray(
    config: Config, request: JobRequest, engine: EngineRequest, *, max_failures: int, dry_run: bool
) -> str:
    """Submit a job with Ray's own command, and return what it printed, or with `dry_run` the command."""
    config = config.resolved()
    settings = Config.from_dict(config.as_dict() | {"track": [*config.track, "ray"]}).as_dict()
    job = {
        "config": settings,
        "num_workers": request.nodes * request.tasks_on_node,
        "gpus": 0 if request.gpus_per_node is None else request.gpus_per_node // request.tasks_on_node,
        "cpus": request.cpus_per_task,
        "max_failures": max_failures,
    }
    command = _command(request, engine, job)
    if dry_run:
        return shlex.join(command)
    if shutil.which("ray") is None:
        raise PacelineError("ray was not found on this machine", hint="pip install 'paceline[ray]', or --dry-run")
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise PacelineError(f"ray refused the job: {answer.stderr.strip()}", hint="to see the command: --dry-run")
    return answer.stdout.strip()


def _command(request: JobRequest, engine: EngineRequest, job: dict[str, Any]) -> list[str]:
    where = ["--address", engine.address] if engine.address else []
    entry = ["python", "-m", MODULE, json.dumps(job)]
    if request.setup:
        entry = ["bash", "-c", "\n".join(["set -e", *request.setup, shlex.join(entry)])]
    return ["ray", "job", "submit", *where, "--working-dir", ".", "--no-wait", "--", *entry]


def main(args: Sequence[str]) -> None:
    """Train as the driver of a Ray job, with the settings of its only argument."""
    job = json.loads(args[0])
    train_on_workers(Config.from_dict(job.pop("config")), **job)


if __name__ == "__main__":
    main(sys.argv[1:])
