"""Platforms, clusters and peers that benchmarks measure against."""

from __future__ import annotations

import socket


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on. Standard library alone: one benchmark runs with little else."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [sock.getsockname()[1] for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()
