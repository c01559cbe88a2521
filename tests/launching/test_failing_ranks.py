"""A rank that fails, dies or hangs, and a job that is stopped: the cause is named and no process is left."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lab.environment import child_environment
from paceline.records.entries import State
from paceline.records.folder import RunFolder
from paceline.records.reader import read_environments, run_state
from tests.conftest import LONGEST
from tests.launching.conftest import free_port, no_rank_left, only_run, processes_in

PLACE = "torchrun's rendezvous"


def test_a_failing_rank_is_the_first_thing_one_reads(start, faulty, elsewhere):
    process = start("train", "--model", faulty, "--nproc", "2", env=child_environment(TEST_FAULT="raise"))
    _, errors = process.communicate(timeout=LONGEST)
    assert process.returncode == 1
    first, *rest = errors.splitlines()
    assert first.startswith("paceline: rank 1 on ")
    assert first.endswith("(after step 14): ValueError: a fault that was planted")
    assert rest[0].endswith('in forward: raise ValueError("a fault that was planted")')
    assert "faulty.py, line" in rest[0]
    assert "src/paceline" not in errors, "no frames but those of the user"
    assert "--verbose shows the whole traceback" in errors
    assert any(line.startswith("  then rank 0 on ") for line in rest)
    assert no_rank_left(elsewhere)
    assert run_state(only_run()) == State.FAILED


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise", r"paceline: rank 1 on \S+ failed after step 14: ValueError: a fault that was planted\n"),
        ("SIGKILL", r"paceline: rank 1 on \S+ \(process \d+\) died after step \d+ without reporting an error \(killed"),
    ],
)
def test_a_rank_that_loses_another_reports_which_and_why(start, faulty, elsewhere, fault, message):
    words = ["--model", faulty, "--world-size", "2", "--init-method", f"file://{elsewhere}/meet", "--track", "none"]
    ranks = [
        start("train", *words, "--rank", str(rank), env=child_environment(RANK=str(rank), TEST_FAULT=fault))
        for rank in (0, 1)
    ]
    (_, first), _ = (process.communicate(timeout=LONGEST) for process in ranks)
    assert ranks[0].returncode == 1
    first = re.sub(r"\Apaceline: rank 0 waits up to .*\n", "", first)  # where rank 1 starts slowly
    assert re.match(message, first), first
    assert "Traceback" not in first
    assert "gloo" not in first


def test_a_killed_rank_is_named(start, faulty, elsewhere):
    process = start("train", "--model", faulty, "--nproc", "2", env=child_environment(TEST_FAULT="SIGKILL"))
    _, errors = process.communicate(timeout=LONGEST)
    assert process.returncode == 1
    assert "was killed by SIGKILL" in errors.splitlines()[0]
    assert errors.startswith("paceline: rank 1 on ")
    assert no_rank_left(elsewhere)


@pytest.mark.slow
def test_a_silent_rank_is_named_and_all_ranks_exit(start, faulty, elsewhere):
    environ = child_environment(TEST_FAULT="SIGSTOP")
    process = start("train", "--model", faulty, "--nproc", "2", "--timeout", "7", env=environ)
    _, errors = process.communicate(timeout=LONGEST)
    assert process.returncode == 1
    assert "no answer within 7 s: rank 0 in gradient synchronisation at step 15; rank 1 silent since step" in errors
    assert no_rank_left(elsewhere)


@pytest.mark.slow
def test_a_failed_job_starts_again_from_its_last_checkpoint(start, faulty, elsewhere):
    words = ["--model", faulty, "--epochs", "2", "--nproc", "2", "--max-restarts", "2", "--save-every", "4 steps"]
    process = start("train", *words, "--track", "none", env=child_environment(TEST_FAULT="SIGKILL"))
    output, errors = process.communicate(timeout=LONGEST)
    assert process.returncode == 0, errors
    assert "resumed after step 12 of 22" in output
    assert run_state(only_run()) == State.FINISHED


@pytest.mark.long
def test_a_restart_never_resumes_the_run_of_an_earlier_launch_of_the_same_name(faulty, elsewhere):
    rendezvous = ["--nnodes=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=again"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", *rendezvous, "--nproc-per-node=2", "--max-restarts=1"]
    words = ["-m", "paceline", "train", "--model", faulty, "--steps", "15", "--save-every", "4 steps", "--track=none"]
    for fault in ("raise", "early"):
        environ = child_environment(TEST_FAULT=fault, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
        answer = subprocess.run(
            [*torchrun, *words], env=environ, capture_output=True, text=True, check=False, timeout=LONGEST
        )
        assert answer.returncode == 0, answer.stderr
    own = [len(read_environments(RunFolder(path))) for path in sorted(Path("runs").glob("*/*"))]
    assert own == [2, 1], "the first launch goes on with its own run, the second begins one"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_signal_to_the_launcher_ends_its_own_ranks_and_no_namesake(start, elsewhere, wait_until, number):
    asleep = [sys.executable, "-c", "import time; time.sleep(1000)", "-m", "paceline", "train", "--nproc", "2"]
    namesake = subprocess.Popen(asleep, cwd="/")
    process = start("train", "--model", "cnn", "--epochs", "5000", "--nproc", "2", "--track", "none")
    wait_until(lambda: list(Path("runs").glob("*/*/checkpoints/last")), "a first checkpoint")
    process.send_signal(number)
    output, errors = process.communicate(timeout=LONGEST)
    assert process.returncode == 128 + number, errors
    assert "to resume: paceline train --resume runs/digits-cnn/001" in output
    assert errors == ""
    assert run_state(only_run()) == State.STOPPED
    assert no_rank_left(elsewhere)
    assert namesake.poll() is None
    namesake.kill()
    namesake.wait()


@pytest.mark.parametrize("moment", ["agent", "rank"])
def test_a_signal_before_training_begins_is_answered_with_one_line(start, elsewhere, wait_until, moment):
    process = start("train", "--nproc", "2")
    is_agent = lambda args: "paceline.launching.agent" in args  # noqa: E731
    is_there = {"agent": is_agent, "rank": lambda args: "--config" in args and not is_agent(args)}[moment]
    wait_until(lambda: any(map(is_there, processes_in(elsewhere))), moment)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=LONGEST)
    assert process.returncode == 130, errors
    early = {"paceline: interrupted\n", "paceline: stopped while starting the ranks\n"}
    later = {"paceline: stopped before the ranks could save a checkpoint\n"}
    later |= {f"paceline: stopped while rank {rank} was waiting for 1 other rank at {PLACE}\n" for rank in (0, 1)}
    assert errors in (later if moment == "rank" else early | later)
    assert no_rank_left(elsewhere)


@pytest.mark.slow
def test_a_launcher_that_is_killed_takes_its_ranks_with_it(start, elsewhere, wait_until):
    process = start("train", "--model", "cnn", "--epochs", "5000", "--nproc", "2", "--track", "none")
    wait_until(lambda: list(Path("runs").glob("*/*/checkpoints/last")), "a first checkpoint")
    process.kill()
    process.communicate(timeout=LONGEST)
    wait_until(lambda: no_rank_left(elsewhere), "all ranks gone")
