"""A job of Kubernetes: one pod per node as an indexed Job, and the headless Service through which the pods connect."""

import json
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.core.errors import ExitCode, PacelineError
from paceline.launching.engines import PORT, EngineRequest, node_args, resuming
from paceline.launching.slurm_script import JobRequest, seconds_of

GRACE = 120
"""Seconds from SIGTERM to SIGKILL, in which the ranks finish a step and save."""
RETRIES = 10
"""Failures of a node after which the job has failed; preemptions do not count."""
GPU = "nvidia.com/gpu"


def kubernetes_objects(
    request: JobRequest, engine: EngineRequest, args: Sequence[str], *, max_requeues: int = RETRIES
) -> list[dict[str, Any]]:
    """Return the Service and the Job. The index of a pod is its node rank, which `paceline train` reads itself."""
    meta = {"name": request.job_name} | ({"namespace": engine.namespace} if engine.namespace else {})
    chosen = {"batch.kubernetes.io/job-name": request.job_name}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": meta,
        "spec": {
            "clusterIP": "None",  # headless: a DNS name per pod, JOB-INDEX.JOB
            "publishNotReadyAddresses": True,
            "selector": chosen,
            "ports": [{"name": "rendezvous", "port": PORT}],
        },
    }
    limit = {} if request.time is None else {"activeDeadlineSeconds": seconds_of(request.time)}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": meta,
        "spec": {
            "completionMode": "Indexed",
            "completions": request.nodes,
            "parallelism": request.nodes,
            "backoffLimit": min(max_requeues, RETRIES) * request.nodes,
            "podFailurePolicy": {"rules": failure_rules()},
            **limit,
            "template": {"spec": _pod(request, engine, args)},
        },
    }
    return [service, job]


def failure_rules() -> list[dict[str, Any]]:
    """Return what the exit codes of Paceline mean for a job.

    A preempted pod, and pods that stopped with it after saving (143), start again and do not count. Bad input and a
    diverged loss would fail again.
    """
    final = [int(ExitCode.BAD_INPUT), int(ExitCode.DIVERGED)]
    return [
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": final}},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [int(ExitCode.TERMINATED)]}},
    ]


def _pod(request: JobRequest, engine: EngineRequest, args: Sequence[str]) -> dict[str, Any]:
    ours = node_args(resuming(args), request, f"{request.job_name}-0.{request.job_name}")
    command = ["python", "-m", "paceline", *ours]
    if request.setup:
        command = ["bash", "-c", "\n".join(["set -e", *request.setup, f"exec {shlex.join(command)}"])]
    mounts = [{"name": f"claim-{index}", "mountPath": path} for index, path in enumerate(engine.mounts.values())]
    volumes = [
        {"name": f"claim-{index}", "persistentVolumeClaim": {"claimName": name}}
        for index, name in enumerate(engine.mounts)
    ]
    return {
        "restartPolicy": "Never",  # a pod failure policy needs it; the Job creates the next pod
        "subdomain": request.job_name,
        "terminationGracePeriodSeconds": GRACE,
        "containers": [
            {
                "name": "paceline",
                "image": engine.image,
                "command": command,
                "resources": _resources(request),
                "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}, *mounts],
            }
        ],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}, *volumes],  # data workers use /dev/shm
    }


def _resources(request: JobRequest) -> dict[str, dict[str, str]]:
    asked: dict[str, str] = {}
    if request.cpus_per_task is not None:
        asked["cpu"] = str(request.cpus_per_task * request.tasks_on_node)
    if request.mem is not None:  # units of Slurm are powers of two, and MB without a unit
        number = request.mem.rstrip("KMGT")
        asked["memory"] = f"{number}{request.mem[len(number) :] or 'M'}i"
    gpus = {} if request.gpus_per_node is None else {GPU: str(request.gpus_per_node)}
    return {"requests": asked | gpus, "limits": gpus | ({"memory": asked["memory"]} if "memory" in asked else {})}


def as_yaml(objects: Sequence[Mapping[str, Any]]) -> str:
    """Return objects as YAML documents. Strings are quoted as in JSON, which YAML contains."""
    return "---\n".join("\n".join(_lines(each)) + "\n" for each in objects)


def _lines(value: Mapping[str, Any] | Sequence[Any], indent: str = "") -> list[str]:
    lines: list[str] = []
    pairs = value.items() if isinstance(value, Mapping) else [(None, item) for item in value]
    for key, inner in pairs:
        head = f"{indent}- " if key is None else f"{indent}{key}: "
        if isinstance(inner, Mapping | list) and inner:
            nested = _lines(inner, indent + "  ")
            if key is None:
                lines += [head + nested[0].strip(), *nested[1:]]
            else:
                lines += [head.rstrip(), *nested]
        else:
            lines.append(head + json.dumps(inner, ensure_ascii=False))
    return lines


def create_objects(text: str, request: JobRequest, engine: EngineRequest) -> str:
    """Create the objects with kubectl, and return what to type next."""
    if shutil.which("kubectl") is None:
        raise PacelineError(
            "kubectl was not found on this machine", hint="to write the objects to a file: --dry-run > job.yaml"
        )
    answer = subprocess.run(["kubectl", "create", "-f", "-"], input=text, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        problem = answer.stderr.strip()
        raise PacelineError(f"kubectl refused the job: {problem}", hint="to see the objects: --dry-run")
    place = f" -n {engine.namespace}" if engine.namespace else ""
    name = request.job_name
    pods = f"-l batch.kubernetes.io/job-name={name},batch.kubernetes.io/job-completion-index=0"
    return (
        f"submitted job {name}; to follow it: kubectl{place} logs -f {pods}\n"
        f"to stop it: kubectl{place} delete job,service {name}"
    )
