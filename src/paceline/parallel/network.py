"""Which network interface leads to the other ranks."""

import ipaddress
import socket
from collections.abc import MutableMapping

import psutil

from paceline.core.world import World

ELSEWHERE = "192.0.2.1"
"""An address that is nowhere: which interface would lead there tells the one that leads out."""


def choose_interface(world: World, environ: MutableMapping[str, str]) -> None:
    """Point gloo at the interface that leads to the other ranks, unless the user did: host names often do not."""
    if world.size == world.local_size or environ.get("GLOO_SOCKET_IFNAME"):
        return
    interface = _towards_meeting(_meeting_host(world, environ))
    if interface is not None:
        environ["GLOO_SOCKET_IFNAME"] = interface


def interface_towards(host: str) -> str | None:
    """Return the name of the interface whose address the system would use to talk to a host; nothing is sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
            address = probe.getsockname()[0]
    except OSError:
        return None
    for name, addresses in psutil.net_if_addrs().items():
        if any(found.address == address for found in addresses):
            return name
    return None


def _meeting_host(world: World, environ: MutableMapping[str, str]) -> str:
    """Return the host where ranks meet, or for a file this host's own name, which is what gloo would use."""
    kind, _, place = world.meeting.partition("://")
    if kind == "env":
        return environ.get("MASTER_ADDR", "")
    return socket.gethostname() if kind == "file" else place.rpartition(":")[0]


def _towards_meeting(host: str) -> str | None:
    """Return the interface for a meeting place.

    Debian gives a host's own name the address 127.0.1.1, at which nobody else finds it: then take the interface that
    leads out. Only who writes localhost or 127.0.0.1 means to stay on this host.
    """
    if not host or host == "localhost" or _is_loopback(host):
        return interface_towards(host or "localhost")
    try:
        resolved = socket.gethostbyname(host)
    except OSError:
        return None
    return interface_towards(host) if not _is_loopback(resolved) else _outward_interface()


def _outward_interface() -> str | None:
    """Return the interface of the default route, or else the first that is up and not the loopback."""
    chosen = interface_towards(ELSEWHERE)
    if chosen is not None:
        return chosen
    up = psutil.net_if_stats()
    for name, addresses in psutil.net_if_addrs().items():
        if up[name].isup and any(a.family == socket.AF_INET and not _is_loopback(a.address) for a in addresses):
            return name
    return None


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
