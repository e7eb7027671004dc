"""Taints of nodes, and which of them our pods tolerate: one rule for the pods' manifest and for judging nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
# Taints that Kubernetes itself puts on nodes, in words.
_KNOWN: Final = {
    "node.kubernetes.io/unschedulable": "It is cordoned in the cluster",
    "node.kubernetes.io/memory-pressure": "It is short of memory",
    "node.kubernetes.io/disk-pressure": "It is short of disk",
    "node.kubernetes.io/pid-pressure": "It is short of process ids",
    "node.kubernetes.io/network-unavailable": "Its network is not set up",
    "node.kubernetes.io/out-of-service": "It was declared out of service",
    "node.cloudprovider.kubernetes.io/uninitialized": "The cloud provider has not set it up yet",
    "node.cloudprovider.kubernetes.io/shutdown": "It is shut down",
    "ToBeDeletedByClusterAutoscaler": "The cluster's autoscaler is taking it away",
    "DeletionCandidateOfClusterAutoscaler": "The cluster's autoscaler wants to take it away",
    "karpenter.sh/disrupted": "Karpenter is taking it away",
    "node-role.kubernetes.io/control-plane": "It is reserved for the cluster's control plane",
    "node-role.kubernetes.io/master": "It is reserved for the cluster's control plane",
}


def parse_tolerations(text: str, gpu_resources: Sequence[str] = ()) -> tuple[dict[str, str], ...]:
    """As pods carry them.

    Args:
        text: ``key``, ``key=value``, ``key:Effect`` or ``key=value:Effect``, separated by commas.
        gpu_resources: nodes with devices are mostly tainted with the resource's name; jobs are what they are for.

    Raises:
        ValueError: a sentence on the part that cannot be used.
    """
    tolerations = [{"key": name, "operator": "Exists"} for name in gpu_resources if "*" not in name]
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        taint, colon, effect = part.partition(":")
        key, equals, value = taint.partition("=")
        if not key or (colon and effect not in _EFFECTS):
            raise ValueError(f"{part!r} is no toleration; write key, key=value or key=value:NoSchedule")
        toleration = {"key": key, "operator": "Equal", "value": value} if equals else {"key": key, "operator": "Exists"}
        tolerations.append({**toleration, "effect": effect} if effect else toleration)
    return tuple(tolerations)


def is_tolerated(taint: Mapping[str, Any], tolerations: Sequence[Mapping[str, str]]) -> bool:
    """By Kubernetes' rules, for tolerations as :func:`parse_tolerations` makes them."""
    return any(
        toleration["key"] == taint["key"]
        and toleration.get("effect", taint["effect"]) == taint["effect"]
        and (toleration["operator"] == "Exists" or toleration["value"] == (taint.get("value") or ""))
        for toleration in tolerations
    )


def why_closed(taints: Sequence[Mapping[str, Any]], tolerations: Sequence[Mapping[str, str]]) -> str:
    """A sentence when one of the taints keeps our pods away; empty when none does."""
    against = [t for t in taints if t["effect"] in ("NoSchedule", "NoExecute") and not is_tolerated(t, tolerations)]
    if not against:
        return ""
    first = min(against, key=lambda taint: (taint["key"] not in _KNOWN, taint["key"]))
    if first["key"] in _KNOWN:
        return f"{_KNOWN[first['key']]}."
    value = f"={first['value']}" if first.get("value") else ""
    return f"It has the taint {first['key']}{value}:{first['effect']}, which jobs do not tolerate."
