"""Every way to start ranks on one machine ends in the same run, and a failing start says why."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import paceline
from paceline.core.config import Config
from paceline.core.errors import ConfigError
from paceline.core.start import Start
from paceline.core.world import World
from paceline.launching.plan import plan_launch
from paceline.records.entries import State
from paceline.records.folder import RunFolder, find_run
from paceline.records.reader import read_environments, read_metrics, run_state
from tests.conftest import LONGEST, child_environment
from tests.engine.conftest import differences, final_state

SETTINGS = ["--model", "mlp", "--epochs", "2", "--lr", "0.02", "--track", "none", "--threads", "1"]

FAULTY = '''
import os, signal, torch

class Net(torch.nn.Module):
    """Fails on rank 1 at its fifth step, in the way that the environment asks for, in the first attempt only."""

    def __init__(self, num_classes):
        super().__init__()
        self.linear, self.steps = torch.nn.Linear(64, num_classes), 0
        if os.environ.get("TEST_FAULT") == "early" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            raise ValueError("a fault before there is a run")

    def forward(self, images):
        self.steps += self.training
        first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
        if self.steps == 15 and os.environ.get("RANK") == "1" and first:
            fault = os.environ.get("TEST_FAULT")
            if fault == "raise":
                raise ValueError("a fault that was planted")
            if fault is not None:
                os.kill(os.getpid(), getattr(signal, fault))
        return self.linear(images.flatten(1))
'''


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> float:
    """Return the test loss of one process, which every way of starting two must reach."""
    settings = {"model": "mlp", "epochs": 2, "lr": 0.02, "track": (), "threads": 1}
    result = paceline.train(Config(runs_dir=tmp_path_factory.mktemp("alone"), **settings))
    assert result.test is not None
    return result.test.loss


@pytest.fixture
def faulty(elsewhere) -> str:
    (elsewhere / "faulty.py").write_text(FAULTY)
    return "faulty.py:Net"


def loss_on_test(folder: RunFolder) -> float:
    return next(r["loss"] for r in read_metrics(folder) if r["kind"] == "eval" and r["split"] == "test")


def only_run() -> RunFolder:
    runs = list(Path("runs").glob("*/*"))
    assert len(runs) == 1, "all ranks share one folder"
    return RunFolder(runs[0])


def finish(processes: list[subprocess.Popen]) -> list[str]:
    outputs = [process.communicate(timeout=LONGEST) for process in processes]
    texts = [output + errors for output, errors in outputs]
    assert [process.returncode for process in processes] == [0] * len(processes), "\n".join(texts)
    return texts


def processes_in(folder: Path) -> list[list[str]]:
    """Return the words of every process of ours that works in this folder."""
    found = [process.info for process in psutil.process_iter(["cmdline", "cwd"])]
    words = [info["cmdline"] or [] for info in found if info["cwd"] == str(folder)]
    return [line for line in words if any(word.startswith("paceline") for word in line)]


def no_rank_left(folder: Path) -> bool:
    return not processes_in(folder)


def test_every_rank_that_is_started_has_a_number_of_its_own_and_reaches_what_one_process_reaches(start, reference):
    text = finish([start("train", *SETTINGS, "--nproc", "2")])[0]
    assert "2 ranks, told by torchrun, mode ddp" in text
    assert "128 images a step = 2 ranks × 64" in text
    assert loss_on_test(only_run()) == pytest.approx(reference, rel=1e-4)
    assert "2 ranks × 1 thread of" in text
    assert read_environments(only_run())[0]["told_by"] == "torchrun"
    files = [json.loads(only_run().rank(rank).read_text()) for rank in (0, 1)]
    assert [(file["rank"], file["state"]) for file in files] == [(0, "FINISHED"), (1, "FINISHED")]
    assert len({os.getpid(), *(file["pid"] for file in files)}) == 3


def test_torchrun_starts_the_module(elsewhere, reference):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "paceline"]
    subprocess.run([*command, "train", *SETTINGS], env=child_environment(), check=True, timeout=LONGEST)
    assert loss_on_test(only_run()) == pytest.approx(reference, rel=1e-4)


def test_bitwise_ranks_end_with_the_bits_of_one_process_whatever_threads_are_offered(start):
    words = ["--model", "cnn", "--steps", "6", "--lr", "0.02", "--track", "none", "--exact", "bitwise"]
    finish([start("train", *words, "--run", "one", env=child_environment(OMP_NUM_THREADS="2"))])
    text = finish([start("train", *words, "--run", "three", "--nproc", "3")])[0]
    assert "the same bits at every world size from 1 to 8, with 1 thread a rank" in text
    one, three = (final_state(Path("runs") / name / "001") for name in ("one", "three"))
    assert differences(one, three) == []


@pytest.mark.parametrize("kind", ["tcp", "file", "env"])
def test_ranks_started_by_hand_meet(start, elsewhere, reference, kind):
    port = free_port()
    method = {"tcp": f"tcp://127.0.0.1:{port}", "file": f"file://{elsewhere}/meet", "env": "env://"}[kind]
    options = {"env": child_environment(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))} if kind == "env" else {}
    words = [*SETTINGS, "--world-size", "2", "--init-method", method]
    finish([start("train", *words, "--rank", str(rank), **options) for rank in (1, 0)])
    assert loss_on_test(only_run()) == pytest.approx(reference, rel=1e-4)
    assert read_environments(only_run())[0]["told_by"] == "flags"


def test_a_meeting_folder_of_a_killed_attempt_does_no_harm(start, elsewhere, reference, wait_until):
    words = [*SETTINGS, "--world-size", "2", "--init-method", f"file://{elsewhere}/meet"]
    meeting = elsewhere / "meet.meeting"
    lonely = start("train", *words, "--rank", "1")
    wait_until((meeting / "hello-1").exists, "rank 1 says hello")
    lonely.kill()
    lonely.wait(LONGEST)
    (meeting / "go").write_text("0123456789abcdef")
    (meeting / "answer-1").write_text("fedcba9876543210 0123456789abcdef")
    finish([start("train", *words, "--rank", str(rank)) for rank in (0, 1)])
    assert loss_on_test(only_run()) == pytest.approx(reference, rel=1e-4)
    assert not meeting.exists()


def test_launch_from_python_returns_the_leads_result(elsewhere, reference, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", child_environment()["PYTHONPATH"])
    config = Config(model="mlp", epochs=2, lr=0.02, track=(), threads=1, runs_dir=elsewhere / "runs")
    result = paceline.launch(config, nproc=2)
    assert result.state is State.FINISHED
    assert result.test is not None
    assert result.test.loss == pytest.approx(reference, rel=1e-4)


def test_threads_of_one_process_reach_what_one_thread_reaches(start, reference):
    text = finish([start("train", *SETTINGS, "--mode", "dp", "--nproc", "2")])[0]
    assert "mode dp (asked for, over 2 devices of one process)" in text
    assert loss_on_test(only_run()) == pytest.approx(reference, rel=1e-4)


def test_mpirun_variables_make_ranks(start, reference):
    port = str(free_port())

    def of_rank(rank: int) -> dict[str, str]:
        names = {"RANK": rank, "SIZE": 2, "LOCAL_RANK": rank, "LOCAL_SIZE": 2}
        variables = {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in names.items()}
        return child_environment(MASTER_PORT=port, **variables)

    finish([start("train", *SETTINGS, env=of_rank(rank)) for rank in (0, 1)])
    assert loss_on_test(only_run()) == pytest.approx(reference, rel=1e-4)
    assert read_environments(only_run())[0]["told_by"] == "mpirun"


def test_a_failing_rank_is_the_first_thing_one_reads(start, faulty, elsewhere):
    process = start("train", "--model", faulty, "--nproc", "2", env=child_environment(TEST_FAULT="raise"))
    _, errors = process.communicate(timeout=LONGEST)
    assert process.returncode == 1
    first, *rest = errors.splitlines()
    assert first.startswith("paceline: rank 1 on ")
    assert first.endswith("(after step 14): ValueError: a fault that was planted")
    assert any('faulty.py", line' in line for line in rest), "the traceback leads to the user's file"
    assert any(line.startswith("  then rank 0 on ") for line in rest)
    assert no_rank_left(elsewhere)
    assert run_state(only_run()) == State.FAILED


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise", r"paceline: rank 1 on \S+ failed after step 14: ValueError: a fault that was planted\n"),
        ("SIGKILL", r"paceline: rank 1 on \S+ \(process \d+\) has gone without a word after step \d+; killed"),
    ],
)
def test_a_rank_that_loses_another_says_which_and_why(start, faulty, elsewhere, fault, message):
    words = ["--model", faulty, "--world-size", "2", "--init-method", f"file://{elsewhere}/meet", "--track", "none"]
    ranks = [
        start("train", *words, "--rank", str(rank), env=child_environment(RANK=str(rank), TEST_FAULT=fault))
        for rank in (0, 1)
    ]
    (_, first), _ = (process.communicate(timeout=LONGEST) for process in ranks)
    assert ranks[0].returncode == 1
    assert re.match(message, first), first
    assert "Traceback" not in first
    assert "gloo" not in first


def test_a_killed_rank_is_named(start, faulty, elsewhere):
    process = start("train", "--model", faulty, "--nproc", "2", env=child_environment(TEST_FAULT="SIGKILL"))
    _, errors = process.communicate(timeout=LONGEST)
    assert process.returncode == 1
    assert "was ended by SIGKILL" in errors.splitlines()[0]
    assert errors.startswith("paceline: rank 1 on ")
    assert no_rank_left(elsewhere)


def test_a_silent_rank_is_called_and_everyone_goes(start, faulty, elsewhere):
    environ = child_environment(TEST_FAULT="SIGSTOP")
    process = start("train", "--model", faulty, "--nproc", "2", "--timeout", "7", env=environ)
    _, errors = process.communicate(timeout=LONGEST)
    assert process.returncode == 1
    assert "no answer within 7 s: rank 0 in the exchange of gradients at step 15; rank 1 silent since step" in errors
    assert no_rank_left(elsewhere)


def test_a_failed_job_starts_again_from_its_last_checkpoint(start, faulty, elsewhere):
    words = ["--model", faulty, "--epochs", "2", "--nproc", "2", "--max-restarts", "2", "--save-every", "4 steps"]
    process = start("train", *words, "--track", "none", env=child_environment(TEST_FAULT="SIGKILL"))
    output, errors = process.communicate(timeout=LONGEST)
    assert process.returncode == 0, errors
    assert "resumed after step 12 of 22" in output
    assert run_state(only_run()) == State.FINISHED


def test_a_restart_never_goes_on_with_the_run_of_an_earlier_launch_of_the_same_name(faulty, elsewhere):
    meeting = ["--nnodes=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=again"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", *meeting, "--nproc-per-node=2", "--max-restarts=1"]
    words = ["-m", "paceline", "train", "--model", faulty, "--steps", "15", "--save-every", "4 steps", "--track=none"]
    for fault in ("raise", "early"):
        environ = child_environment(TEST_FAULT=fault, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
        answer = subprocess.run(
            [*torchrun, *words], env=environ, capture_output=True, text=True, check=False, timeout=LONGEST
        )
        assert answer.returncode == 0, answer.stderr
    own = [len(read_environments(RunFolder(path))) for path in sorted(Path("runs").glob("*/*"))]
    assert own == [2, 1], "the first launch goes on with its own run, the second begins one"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_launcher_ends_its_own_ranks_and_no_namesake(start, elsewhere, wait_until, number):
    asleep = [sys.executable, "-c", "import time; time.sleep(1000)", "-m", "paceline", "train", "--nproc", "2"]
    namesake = subprocess.Popen(asleep, cwd="/")
    process = start("train", "--model", "cnn", "--epochs", "5000", "--nproc", "2", "--track", "none")
    wait_until(lambda: list(Path("runs").glob("*/*/checkpoints/last")), "a first checkpoint")
    process.send_signal(number)
    output, errors = process.communicate(timeout=LONGEST)
    assert process.returncode == 128 + number, errors
    assert "to go on: paceline train --resume runs/digits-cnn/001" in output
    assert errors == ""
    assert run_state(only_run()) == State.STOPPED
    assert no_rank_left(elsewhere)
    assert namesake.poll() is None
    namesake.kill()
    namesake.wait()


@pytest.mark.parametrize("moment", ["paceline.launching.agent", "--config"])
def test_a_signal_before_training_begins_is_answered_with_one_line(start, elsewhere, wait_until, moment):
    process = start("train", "--nproc", "2")
    wait_until(lambda: any(moment in words for words in processes_in(elsewhere)), "an agent, or a rank")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=LONGEST)
    assert process.returncode == 130
    early, later = "paceline: interrupted\n", "paceline: stopped before the ranks could save\n"
    assert errors in ([later] if moment == "--config" else [early, later])
    assert no_rank_left(elsewhere)


def test_a_launcher_that_is_killed_takes_its_ranks_with_it(start, elsewhere, wait_until):
    process = start("train", "--model", "cnn", "--epochs", "5000", "--nproc", "2", "--track", "none")
    wait_until(lambda: list(Path("runs").glob("*/*/checkpoints/last")), "a first checkpoint")
    process.kill()
    process.communicate(timeout=LONGEST)
    wait_until(lambda: no_rank_left(elsewhere), "all ranks gone")


def test_the_mistake_of_every_rank_is_said_once(start):
    process = start("train", "--model", "resnet2", "--nproc", "2")
    _, errors = process.communicate(timeout=LONGEST)
    assert process.returncode == 2
    assert errors.count("there is no model resnet2") == 1
    assert "did you mean resnet20?" in errors


def test_a_run_in_use_is_refused(start, wait_until):
    process = start("train", "--model", "cnn", "--epochs", "5000", "--nproc", "2", "--track", "none")
    wait_until(lambda: list(Path("runs").glob("*/*/checkpoints/last")), "a first checkpoint")
    second = start("train", "--resume", "runs/digits-cnn", "--nproc", "2")
    _, errors = second.communicate(timeout=LONGEST)
    assert second.returncode == 2
    assert "is in use by process" in errors
    process.terminate()
    process.communicate(timeout=LONGEST)


def test_a_taken_port_is_named(start):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = ["--rank", "0", "--world-size", "2", "--init-method", f"tcp://127.0.0.1:{port}"]
        by_hand = start("train", *SETTINGS, *words)
        of_node = start("train", *SETTINGS, "--nnodes", "2", "--node-rank", "0", "--rendezvous", f"127.0.0.1:{port}")
        for process in (by_hand, of_node):
            _, errors = process.communicate(timeout=LONGEST)
            assert process.returncode == 1
            assert f"port {port} on" in errors
            assert "is taken" in errors


def test_who_did_not_come_is_named_after_the_timeout(start, elsewhere):
    port = free_port()
    tcp = ["--world-size", "3", "--init-method", f"tcp://127.0.0.1:{port}", "--timeout", "4"]
    file = ["--world-size", "2", "--init-method", f"file://{elsewhere}/meet", "--timeout", "4"]
    lead, follower = start("train", "--rank", "0", *tcp), start("train", "--rank", "1", *file)
    lonely = start("train", "--nnodes", "2", "--node-rank", "1", "--rendezvous", f"127.0.0.1:{free_port()}",
                   "--timeout", "3")  # fmt: skip
    expected = [
        f"tcp://127.0.0.1:{port}: waited 4 s for 3 ranks, and rank 1, 2 did not come",
        "waited 4 s for 2 ranks, and rank 0 did not come",
        "node 1 waited 3 s for node 0 at 127.0.0.1:",
    ]
    for process, message in zip((lead, follower, lonely), expected, strict=True):
        _, errors = process.communicate(timeout=LONGEST)
        assert process.returncode == 1
        assert message in errors


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"rank": 3, "world_size": 3}, "ranks go from 0 to 2"),
        ({"rank": 0}, "--rank is set, but not how many ranks there are"),
        ({"world_size": 2}, "--world-size is set, but not which rank this is"),
        ({"nnodes": "2"}, "needs to know where the nodes meet"),
        ({"nnodes": "4:2", "rendezvous": "a:1"}, "must be a number such as 2, or a range such as 1:4"),
        ({"nnodes": "2", "rendezvous": "somewhere"}, "must be HOST:PORT"),
        ({"nnodes": "2", "rendezvous": "a:1", "node_rank": 2}, "nodes go from 0 to 1"),
        ({"rank": 0, "world_size": 2, "init_method": "udp://x"}, "udp"),
        ({"rank": 0, "world_size": 2, "nproc": 2}, "use one or the other"),
    ],
)
def test_a_start_that_makes_no_sense_is_refused(words, message):
    with pytest.raises(ConfigError) as caught:
        Start(**words)
    assert message in f"{caught.value.message} {caught.value.hint}"


def test_more_ranks_than_gpus_are_refused():
    environ = {"CUDA_VISIBLE_DEVICES": "0,1"}
    with pytest.raises(ConfigError, match="--nproc 3 asks for more ranks than the 2 GPUs there are"):
        plan_launch(Config(), Start(nproc=3), World(), environ)
    plan = plan_launch(Config(), Start(), World(), environ)
    assert plan is not None
    assert plan.nproc == 2


def test_two_launches_at_once_do_not_meet_each_other(start):
    finish([start("train", *SETTINGS, "--nproc", "2", "--run", name) for name in ("one", "other")])
    for name in ("one", "other"):
        folder = find_run(Path(name), Path("runs"))
        assert [json.loads(folder.rank(rank).read_text())["state"] for rank in (0, 1)] == ["FINISHED", "FINISHED"]
