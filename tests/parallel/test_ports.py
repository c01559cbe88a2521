"""Ports where ranks connect: derived alike on every rank, and waited for."""

import socket

import pytest

from paceline.parallel.ports import DERIVED_PORTS, derived_port, wait_for_listener
from tests.launching.conftest import free_port


def test_all_ranks_derive_the_same_port_and_other_launches_another():
    assert derived_port("job-1", "node0") == derived_port("job-1", "node0")
    ports = {derived_port(f"job-{number}", "node0") for number in range(20)}
    assert len(ports) == 20
    assert ports <= set(DERIVED_PORTS)


def test_names_do_not_run_into_each_other():
    assert derived_port("ab", "c") != derived_port("a", "bc")


def test_a_port_that_answers_is_found_at_once():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        wait_for_listener("127.0.0.1", server.getsockname()[1], timeout=60)


def test_a_port_that_stays_silent_raises_the_last_error():
    with pytest.raises(ConnectionRefusedError):
        wait_for_listener("127.0.0.1", free_port(), timeout=0.1)
