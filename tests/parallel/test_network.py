"""The interface that gloo is pointed at; tests/lab proves the choice between hosts."""

import socket

from paceline.core.world import World
from paceline.parallel.network import choose_interface, interface_towards, local_address, peer_address

TWO_HOSTS = World(rank=1, size=2, init_method="tcp://127.0.0.1:29500")


def test_a_rendezvous_on_loopback_uses_the_loopback_interface():
    environ: dict[str, str] = {}
    choose_interface(TWO_HOSTS, environ)
    assert environ == {"GLOO_SOCKET_IFNAME": interface_towards("127.0.0.1")}


def test_an_interface_chosen_by_the_user_is_kept():
    environ = {"GLOO_SOCKET_IFNAME": "ib0"}
    choose_interface(TWO_HOSTS, environ)
    assert environ == {"GLOO_SOCKET_IFNAME": "ib0"}


def test_ranks_of_one_host_are_left_to_gloo():
    environ: dict[str, str] = {"MASTER_ADDR": socket.gethostname()}
    choose_interface(World(rank=1, size=2, local_size=2, init_method="env://"), environ)
    assert "GLOO_SOCKET_IFNAME" not in environ


def test_an_unknown_host_gives_no_interface():
    environ: dict[str, str] = {}
    choose_interface(World(rank=1, size=2, init_method="tcp://no.such.host.invalid:1"), environ)
    assert environ == {}


def test_ranks_of_one_host_find_each_other_where_its_name_leads_to_the_loopback(monkeypatch):
    """As in Debian's /etc/hosts: the first serves where other hosts reach it, and the second connects there."""
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "127.0.1.1")
    assert peer_address("node1") == local_address("node1") != "127.0.1.1"
    assert [peer_address(host) for host in ("localhost", "127.0.0.1")] == ["localhost", "127.0.0.1"]


def test_other_hosts_keep_their_name(monkeypatch):
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "192.0.2.7")
    assert peer_address("node1") == "node1"
