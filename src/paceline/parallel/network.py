"""Which network interface leads to the other ranks."""

import socket
from collections.abc import MutableMapping

import psutil

from paceline.core.world import World


def choose_interface(world: World, environ: MutableMapping[str, str]) -> None:
    """Point gloo at the interface that leads to the meeting place, unless the user did: host names often do not."""
    if world.size == 1 or environ.get("GLOO_SOCKET_IFNAME"):
        return
    host = (
        environ.get("MASTER_ADDR")
        if world.meeting == "env://"
        else world.meeting.partition("://")[2].rpartition(":")[0]
    )
    if not host or world.meeting.startswith("file://"):
        return
    interface = interface_towards(host)
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
