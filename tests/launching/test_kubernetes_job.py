"""The objects of `paceline submit --on kubernetes`: valid by the official schema, and right for our exit codes."""

import json

import pytest

from paceline.core.errors import ExitCode
from paceline.core.start import Start
from paceline.launching.engines import EngineRequest
from paceline.launching.kubernetes_job import as_yaml, failure_rules, kubernetes_objects
from paceline.launching.slurm_script import JobRequest
from paceline.parallel.detect import detect_world
from paceline.parallel.nodes import join_nodes

REQUEST = JobRequest(
    nodes=3, gpus_per_node=4, cpus_per_task=8, mem="64G", time="2:00:00", job_name="big-run", setup=("ulimit -n 4096",)
)
ENGINE = EngineRequest(on="kubernetes", image="team/train:1", namespace="ml", claim=("disk:/disk", "data:/data"))
ARGS = ("train", "--runs-dir", "/disk/runs", "--model", "it's")
VERSION = "1.37"


def valid(value) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    validate.validate(value, VERSION, strict=True)


@pytest.mark.parametrize("request_", [REQUEST, JobRequest(job_name="one")], ids=["three nodes", "one node"])
def test_both_objects_fit_the_official_schema(request_):
    for each in kubernetes_objects(request_, ENGINE, ARGS):
        valid(each)


def test_a_misspelt_key_does_not_fit_the_schema():
    _, job = kubernetes_objects(REQUEST, ENGINE, ARGS)
    job["spec"]["podFailurePolicies"] = job["spec"].pop("podFailurePolicy")
    with pytest.raises(Exception, match="podFailurePolicies"):
        valid(job)


def test_yaml_text_reads_back_as_the_objects():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    objects = kubernetes_objects(REQUEST, ENGINE, ARGS)
    assert list(yaml.safe_load_all(as_yaml(objects))) == objects
    assert list(yaml.safe_load_all(as_yaml([{"a": {}, "b": [], "c": [["x", {"y": None}]]}]))) == [
        {"a": {}, "b": [], "c": [["x", {"y": None}]]}
    ]


def test_pods_connect_through_the_service_and_continue_the_run():
    service, job = kubernetes_objects(REQUEST, ENGINE, ARGS)
    spec = job["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert service["metadata"]["name"] == spec["subdomain"] == "big-run"
    assert container["command"][:2] == ["bash", "-c"]
    last = container["command"][2].splitlines()[-1]
    assert last.startswith("exec python -m paceline train --runs-dir /disk/runs --model 'it'\"'\"'s' --resume auto")
    assert last.endswith("--nproc 4 --nnodes 3 --rendezvous big-run-0.big-run:29400")
    assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/dev/shm", "/disk", "/data"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "4", "memory": "64Gi"}
    given = kubernetes_objects(REQUEST, ENGINE, (*ARGS, "--resume=mine"))[1]
    assert "--resume auto" not in json.dumps(given)


def test_the_index_of_a_pod_is_its_node_rank():
    start = Start(nnodes="3", nproc=4, rendezvous="big-run-0.big-run:29400")
    environ = {"JOB_COMPLETION_INDEX": "2", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    joined = join_nodes(start, environ)
    assert (joined.node_rank, joined.nproc) == (2, 4)
    assert detect_world(environ, joined).launcher == "none", "the ranks of the node are still to be started"


def outcome(code: int, *, disrupted: bool = False) -> str:
    """Return what a Job does with a pod that ended so, as the documentation of podFailurePolicy says."""
    for rule in failure_rules():
        if disrupted and "onPodConditions" in rule:
            return rule["action"]
        if "onExitCodes" in rule and code in rule["onExitCodes"]["values"]:
            return rule["action"]
    return "Count"


def test_exit_codes_decide_whether_a_pod_starts_again():
    assert outcome(ExitCode.BAD_INPUT) == outcome(ExitCode.DIVERGED) == "FailJob"
    assert outcome(ExitCode.TERMINATED) == "Ignore", "saved and stopped with a preempted pod: does not count"
    assert outcome(137, disrupted=True) == "Ignore"
    assert outcome(137) == outcome(ExitCode.FAILED) == "Count"
