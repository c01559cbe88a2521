"""A start that cannot work is refused with the reason."""

import socket
from pathlib import Path

import pytest

from paceline import cli
from tests.conftest import LONGEST
from tests.launching.conftest import SETTINGS, free_port, listens


def test_a_mistake_of_all_ranks_is_reported_once(start):
    process = start("train", "--model", "resnet2", "--nproc", "2")
    _, errors = process.communicate(timeout=LONGEST)
    assert process.returncode == 2
    assert errors.count("there is no model resnet2") == 1
    assert "did you mean resnet20?" in errors


def test_a_run_in_use_is_refused(start, wait_until, capsys):
    process = start("train", "--model", "mlp", "--epochs", "500000", "--track", "none")
    wait_until(lambda: list(Path("runs").glob("*/*/checkpoints/last")), "a first checkpoint")
    assert cli.run(["train", "--resume", "runs/digits-mlp"], {}) == 2
    assert "is in use by process" in capsys.readouterr().err
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


@pytest.mark.slow
def test_missing_ranks_are_named_after_the_timeout(start, elsewhere):
    port = free_port()
    tcp = ["--world-size", "3", "--init-method", f"tcp://127.0.0.1:{port}", "--timeout", "4"]
    file = ["--world-size", "2", "--init-method", f"file://{elsewhere}/meet", "--timeout", "4"]
    lead, follower = start("train", "--rank", "0", *tcp), start("train", "--rank", "1", *file)
    lonely = start("train", "--nnodes", "2", "--node-rank", "1", "--rendezvous", f"127.0.0.1:{free_port()}",
                   "--timeout", "3")  # fmt: skip
    node_0 = start("train", "--nnodes", "3", "--node-rank", "0", "--rendezvous", f"127.0.0.1:{free_port()}",
                   "--timeout", "4")  # fmt: skip
    expected = [
        f"tcp://127.0.0.1:{port}: waited 4 s for 3 ranks, but rank 1, 2 did not connect",
        "waited 4 s for 2 ranks, but rank 0 did not connect",
        "node 1 waited 3 s for node 0 at 127.0.0.1:",
        "waited 4 s for 3 nodes, but node 1, 2 did not connect",
    ]
    for process, message in zip((lead, follower, lonely, node_0), expected, strict=True):
        _, errors = process.communicate(timeout=LONGEST)
        assert process.returncode == 1
        assert message in errors


def test_a_node_reports_at_once_which_nodes_it_waits_for(start):
    words = ["--nnodes", "2", "--rendezvous", f"127.0.0.1:{free_port()}"]
    for more, message in (
        (["--node-rank", "0"], "node 0 waits up to 300 s for node 1 at "),
        ([], "this node joins --nnodes 2"),
    ):
        process = start("train", *words, *more)
        assert process.stderr is not None
        assert process.stderr.readline().startswith(f"paceline: {message}")
        process.terminate()
        process.communicate(timeout=LONGEST)


@pytest.mark.slow
def test_a_second_node_with_the_same_rank_is_reported(start, wait_until):
    port = free_port()
    words = ["--nnodes", "3", "--rendezvous", f"127.0.0.1:{port}"]
    first = start("train", *words, "--node-rank", "0")
    wait_until(lambda: listens(port), "node 0 to wait")
    again = start("train", *words, "--node-rank", "0")
    _, errors = again.communicate(timeout=LONGEST)
    assert again.returncode == 1
    assert f"paceline: 127.0.0.1:{port}: another process is node 0 too\n" in errors
    assert "give every node its own --node-rank" in errors
    twins = [start("train", *words, "--node-rank", "1") for _ in range(2)]
    wait_until(lambda: any(twin.poll() is not None for twin in twins), "one of two nodes to be refused")
    told, waiting = sorted(twins, key=lambda twin: twin.poll() is None)
    assert (told.returncode, waiting.poll(), first.poll()) == (1, None, None)
    _, errors = told.communicate(timeout=LONGEST)
    assert errors == (
        f"paceline: 127.0.0.1:{port}: another process is node 1 too\n"
        "  hint: give every node its own --node-rank, from 0 to 2\n"
    )
    for process in (waiting, first):
        process.terminate()
        process.communicate(timeout=LONGEST)
        assert process.returncode == 143


def test_nodes_that_count_differently_are_refused(start):
    place = f"127.0.0.1:{free_port()}"
    nodes = [start("train", "--nnodes", 2 + node, "--node-rank", node, "--rendezvous", place) for node in range(2)]
    texts = [process.communicate(timeout=LONGEST)[1] for process in nodes]
    assert [process.returncode for process in nodes] == [1, 1]
    assert any("node 1 expects 3 nodes, node 0 expects 2" in text for text in texts) or any(
        "node 0 expects 2 nodes, node 1 expects 3" in text for text in texts
    )
