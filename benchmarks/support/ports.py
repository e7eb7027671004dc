"""Ports of this machine that nobody listens on, for the benchmarks beside this file. Standard library alone: one of
them runs in an environment that has little else.
"""

from __future__ import annotations

import socket


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [sock.getsockname()[1] for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()
