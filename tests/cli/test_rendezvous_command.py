"""`paceline rendezvous`: serves the store of a job until the job has ended."""

import socket
import threading
from dataclasses import replace

import pytest

from paceline.parallel import rendezvous
from paceline.parallel.node_rendezvous import STATE
from paceline.parallel.node_rounds import Round, round_text
from paceline.parallel.rendezvous import connect_store
from tests.conftest import LONGEST
from tests.launching.conftest import free_port


def test_it_serves_a_store_and_ends_with_the_job(run):
    port = free_port()

    def end_the_job() -> None:
        store = connect_store(f"127.0.0.1:{port}", timeout=LONGEST)
        store.set(STATE, round_text(replace(Round(), is_closed=True)))

    node = threading.Thread(target=end_the_job, daemon=True)
    node.start()
    answer = run("rendezvous", f"127.0.0.1:{port}")
    node.join(LONGEST)
    assert answer.code == 0
    assert f"the rendezvous listens on 127.0.0.1:{port}" in answer.err
    assert "the job has ended" in answer.err


@pytest.mark.parametrize("address", ["login1", "login1:", ":29400", "login1:http", "login1:0", "login1:99999"])
def test_an_address_without_host_or_port_is_refused(run, address):
    answer = run("rendezvous", address)
    assert answer.code == 2
    assert f'"{address}" is not an address' in answer.err
    assert "HOST:PORT" in answer.err


def test_an_unknown_host_is_refused_rather_than_served_at_every_interface(run, monkeypatch):
    def find(*_: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", find)
    monkeypatch.setattr(rendezvous, "serve_nodes", None)
    answer = run("rendezvous", "login1:29400")
    assert answer.code == 2
    assert "the host login1 is unknown" in answer.err
    assert "an address of this host" in answer.err
