"""Elastic jobs: lost nodes, also the first one, nodes that return, and what the result owes to them: nothing."""

import re
import signal
import sys
import time

import pytest
import torch

import paceline
from lab.hosts import wait_for
from lab.runs import PACELINE, SMALL, run_below, weights
from paceline.core.config import Config
from paceline.core.setting_types import Interval
from paceline.records.folder import RunFolder
from paceline.records.reader import read_environments, read_metrics, read_rank, run_state

STEPS = 900
PORT = 29400
WORK = (
    "train", *SMALL, f"--steps={STEPS}", "--exact=bitwise", "--shards=8", "--save-every=50 steps",
    "--eval-every=450 steps", "--log-every=25",
)  # fmt: skip
OUTSIDE = f"10.77.0.254:{PORT}"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return the weights of one rank that nobody disturbed."""
    config = Config(
        model="mlp", threads=1, track=(), device="cpu", steps=STEPS, exact="bitwise", shards=8, log_every=1000,
        eval_every=Interval(450, "step"), runs_dir=tmp_path_factory.mktemp("undisturbed") / "runs",
    )  # fmt: skip
    return weights(RunFolder(paceline.train(config).folder))


def lead(folder) -> tuple | None:
    """Return what identifies the ranks that train: their number, the lead and where it is."""
    files = list(folder.glob("runs/*/*/config.toml"))
    state = read_rank(run_below(folder).rank(0)) if files else None
    return (state["world_size"], state["host"], state["pid"]) if state and state["state"] == "TRAINING" else None


def trains_with(folder, number: int, *, other_than=None) -> float:
    """Wait until this number of ranks trains, with another lead process, and return how long it took."""
    began = time.monotonic()
    wait_for(lambda: (now := lead(folder)) and now[0] == number and now != other_than, f"{number} ranks to train")
    return time.monotonic() - began


def step(folder) -> int:
    return max((record["step"] for record in read_metrics(run_below(folder))), default=0)


def check_end(folder, undisturbed) -> None:
    """Check that the run has finished with the bits of one rank, and has counted every step once."""
    run = run_below(folder)
    assert run_state(run) == "FINISHED"
    last = weights(run)
    assert last.keys() == undisturbed.keys()
    assert all(torch.equal(last[name], undisturbed[name]) for name in last)
    steps = [record["step"] for record in read_metrics(run) if record["kind"] == "step"]
    assert steps == sorted(set(steps))


@pytest.fixture
def node(on, tmp_path):
    """Return a function that starts a node of an elastic job."""
    return lambda host, *words: on(host, *PACELINE, *WORK, *words)


def test_a_lost_first_node_is_survived_and_taken_in_when_it_returns(hosts, on, node, tmp_path, undisturbed):
    store = on(0, *PACELINE, "rendezvous", OUTSIDE)
    words = ("--nnodes=2:3", f"--rendezvous={OUTSIDE}", "--max-restarts=3", "--timeout=90")
    wait_for(
        lambda: hosts.run(1, "sh", "-c", f"echo > /dev/tcp/10.77.0.254/{PORT}") and store.poll() is None, "the store"
    )
    nodes = [node(host, *words) for host in (1, 2, 3)]
    trains_with(tmp_path, 3)
    began = lead(tmp_path)
    assert began is not None
    first = int(began[1].removeprefix("node"))
    wait_for(lambda: step(tmp_path) >= 100, "some steps")
    hosts.kill(first)
    lost = trains_with(tmp_path, 2, other_than=began)
    hosts.heal(first)
    smaller = lead(tmp_path)
    back = node(first, *words)
    joined = trains_with(tmp_path, 3, other_than=smaller)
    others = [each for host, each in zip((1, 2, 3), nodes, strict=True) if host != first]
    outputs = [process.communicate(timeout=200) for process in (*others, back, store)]
    sys.stderr.write(f"node lost: {lost:.1f} s; node taken in: {joined:.1f} s\n")
    assert [process.returncode for process in (*others, back, store)] == [0, 0, 0, 0], outputs
    check_end(tmp_path, undisturbed)
    assert len(read_environments(run_below(tmp_path))) == 3
    text = "".join(out + err for out, err in outputs)
    assert re.search(rf"node{first} left: 2 nodes train on", text)
    assert re.search(rf"node{first} joined: 3 nodes train on", text)
    assert "Traceback" not in text


def test_a_node_that_is_told_to_stop_leaves_and_the_others_go_on(node, tmp_path, undisturbed):
    words = ("--nnodes=1:2", f"--rendezvous=10.77.0.1:{PORT}", "--max-restarts=1", "--timeout=90")
    nodes = [node(host, *words) for host in (1, 2)]
    trains_with(tmp_path, 2)
    began = lead(tmp_path)
    nodes[1].send_signal(signal.SIGTERM)
    trains_with(tmp_path, 1, other_than=began)
    outputs = [process.communicate(timeout=200) for process in nodes]
    assert [process.returncode for process in nodes] == [0, 128 + signal.SIGTERM], outputs
    check_end(tmp_path, undisturbed)


def test_a_job_whose_store_is_gone_ends_with_its_reason(node, tmp_path):
    words = ("--nnodes=1:2", f"--rendezvous=10.77.0.1:{PORT}", "--max-restarts=1", "--timeout=15")
    nodes = [node(host, *words) for host in (1, 2)]
    trains_with(tmp_path, 2)
    nodes[0].send_signal(signal.SIGKILL)
    _, errors = nodes[1].communicate(timeout=200)
    assert nodes[1].returncode == 1
    assert "paceline rendezvous" in errors
