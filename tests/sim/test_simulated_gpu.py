"""Paceline's CUDA code on simulated GPUs: the bits of the CPU run, and no wait for the device inside a step."""

import json
from collections import UserDict
from dataclasses import asdict
from pathlib import Path

import pytest
from torch.utils import backend_registration

from paceline.records.writer import locked
from tests.ranks.runs import scores
from tests.sim.cases import CASES, MODELS, Case
from tests.sim.names import BARE, BEFORE_FORWARD
from tests.sim.simulate import Command, Result, run_in_workers
from tests.states import differences, final_state

pytestmark = pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch offers no device in Python",
)
NAMES = [pytest.param(name, marks=[pytest.mark.slow] if case.world > 1 else []) for name, case in CASES.items()]
PLANTED = {"item": "sync", "host_tensor": "mixed", "numpy": "host", "freed_buffer": "lifetime"}
"""Models of models.py with a fault, and the kind of entry that it causes."""


def shared_results(folder: Path, commands: list[Command], gpus: int) -> dict[str, list[Result]]:
    """Run the commands once for all workers of xdist, and return their results."""
    with locked(folder / "lock"):
        file = folder / "results.json"
        if not file.exists():
            found = run_in_workers(commands, folder, gpus)
            file.write_text(json.dumps({name: [asdict(rank) for rank in ranks] for name, ranks in found.items()}))
        return {name: [Result(**rank) for rank in ranks] for name, ranks in json.loads(file.read_text()).items()}


class Results(UserDict[str, list[Result]]):
    """Results by command. Those of one rank and those of several are computed apart, each when first needed.

    So each takes well below the time limit of a test, on a busy machine too.
    """

    def __init__(self, folder: Path, commands: list[Command]) -> None:
        super().__init__()
        self._folder = folder
        self._groups = {
            "one": [command for command in commands if command.world == 1],
            "several": [command for command in commands if command.world > 1],
        }

    def __missing__(self, name: str) -> list[Result]:
        for group, commands in self._groups.items():
            if name in {command.name for command in commands}:
                folder = self._folder / group
                folder.mkdir(exist_ok=True)
                self.data |= shared_results(folder, commands, gpus=3)
                return self.data[name]
        return []


@pytest.fixture(scope="session")
def sim(tmp_path_factory, worker_id):
    """Return the folder and the results of all cases."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "simulated-gpu"
    folder.mkdir(exist_ok=True)
    commands = [command for name, case in CASES.items() for command in case.commands(name, folder / "runs")]
    faults = [Case(model=f"{MODELS}:{fault}", steps=2).on_gpu(fault, folder / "runs") for fault in PLANTED]
    faults.append(Case(model=f"{MODELS}:out_of_memory").on_gpu("out of memory", folder / "runs"))
    faults += Case(model=f"{MODELS}:gpu_only", steps=2).commands("gpu only", folder / "runs")
    faults.append(Case(world=2, environ={"CUDA_VISIBLE_DEVICES": "2"}).on_gpu("one GPU for two ranks", folder / "runs"))
    commands += [*faults, Command(name=BARE, argv=[BARE, "resnet20"])]
    return folder, Results(folder, commands)


def all_ranks(results: Results, name: str) -> list[Result]:
    return [rank for each in (name, f"{name}-resumed") for rank in results[each]]


@pytest.mark.bf16
@pytest.mark.parametrize("name", NAMES)
def test_a_run_on_a_simulated_gpu_equals_the_run_on_the_cpu(sim, name):
    folder, results = sim
    ranks = all_ranks(results, name) + all_ranks(results, f"{name}-cpu")
    assert {rank.code for rank in ranks} == {0}, "\n".join(rank.output for rank in ranks)
    gpu, cpu = folder / "runs" / name / "001", folder / "runs" / f"{name}-cpu" / "001"
    states = [{key: value for key, value in final_state(run).items() if key != "fingerprint"} for run in (gpu, cpu)]
    assert differences(states[0], states[1]) == []
    assert differences(scores(gpu), scores(cpu)) == []


@pytest.mark.bf16
@pytest.mark.parametrize("name", NAMES)
def test_a_step_never_waits_for_the_device(sim, name):
    for rank in all_ranks(sim[1], name):
        assert rank.calls["step"] > 0
        waits = rank.faults("step")
        if "bitwise" in name:  # it asks once per step whether all sums were exact
            assert [(kind, number) for kind, *_, number in waits] == [("sync", rank.calls["step"])]
        else:
            assert waits == []
        rebuilt = [number for *_, number in rank.faults(BEFORE_FORWARD)]
        assert len(rebuilt) in {0, 4}, (
            "DDP rebuilds its buckets once, in the second step, and copies its lists for that"
        )
        assert set(rebuilt) <= {1}


@pytest.mark.parametrize(("fault", "kind"), PLANTED.items())
def test_a_planted_fault_is_found(sim, fault, kind):
    (rank,) = sim[1][fault]
    found = rank.faults("step")
    assert kind in {entry[0] for entry in found}
    assert rank.code == (1 if kind in {"mixed", "host"} else 0), "CUDA refuses some faults, and hides others"


def test_a_step_has_few_operations_more_than_a_bare_loop(sim):
    ours, bare = (sim[1][name][0].operations_per_step for name in ("resnet20", BARE))
    assert bare > 200
    assert ours <= 1.04 * bare


@pytest.mark.slow
def test_ranks_that_share_a_gpu_are_refused(sim):
    for rank in sim[1]["one GPU for two ranks"]:
        assert rank.code == 2
        assert "ranks 0,1 use the same GPU" in rank.output


@pytest.mark.slow
def test_nccl_connects_at_once(sim):
    for rank in sim[1]["ddp"]:
        assert "init_process_group(nccl) with device_id" in rank.notes()
        assert rank.notes().count("communicator of 2 ranks") == 1


def test_an_evaluation_and_an_interval_wait_for_the_device_only_when_they_read(sim):
    (rank,) = sim[1]["evaluate and save every two steps"]
    reads = [entry[2:] for entry in rank.faults("evaluate")]
    assert {line.partition(":")[0] for _, line, _ in reads} == {"engine/scoring.py"}
    assert {number for _, _, number in reads} == {rank.calls["evaluate"]} == {3}, reads
    assert {(text, line.partition(":")[0]) for _, _, text, line, _ in rank.faults("after step")} == {
        ("tolist", "engine/scoring.py")
    }


def test_out_of_memory_names_the_setting_to_change(sim):
    (rank,) = sim[1]["out of memory"]
    assert rank.code == 2
    assert "the GPU ran out of memory with 64 samples per micro-batch: Tried to allocate 2.00 GiB" in rank.output
    assert "hint: use --accumulate 2 or --precision bf16 or more GPUs" in rank.output


def test_a_model_that_computes_on_a_gpu_only_trains_there(sim):
    (on_gpu,), (on_cpu,) = sim[1]["gpu only"], sim[1]["gpu only-cpu"]
    assert (on_gpu.code, on_cpu.code) == (0, 2)
    assert "this kernel is for GPUs only" in on_cpu.output


def test_the_header_and_the_environment_describe_the_gpu(sim):
    folder, results = sim
    assert "fp32, channels-last, TF32, cuDNN benchmark on" in results["single"][0].output
    assert "no TF32, cuDNN benchmark off" in results["bitwise"][0].output
    (environment,) = json.loads((folder / "runs" / "single" / "001" / "environment.json").read_text())
    assert environment["gpu"].keys() == {"device", "CUDA", "cuDNN", "NCCL", "TF32"}
