"""A start that cannot work is refused, and says what stands in its way."""

import socket
from pathlib import Path

import pytest

from paceline.core.config import Config
from paceline.core.errors import ConfigError
from paceline.core.start import Start
from paceline.core.world import World
from paceline.launching.plan import plan_launch
from tests.conftest import LONGEST
from tests.launching.conftest import SETTINGS, free_port


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
        ({"nnodes": "1", "node_rank": 1}, "nodes go from 0 to 0"),
        ({"node_rank": 1, "rendezvous": "a:1"}, "--node-rank 1 is set, but not how many nodes there are"),
        ({"rendezvous": "a:1"}, "--rendezvous a:1 is set, but not how many nodes there are"),
        ({"rank": 0, "world_size": 2, "init_method": "udp://x"}, "udp"),
        ({"rank": 0, "world_size": 2, "nproc": 2}, "use one or the other"),
    ],
)
def test_a_start_that_makes_no_sense_is_refused(words, message):
    with pytest.raises(ConfigError) as caught:
        Start(**words)
    assert message in f"{caught.value.message} {caught.value.hint}"


def test_one_node_may_be_given_like_several():
    assert plan_launch(Config(), Start(nnodes="1", node_rank=0, rendezvous="a:1"), World(), {}) is None


def test_more_ranks_than_gpus_are_refused():
    environ = {"CUDA_VISIBLE_DEVICES": "0,1"}
    with pytest.raises(ConfigError, match="--nproc 3 asks for more ranks than the 2 GPUs there are"):
        plan_launch(Config(), Start(nproc=3), World(), environ)
    plan = plan_launch(Config(), Start(), World(), environ)
    assert plan is not None
    assert plan.nproc == 2
