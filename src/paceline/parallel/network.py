"""The network interface for connections to the other ranks."""

import ipaddress
import socket
from collections.abc import MutableMapping

import psutil

from paceline.core.world import World
from paceline.parallel.detect import master_address

ELSEWHERE = "192.0.2.1"
"""TEST-NET-1 (RFC 5737): the route to it gives the default interface; nothing is sent."""


def choose_interface(world: World, environ: MutableMapping[str, str]) -> None:
    """Set gloo's interface to the one that reaches the other ranks, unless the user set it: host names often fail."""
    if world.size == world.local_size or environ.get("GLOO_SOCKET_IFNAME"):
        return
    interface = _interface_to(_rendezvous_host(world, environ))
    if interface is not None:
        environ["GLOO_SOCKET_IFNAME"] = interface


def interface_towards(host: str) -> str | None:
    """Return the name of the interface on the route to a host; nothing is sent."""
    address = _address_towards(host)
    for name, addresses in psutil.net_if_addrs().items():
        if address is not None and any(found.address == address for found in addresses):
            return name
    return None


def local_address(host: str) -> str:
    """Return the address of this machine on the interface that leads to a host: of the two ends of a connection, ours.

    Where neither the route nor an interface is known, this is the address of every interface.
    """
    interface = _interface_to(host)
    direct = _address_towards(host)
    here = psutil.net_if_addrs().get(interface or "", [])
    addresses = [found.address for found in here if found.family == socket.AF_INET]
    if direct in addresses:
        return str(direct)
    return addresses[0] if addresses else "0.0.0.0"


def peer_address(host: str) -> str:
    """Return where to connect to a host that serves at its `local_address`.

    Debian maps a host's own name to 127.0.1.1, where nothing listens: another process of this host is meant.
    """
    if host == "localhost" or _is_loopback(host):
        return host
    try:
        resolved = socket.gethostbyname(host)
    except OSError:
        return host
    return local_address(host) if _is_loopback(resolved) else host


def _address_towards(host: str) -> str | None:
    """Return our address on the route to a host; nothing is sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
            return probe.getsockname()[0]
    except OSError:
        return None


def _rendezvous_host(world: World, environ: MutableMapping[str, str]) -> str:
    """Return the host where ranks connect, or for a file this host's name, as gloo would use."""
    kind, _, place = world.init_method.partition("://")
    if kind == "env":
        return master_address(environ)
    return socket.gethostname() if kind == "file" else place.rpartition(":")[0]


def _interface_to(host: str) -> str | None:
    """Return the interface on the route to the rendezvous.

    Debian maps a host's own name to 127.0.1.1, which other hosts cannot reach: then use the default interface. The
    loopback is used only if the user wrote localhost or 127.0.0.1.
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
