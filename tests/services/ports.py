"""Free loopback ports for services that tests start."""

from __future__ import annotations

import socket
from contextlib import ExitStack


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, and whose number + 10000 is free too (SeaweedFS takes it for gRPC)."""
    found: list[int] = []
    with ExitStack() as held:
        while len(found) < count:
            first = held.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            if port + 10000 < 65536:
                second = held.enter_context(socket.socket())
                try:
                    second.bind(("127.0.0.1", port + 10000))
                except OSError:
                    continue
                found.append(port)
    return found


def free_port() -> int:
    return free_ports(1)[0]
