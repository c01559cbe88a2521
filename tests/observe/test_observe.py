"""`paceline observe` on a script that knows nothing of Paceline, as real processes."""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lab.environment import child_environment
from paceline.core.load import load_config
from paceline.explain.bottlenecks import find_bottlenecks
from paceline.explain.time_split import REMAINDER, split_time
from paceline.predict.cases import run_case
from paceline.predict.predict_options import BatchOptions, ClusterOptions
from paceline.predict.prediction import predict
from paceline.records.folder import RunFolder
from paceline.records.phases import STEP_PHASES, read_phases
from paceline.records.reader import read_metrics, summarise
from tests.conftest import LONGEST

SCRIPT = str(Path(__file__).parent / "scripts" / "plain.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
ALONE = [sys.executable, SCRIPT]


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def run(folder: Path, command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    environ = child_environment(OMP_NUM_THREADS="1", **variables)
    return subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=LONGEST, check=False
    )


def observe(folder: Path, command: list[str], **variables: str) -> RunFolder:
    done = run(folder, [sys.executable, "-m", "paceline", "observe", "--run", "it", "--", *command], **variables)
    assert done.returncode == 0, done.stderr
    return RunFolder(folder / "runs" / "it" / "001")


def check_times(folder: RunFolder, *, steps: int, world_size: int, global_batch: int) -> None:
    split = split_time(read_phases(folder))
    assert split is not None
    assert (split.total.steps, split.world_size, split.facts.global_batch) == (steps, world_size, global_batch)
    in_steps = sum(split.steady_state.phases[phase] for phase in STEP_PHASES)
    rest = split.steady_state.phases[REMAINDER]
    assert (rest <= 0.05 * (in_steps + rest)).all(), "phases cover at least 95% of the steps"
    assert (split.total.phases["evaluate"] > 0).all()
    assert (split.total.phases["forward"] > 0).all()
    summary = summarise(folder)
    assert (summary.state, summary.step) == ("FINISHED", steps)


def test_a_script_alone_gives_a_run_folder_and_the_same_weights(tmp_path):
    plain = run(tmp_path / "plain", ALONE)
    folder = observe(tmp_path / "observed", ALONE)
    check_times(folder, steps=120, world_size=1, global_batch=8)
    observed = (tmp_path / "observed" / "weights.pt").read_bytes()
    assert observed == (tmp_path / "plain" / "weights.pt").read_bytes()
    assert plain.stdout.count("epoch") == 3
    assert not folder.journals.exists()


def test_ranks_of_torchrun_give_phases_of_every_rank(tmp_path):
    folder = observe(tmp_path, [*TORCHRUN, SCRIPT], PLANT="slow rank")
    check_times(folder, steps=60, world_size=2, global_batch=16)
    split = split_time(read_phases(folder))
    assert split is not None
    straggler = split.steady_state.per_step("straggler")
    assert straggler[0] > 0.02 > straggler[1], "rank 0 waits for rank 1, which sleeps 30 ms in every step"
    config = load_config(folder.config)
    assert (config.model, config.mode, config.lr) == ("sequential", "ddp", 0.05)
    assert find_bottlenecks(split, config)[0].kind == "slow rank"
    records = list(read_metrics(folder))
    assert [record["step"] for record in records] == [10, 20, 30, 40, 50, 60]
    assert [record["epoch"] for record in records] == [1, 1, 2, 2, 3, 3]
    assert 0 < records[-1]["loss"] < records[0]["loss"] < 1
    case, source = run_case(folder, ClusterOptions(ranks=(2, 4)), BatchOptions())
    assert "estimate from exposed communication" in source
    measured = float(split.steady_state.step.mean())
    assert 0.5 * measured < predict(case, 2).step.value < 1.5 * measured


CLOSURE = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def closure():
    optimizer.zero_grad()
    loss = model(torch.ones(2, 4)).square().mean()
    loss.backward()
    return loss
for _ in range(20):
    optimizer.step(closure)
"""


def test_steps_whose_closure_runs_the_backward_pass_are_counted(tmp_path):
    folder = observe(tmp_path, [sys.executable, "-c", CLOSURE])
    assert summarise(folder).step == 20


@pytest.mark.long
def test_spawned_ranks_give_the_same_weights_as_unobserved_ones(tmp_path):
    spawn = [sys.executable, SCRIPT]
    run(tmp_path / "plain", [*spawn, free_port()])
    folder = observe(tmp_path / "observed", [*spawn, free_port()])
    check_times(folder, steps=60, world_size=2, global_batch=16)
    weights = [(tmp_path / name / "weights.pt").read_bytes() for name in ("plain", "observed")]
    assert weights[0] == weights[1]


@pytest.mark.long
def test_a_slow_loader_is_named(tmp_path):
    folder = observe(tmp_path, [*TORCHRUN, SCRIPT], PLANT="slow loader")
    split = split_time(read_phases(folder))
    assert split is not None
    assert find_bottlenecks(split, load_config(folder.config))[0].kind == "data"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)", 7),
        ("import os; print('out', flush=True); os.write(2, b'err'); os._exit(3)", 3),
        ("import os, sys; print('out', flush=True); print('err', file=sys.stderr); os.kill(os.getpid(), 9)", 137),
    ],
)
def test_output_and_exit_code_are_those_of_the_command(tmp_path, code, expected):
    done = run(tmp_path, [sys.executable, "-m", "paceline", "observe", "--", sys.executable, "-c", code])
    assert (done.returncode, done.stdout) == (expected, "out\n")
    assert "err" in done.stderr
    assert "no training step was seen" in done.stderr
    (state,) = tmp_path.glob("runs/*/001/ranks/rank-000.json")
    assert json.loads(state.read_text())["state"] == ("STOPPED" if expected > 128 else "FAILED")


WAITS = """
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: (print('USR1', flush=True), sys.exit(5)))
print('ready', flush=True)
time.sleep(100)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGUSR1, 5), (signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_reach_the_command(start, number, code):
    process = start("observe", "--", sys.executable, "-c", WAITS)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    output, _ = process.communicate(timeout=LONGEST)
    assert process.returncode == code
    assert ("USR1" in output) == (number == signal.SIGUSR1)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ([], "there is no command to run"),
        (["nosuchcommand"], "there is no command nosuchcommand"),
        (["python", "missing.py"], "there is no script missing.py"),
    ],
)
def test_a_command_that_cannot_start_is_refused(elsewhere, capsys, command, message):
    from paceline.cli import run as run_cli

    assert run_cli(["observe", "--", *command], {}) == 2
    assert message in capsys.readouterr().err
    assert not list(elsewhere.iterdir())


def test_torchrun_is_found_beside_the_python_of_an_environment_that_is_not_activated(monkeypatch, tmp_path):
    from paceline.core.errors import ConfigError
    from paceline.observe.attachment import Attachment, check_command

    tool = tmp_path / "bin" / "torchrun-of-this-environment"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    with pytest.raises(ConfigError, match="there is no command torchrun-of"):
        check_command([tool.name])
    monkeypatch.setattr(sys, "executable", str(tool.parent / "python"))
    check_command([tool.name])
    path = Attachment(journals=tmp_path).environment({"PATH": "/first"})["PATH"]
    assert path == f"/first:{tool.parent}"
