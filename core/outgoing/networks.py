"""Which addresses the platform connects to for users: none of its own network, unless an administrator allows it.

Otherwise a user could read the metadata of the cloud's machine, or send requests to the platform's own services (SSRF).
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final, TypeAlias, cast

import anyio
import httpcore

Network: TypeAlias = IPv4Network | IPv6Network

# Both translate IPv6 to any IPv4 address behind a gateway: NAT64 (RFC 6052) and 6to4 (RFC 3056).
_TRANSLATED: Final = (ip_network("64:ff9b::/96"), ip_network("64:ff9b:1::/48"), ip_network("2002::/16"))


class RefusedAddress(Exception):
    """The address is inside the platform's network; the text says which, and what to do."""


class OutboundNetworks:
    """Public addresses, and the networks that the setting ``outbound_networks`` allows."""

    def __init__(self, setting: str = "") -> None:
        """``setting``: networks, separated by commas. Raises ``ValueError``: one of them is none."""
        self._allowed: Sequence[Network] = [ip_network(text.strip()) for text in setting.split(",") if text.strip()]

    def check(self, address: str) -> None:
        """Raises ``RefusedAddress`` unless the platform may connect to this IP address."""
        ip: IPv4Address | IPv6Address = ip_address(address.partition("%")[0])
        if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        if any(ip in network for network in self._allowed):
            return
        if not ip.is_global or ip.is_multicast or any(ip in network for network in _TRANSLATED):
            raise RefusedAddress(
                f"{address} is inside the platform's network or reserved; an administrator may allow it with "
                "TRAINMASTER_OUTBOUND_NETWORKS"
            )

    def check_host(self, host: str) -> None:
        """Raises ``RefusedAddress`` for an address that is refused; a name is checked when it is resolved."""
        try:
            address = ip_address(host.strip("[]"))
        except ValueError:
            return
        self.check(str(address))


class CheckedBackend(httpcore.AsyncNetworkBackend):
    """Connects to allowed addresses only. The address that was checked is the one that is connected to, so that a name
    that resolves differently a moment later changes nothing.
    """

    def __init__(self, networks: OutboundNetworks) -> None:
        self._networks = networks
        self._backend = cast("httpcore.AsyncNetworkBackend", httpcore.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 (the base's)
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            with anyio.fail_after(timeout):
                found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(f"{host} was not resolved in time") from error
        except OSError as error:
            raise httpcore.ConnectError(f"{host} cannot be resolved: {error}") from error
        failure: Exception = httpcore.ConnectError(f"{host} has no address")
        for address in dict.fromkeys(str(entry[4][0]) for entry in found):
            try:
                self._networks.check(address)
                return await self._backend.connect_tcp(address, port, timeout, local_address, socket_options)
            except (RefusedAddress, httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    async def connect_unix_socket(self, path: str, *_: Any, **_more: Any) -> httpcore.AsyncNetworkStream:
        raise RefusedAddress(f"{path}: sockets of this machine are not connected to")

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)
