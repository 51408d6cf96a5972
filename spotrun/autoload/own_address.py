"""
Makes torch's rendezvous stores (TCPStore) listen on one address only.

torch's ranks connect only to MASTER_ADDR. But without this module, torch's stores listen on all addresses of the
machine, so their port can be reached from every network to which the machine is connected.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from typing import Any

BEFORE_THE_SOCKET = 3
"""
Number of positional parameters of a TCPStore between `is_master` and `master_listen_fd`. A caller that passes more
positional arguments has passed its own socket as `master_listen_fd`.
"""
BACKLOG = 2048


def install(distributed: Any) -> None:
    """Replace torch.distributed's TCPStore with a class that listens on one address. A second call does nothing."""
    found = getattr(distributed, "TCPStore", None)  # absent if torch was built without it
    if found is None or hasattr(found, "listens_at"):
        return
    narrowed = _narrowed(found)
    for module in ("torch.distributed", "torch.distributed.rendezvous", "torch.distributed.distributed_c10d"):
        if getattr(sys.modules.get(module), "TCPStore", None) is found:
            sys.modules[module].TCPStore = narrowed  # type: ignore[attr-defined]


def _narrowed(found: Any) -> Any:
    class TCPStore(found):  # type: ignore[misc]
        """
        A store of torch that listens only on `host_name`. If this is not an address of this machine, for example behind
        NAT, the store listens on all addresses, as torch's own does.
        """

        def __init__(
            self,
            host_name: str,
            port: int,
            world_size: int | None = None,
            is_master: bool = False,
            *rest: Any,
            **named: Any,
        ) -> None:
            if is_master and len(rest) <= BEFORE_THE_SOCKET and "master_listen_fd" not in named:
                # Listening fails if another TCPStore of this process already listens on the port. torch then shares
                # that store.
                with contextlib.suppress(OSError), self.listens_at(host_name, port) as listener:
                    port = listener.getsockname()[1]  # for port 0, the system chooses a port
                    named["master_listen_fd"] = listener.detach()
            super().__init__(host_name, port, world_size, is_master, *rest, **named)

        @staticmethod
        def listens_at(host: str, port: int) -> socket.socket:
            """
            Return a socket that listens on `host` and `port`.

            Raises:
                OSError: the port is taken, or the address does not belong to this machine.
            """
            places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, *_, place = min(places, key=lambda each: each[0] != socket.AF_INET)
            return socket.create_server(place[:2], family=family, backlog=BACKLOG)

    return TCPStore
