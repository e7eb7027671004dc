"""The network policy of an attempt: a gang talks to itself, to DNS and to the API, and accepts connections only from
itself and from the platform, which forwards requests to model servers.

A policy cannot select "pods with the same label value as this pod", so there is one per attempt; its Service owns it,
and it goes with it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from core.domain.serving.jobs import read_port
from executors.base import ReplicaOrder
from executors.containers import labels, names
from executors.kubernetes.api_server.client import Json, path

_GROUP: Final = "networking.k8s.io/v1"
_DNS: Final = ({"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53})
# How the platform's own chart labels its pods, and its API's.
_PLATFORM_PODS: Final = {"app.kubernetes.io/name": "trainmaster"}
_API_PODS: Final = {**_PLATFORM_PODS, "app.kubernetes.io/component": "api"}
_API_PORT_NAME: Final = "http"


@dataclass(frozen=True, slots=True)
class Peer:
    """Where pods may connect to. ``cidr`` empty: anywhere; ``port`` ``None``: any."""

    cidr: str = ""
    port: int | None = None


def parse_egress(text: str) -> tuple[Peer, ...]:
    """``10.0.0.0/8``, ``192.0.2.7:5432``, ``[2001:db8::/32]:443``, ``:443`` (anywhere), separated by commas.

    Raises:
        ValueError: a sentence on the part that cannot be used.
    """
    return tuple(_peer(piece.strip()) for piece in text.split(",") if piece.strip())


def policies_url(namespace: str) -> str:
    return path("networkpolicies", namespace, group=_GROUP)


def render_policy(
    order: ReplicaOrder, instance: str, namespace: str, owner: Json, *, egress: Sequence[Peer] = ()
) -> Json:
    """The policy of the order's attempt, called like its Service, which owns it. ``egress``: what else it may reach."""
    attempt_id = order.key.attempt_id
    gang = {"podSelector": {"matchLabels": labels.selector(instance, attempt_id)}}
    return {
        "apiVersion": _GROUP,
        "kind": "NetworkPolicy",
        "metadata": {
            "name": names.attempt_name(attempt_id),
            "namespace": namespace,
            "labels": labels.attempt_labels(instance, order),
            "ownerReferences": [owner],
        },
        "spec": {
            **gang,
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [gang]}, *_from_platform(order)],
            # DNS by its port alone: a node's own cache answers from an address that no selector finds.
            "egress": [
                {"to": [gang]},
                {"ports": list(_DNS)},
                *_to_api(order.api_url or ""),
                *(_rule(peer) for peer in egress),
            ],
        },
    }


def _from_platform(order: ReplicaOrder) -> list[Json]:
    """Ingress to a model server's port from the platform's own pods: its API asks for predictions, its scheduler
    for health. Where the platform runs outside of the cluster and its address is known, from there.
    """
    port = read_port(order.env.get("AIP_HTTP_PORT", ""))
    if port is None:
        return []
    peers: list[Json] = [{"namespaceSelector": {}, "podSelector": {"matchLabels": dict(_PLATFORM_PODS)}}]
    address = _address_of(order.api_url or "")
    if address:
        peers.append({"ipBlock": {"cidr": address}})
    return [{"from": peers, "ports": [{"protocol": "TCP", "port": port}]}]


def _address_of(api_url: str) -> str:
    """The API's address as a network of one; empty: it has a name."""
    try:
        address = ipaddress.ip_address(urlsplit(api_url).hostname or "")
    except ValueError:
        return ""
    return f"{address}/{address.max_prefixlen}"


def _to_api(api_url: str) -> list[Json]:
    """The API by its address; by the labels and the port of its pods where it is a Service (rules see the pod behind
    it, with the pod's own port); by its port alone where only a name outside of the cluster is known. The address of a
    Service looks like any other: name the Service instead.
    """
    if not api_url:
        return []
    parts = urlsplit(api_url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    address = _address_of(api_url)
    if not address:
        pods = {"namespaceSelector": {}, "podSelector": {"matchLabels": dict(_API_PODS)}}
        # The pod's port may be another one than its Service's: the chart names it.
        ports = [{"protocol": "TCP", "port": number} for number in (port, _API_PORT_NAME)]
        behind = {"to": [pods], "ports": ports}
        outside = _rule(Peer("", port))
        if host.count(".") == 1 and not host.endswith(".svc"):
            return [behind, outside]  # `service.namespace` and `example.com` look alike
        return [behind if _is_service(host) else outside]
    return [_rule(Peer(address, port))]


def _is_service(host: str) -> bool:
    return "." not in host or host.endswith(".svc") or ".svc." in host


def _rule(peer: Peer) -> Json:
    rule: Json = {}
    if peer.cidr:
        rule["to"] = [{"ipBlock": {"cidr": peer.cidr}}]
    if peer.port is not None:
        rule["ports"] = [{"protocol": "TCP", "port": peer.port}]
    return rule


def _peer(piece: str) -> Peer:
    network, port = piece, ""
    if piece.startswith("["):
        network, _, port = piece[1:].partition("]")
        port = port.removeprefix(":")
    elif piece.count(":") == 1:
        network, _, port = piece.partition(":")
    try:
        cidr = str(ipaddress.ip_network(network, strict=False)) if network else ""
        number = int(port) if port else None
    except ValueError as error:
        raise ValueError(f"{piece!r} is no address; write one like 10.0.0.0/8, 192.0.2.7:5432 or :443") from error
    if number is not None and not 1 <= number <= 65_535:
        raise ValueError(f"{piece!r}: ports are 1 to 65535")
    if not cidr and number is None:
        raise ValueError(f"{piece!r} is no address; write one like 10.0.0.0/8, 192.0.2.7:5432 or :443")
    return Peer(cidr, number)
