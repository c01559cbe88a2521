"""Settings of processes and nodes: contradictions are refused before anything starts."""

import pytest

from paceline.core.errors import ConfigError
from paceline.core.start import Start


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"rank": 3, "world_size": 3}, "--rank is 3, but must be between 0 and 2"),
        ({"rank": 0}, "--rank is set without --world-size"),
        ({"world_size": 2}, "--world-size is set without --rank"),
        ({"nnodes": "2"}, "needs --rendezvous, the address at which the nodes connect"),
        ({"nnodes": "4:2", "rendezvous": "a:1"}, "must be a number such as 2, or a range such as 1:4"),
        ({"nnodes": "2", "rendezvous": "somewhere"}, "must be HOST:PORT"),
        ({"nnodes": "2", "rendezvous": ":29400"}, "must be HOST:PORT"),
        ({"nnodes": "2", "rendezvous": "node0:99999"}, "must be HOST:PORT"),
        ({"nnodes": "2", "rendezvous": "tcp://a:1"}, "must be HOST:PORT"),
        ({"nnodes": "2", "rendezvous": "a:1", "node_rank": 2}, "--node-rank is 2, but must be between 0 and 1"),
        ({"nnodes": "1", "node_rank": 1}, "--node-rank is 1, but must be between 0 and 0"),
        ({"node_rank": 1, "rendezvous": "a:1"}, "--node-rank 1 is set without --nnodes"),
        ({"rendezvous": "a:1"}, "--rendezvous a:1 is set without --nnodes"),
        ({"rank": 0, "world_size": 2, "init_method": "udp://x"}, "udp"),
        ({"rank": 0, "world_size": 2, "nproc": 2}, "use --rank, or --nproc and --nnodes"),
    ],
)
def test_a_start_that_makes_no_sense_is_refused(words, message):
    with pytest.raises(ConfigError) as caught:
        Start(**words)
    assert message in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"nproc": 0}, "--nproc is 0, but must be at least 1"),
        ({"max_restarts": -1}, "--max-restarts is -1, but must be at least 0"),
        ({"timeout": 0.0}, "--timeout is 0.0, but must be a number of seconds above 0"),
        ({"timeout": float("nan")}, "--timeout is nan, but must be a number of seconds above 0"),
    ],
)
def test_a_number_out_of_range_is_refused(settings, message):
    with pytest.raises(ConfigError) as caught:
        Start(**settings)
    assert caught.value.message == message


@pytest.mark.parametrize(("text", "fewest_and_most"), [(None, (1, 1)), ("3", (3, 3)), ("1:4", (1, 4))])
def test_nodes_are_a_number_or_a_range(text, fewest_and_most):
    assert Start(nnodes=text, rendezvous=None if text is None else "a:1").node_range == fewest_and_most
