"""The platform's listening sockets, and the URL for replicas."""

from __future__ import annotations

import os
import socket
from ipaddress import ip_address, ip_network

import structlog

from embedded.errors import CannotStart

log = structlog.get_logger()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; ``port`` 0: any free one. Raises ``CannotStart``."""
    # The supervisor owns the listening socket: while the API restarts, requests wait in its backlog instead of being
    # refused.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise CannotStart(
            f"Port {port} on {host} cannot be used ({error.strerror}); "
            f"choose another one with --port, or --port 0 for any free one."
        ) from error
    listener.listen(1024)
    return listener


def listen_for_replicas(executor: str, host: str, port: int) -> tuple[list[socket.socket], str | None]:
    """Additional sockets, and the URL for replicas, if these do not reach ``host``; else empty.

    A container has a loopback of its own. On this machine's Docker engine it reaches the platform at the gateway of the
    default bridge; pods are on other machines, so that only the administrator knows the URL.

    Raises:
        CannotStart: no URL for replicas is known.
    """
    if executor not in ("docker", "kubernetes") or os.environ.get("TRAINMASTER_REPLICA_API_URL"):
        return [], None
    is_everywhere = host in ("0.0.0.0", "::", "")  # noqa: S104 (compared, not bound)
    if not is_everywhere and not is_loopback(host):
        return [], f"http://{in_url(host)}:{port}"
    if executor == "kubernetes":
        raise CannotStart(
            f"How do pods reach this platform? {host} is no address for them: listen on one that is with --host, "
            "or set TRAINMASTER_REPLICA_API_URL."
        )
    gateway = bridge_gateway()
    if gateway is None:
        raise CannotStart(
            f"Containers do not reach {host}, and the Docker engine names no gateway of its default bridge: listen "
            "where they reach you with --host, and set TRAINMASTER_REPLICA_API_URL."
        )
    return [] if is_everywhere else [listen(gateway, port)], f"http://{gateway}:{port}"


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def in_url(host: str) -> str:
    """The URL host for a listening address of this machine."""
    if host in ("0.0.0.0", ""):  # noqa: S104 (compared, not bound)
        return "127.0.0.1"
    if host == "::":
        return "[::1]"
    return f"[{host}]" if ":" in host else host


def bridge_gateway() -> str | None:
    """This machine's address on Docker's default bridge. Raises ``CannotStart`` if the engine does not respond."""
    import docker
    from docker.errors import DockerException

    try:
        client = docker.from_env(timeout=10)
        try:
            configs = client.networks.get("bridge").attrs["IPAM"]["Config"]
        finally:
            client.close()
    except (DockerException, OSError) as error:
        raise CannotStart(
            "The Docker engine does not answer; start it, let this user into its group, or name it by DOCKER_HOST."
        ) from error
    for config in configs:
        # The engine omits a gateway that it chose itself: the first address of the subnet.
        gateway = config.get("Gateway") or str(next(ip_network(config["Subnet"]).hosts()))
        if ":" not in gateway:
            return str(gateway)
    return None
