"""Every way to start ranks on one machine ends in the same run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import paceline
from lab.environment import child_environment
from paceline.core.config import Config
from paceline.records.entries import State
from paceline.records.folder import RunFolder, find_run
from paceline.records.reader import read_environments, read_metrics
from tests.conftest import LONGEST
from tests.launching.conftest import SETTINGS, finish, free_port, only_run
from tests.states import differences, final_state

SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> float:
    """Return the test loss of one process, which every way of starting two must reach."""
    settings = {"model": "mlp", "epochs": 2, "lr": 0.02, "track": (), "threads": 1}
    result = paceline.train(Config(runs_dir=tmp_path_factory.mktemp("alone"), **settings))
    assert result.test is not None
    return result.test.loss


def loss_on_test(folder: RunFolder) -> float:
    return next(r["loss"] for r in read_metrics(folder) if r["kind"] == "eval" and r["split"] == "test")


def test_every_started_rank_has_a_distinct_rank_and_the_result_is_that_of_one_process(start, reference):
    text = finish([start("train", *SETTINGS, "--nproc", "2")])[0]
    assert "2 ranks, started by torchrun, mode ddp" in text
    assert "128 samples/step = 2 ranks × 64" in text
    assert loss_on_test(only_run()) == pytest.approx(reference, rel=1e-4)
    assert "2 ranks × 1 thread of" in text
    assert read_environments(only_run())[0]["launcher"] == "torchrun"
    files = [json.loads(only_run().rank(rank).read_text()) for rank in (0, 1)]
    assert [(file["rank"], file["state"]) for file in files] == [(0, "FINISHED"), (1, "FINISHED")]
    assert len({os.getpid(), *(file["pid"] for file in files)}) == 3


@pytest.mark.long
def test_torchrun_starts_the_module(elsewhere, reference):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "paceline"]
    subprocess.run([*command, "train", *SETTINGS], env=child_environment(), check=True, timeout=LONGEST)
    assert loss_on_test(only_run()) == pytest.approx(reference, rel=1e-4)


@pytest.mark.slow
def test_bitwise_ranks_end_with_the_bits_of_one_process_whatever_threads_are_offered(start):
    words = ["--model", "cnn", "--steps", "6", "--lr", "0.02", "--track", "none", "--exact", "bitwise"]
    finish([start("train", *words, "--name", "one", env=child_environment(OMP_NUM_THREADS="2"))])
    text = finish([start("train", *words, "--name", "three", "--nproc", "3")])[0]
    assert "the same bits at every world size from 1 to 4, with 1 thread per rank" in text
    one, three = (final_state(Path("runs") / name / "001") for name in ("one", "three"))
    assert differences(one, three) == []


@pytest.mark.slow
def test_launchers_of_two_nodes_connect(start, reference):
    words = [*SETTINGS, "--nnodes", "2", "--rendezvous", f"127.0.0.1:{free_port()}", "--timeout", "60"]
    texts = finish([start("train", *words, "--node-rank", str(node)) for node in (1, 0)])
    assert "2 ranks, started by torchrun, mode ddp" in texts[1]
    assert loss_on_test(only_run()) == pytest.approx(reference, rel=1e-4)


@pytest.mark.parametrize("kind", ["tcp", pytest.param("file", marks=SLOW), pytest.param("env", marks=SLOW)])
def test_ranks_started_by_hand_connect(start, elsewhere, reference, kind):
    port = free_port()
    method = {"tcp": f"tcp://127.0.0.1:{port}", "file": f"file://{elsewhere}/meet", "env": "env://"}[kind]
    options = {"env": child_environment(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))} if kind == "env" else {}
    words = [*SETTINGS, "--world-size", "2", "--init-method", method]
    finish([start("train", *words, "--rank", str(rank), **options) for rank in (1, 0)])
    assert loss_on_test(only_run()) == pytest.approx(reference, rel=1e-4)
    assert read_environments(only_run())[0]["launcher"] == "flags"


@pytest.mark.long
def test_a_rendezvous_folder_of_a_killed_attempt_is_harmless(start, elsewhere, reference, wait_until):
    words = [*SETTINGS, "--world-size", "2", "--init-method", f"file://{elsewhere}/meet"]
    rendezvous = elsewhere / "meet.rendezvous"
    lonely = start("train", *words, "--rank", "1")
    wait_until((rendezvous / "hello-1").exists, "rank 1 says hello")
    lonely.kill()
    lonely.wait(LONGEST)
    (rendezvous / "go").write_text("0123456789abcdef")
    (rendezvous / "answer-1").write_text("fedcba9876543210 0123456789abcdef")
    finish([start("train", *words, "--rank", str(rank)) for rank in (0, 1)])
    assert loss_on_test(only_run()) == pytest.approx(reference, rel=1e-4)
    assert not rendezvous.exists()


@pytest.mark.slow
def test_launch_from_python_returns_the_leads_result(elsewhere, reference, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", child_environment()["PYTHONPATH"])
    config = Config(model="mlp", epochs=2, lr=0.02, track=(), threads=1, runs_dir=elsewhere / "runs")
    result = paceline.launch(config, nproc=2)
    assert result.state is State.FINISHED
    assert result.test is not None
    assert result.test.loss == pytest.approx(reference, rel=1e-4)


def test_threads_of_one_process_give_the_result_of_one_thread(start, reference):
    text = finish([start("train", *SETTINGS, "--mode", "dp", "--nproc", "2")])[0]
    assert "mode dp (requested, 2 devices in one process)" in text
    assert loss_on_test(only_run()) == pytest.approx(reference, rel=1e-4)


@pytest.mark.parametrize(
    ("names", "launcher"),
    [
        pytest.param(
            "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE",
            "mpirun",
            marks=SLOW,
        ),
        pytest.param(
            "MV2_COMM_WORLD_RANK MV2_COMM_WORLD_SIZE MV2_COMM_WORLD_LOCAL_RANK MV2_COMM_WORLD_LOCAL_SIZE",
            "MVAPICH",
            marks=pytest.mark.long,
        ),
        pytest.param("FLUX_TASK_RANK FLUX_JOB_SIZE FLUX_TASK_LOCAL_ID", "Flux", marks=pytest.mark.long),
        ("RANK WORLD_SIZE", "environment"),
    ],
)
def test_the_variables_of_a_launcher_make_ranks(start, reference, names, launcher):
    port = str(free_port())

    def of_rank(rank: int) -> dict[str, str]:
        variables = dict(zip(names.split(), map(str, (rank, 2, rank, 2)), strict=False))
        return child_environment(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, **variables)

    finish([start("train", *SETTINGS, env=of_rank(rank)) for rank in (0, 1)])
    assert loss_on_test(only_run()) == pytest.approx(reference, rel=1e-4)
    (environment,) = read_environments(only_run())
    assert (environment["world_size"], environment["launcher"]) == (2, launcher)


@pytest.mark.slow
@pytest.mark.parametrize(("words", "world_size"), [((), 2), pytest.param(("--nproc", "2"), 4, marks=pytest.mark.long)])
def test_the_nodes_of_kubeflow_train_together(start, reference, words, world_size):
    port = str(free_port())

    def of_node(rank: int) -> dict[str, str]:
        place = {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": port}
        return child_environment(PET_NNODES="2", PET_NPROC_PER_NODE="auto", PET_NODE_RANK=str(rank), **place)

    finish([start("train", *SETTINGS, *words, env=of_node(rank)) for rank in (0, 1)])
    assert loss_on_test(only_run()) == pytest.approx(reference, rel=1e-4)
    assert read_environments(only_run())[0]["world_size"] == world_size


@pytest.mark.long
def test_the_nodes_of_skypilot_train_together(start, reference):
    port = str(free_port())

    def of_node(rank: int) -> dict[str, str]:
        place = {"SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.1", "MASTER_PORT": port}
        return child_environment(SKYPILOT_NUM_NODES="2", SKYPILOT_NODE_RANK=str(rank), **place)

    finish([start("train", *SETTINGS, env=of_node(rank)) for rank in (0, 1)])
    assert loss_on_test(only_run()) == pytest.approx(reference, rel=1e-4)
    assert read_environments(only_run())[0]["world_size"] == 2


@pytest.mark.long
def test_a_lone_task_starts_ranks_that_ignore_options_for_another_torchrun(start, reference):
    lone = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
    environ = child_environment(PET_NNODES="2", PET_NPROC_PER_NODE="3", **lone)
    finish([start("train", *SETTINGS, "--nproc", "2", env=environ)])
    assert loss_on_test(only_run()) == pytest.approx(reference, rel=1e-4)
    assert read_environments(only_run())[0]["world_size"] == 2


@pytest.mark.long
def test_two_launches_at_once_do_not_connect_to_each_other(start):
    finish([start("train", *SETTINGS, "--nproc", "2", "--name", name) for name in ("one", "other")])
    for name in ("one", "other"):
        folder = find_run(Path(name), Path("runs"))
        assert [json.loads(folder.rank(rank).read_text())["state"] for rank in (0, 1)] == ["FINISHED", "FINISHED"]
