"""Stores of torch that listen on one address of this host; torch's own listen on every interface."""

import socket
from datetime import timedelta

import torch.distributed as dist

from paceline.parallel.network import local_address

BACKLOG = 2048


def serve_store(host: str, port: int, *, timeout: float, shared: bool = False) -> dist.TCPStore:
    """Return the server of a store at the address of this host that leads to `host`; port 0 chooses a free one.

    Other hosts reach it where `host` does; nobody does at another interface. `shared` lets this process open it again.
    """
    address = local_address(host)
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(BACKLOG)
        return dist.TCPStore(
            address,
            listener.getsockname()[1],
            is_master=True,
            timeout=timedelta(seconds=timeout),
            wait_for_workers=False,
            multi_tenant=shared,
            master_listen_fd=listener.fileno(),
        )
    except BaseException:
        listener.close()
        raise
    finally:
        listener.detach()  # closed by the store, which listens on it
