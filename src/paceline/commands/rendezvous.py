"""`paceline rendezvous`: the store at which nodes find each other, on a host that does not train."""

import socket
import time

from paceline.core.errors import ConfigError, ExitCode
from paceline.core.messages import say
from paceline.core.start import is_endpoint
from paceline.core.stopping import interruptible

SECONDS_BETWEEN_LOOKS = 0.5


def rendezvous_command(address: str) -> int:
    """Serve the store at which the nodes of one job find each other, until the job has ended.

    Run it on a host that does not train, such as a login node or the batch shell of a job. With it the loss of any
    node, also of the first one, costs a restart from the last checkpoint and no more.

    Examples:

      paceline rendezvous login1:29400                                            on a host that does not train

      paceline train --nnodes 2:4 --rendezvous login1:29400 --max-restarts 3      on every node

    Parameters
    ----------
    address
        HOST:PORT: an address of this host, and a free port.
    """
    if not is_endpoint(address):
        raise ConfigError(f'"{address}" is not an address', hint="write HOST:PORT, such as login1:29400")
    host, _, port = address.rpartition(":")
    try:
        socket.getaddrinfo(host, None)
    except (OSError, UnicodeError) as cause:  # the second if it is too long for a host name
        raise ConfigError(f"the host {host} is unknown", hint="write a name or an address of this host") from cause
    from paceline.parallel.node_rendezvous import has_ended
    from paceline.parallel.rendezvous import serve_nodes

    with interruptible("serving the rendezvous"):
        store = serve_nodes(host, int(port))
        say(f"the rendezvous listens on {store.host}:{store.port}; it ends with the job")
        while not has_ended(store):
            time.sleep(SECONDS_BETWEEN_LOOKS)
        time.sleep(SECONDS_BETWEEN_LOOKS)  # all nodes may read that it has ended
    say("the job has ended")
    return ExitCode.FINISHED
