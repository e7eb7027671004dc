"""Kubernetes' quantities as whole numbers, and a pod's use of its node by the rules of kube-scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, Final

# https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
_SUFFIXES: Final = {
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30),
    "Ti": Decimal(2**40), "Pi": Decimal(2**50), "Ei": Decimal(2**60),
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"),
    "k": Decimal("1e3"), "M": Decimal("1e6"), "G": Decimal("1e9"),
    "T": Decimal("1e12"), "P": Decimal("1e15"), "E": Decimal("1e18"),
}  # fmt: skip
_ENDED: Final = ("Succeeded", "Failed")


@lru_cache(maxsize=8192)
def parse_quantity(text: str | float) -> Decimal:
    """The exact amount.

    Raises:
        ValueError: it is no quantity.
    """
    text_value = str(text).strip()
    for length in (2, 1):
        factor = _SUFFIXES.get(text_value[-length:])
        if factor is not None:
            text_value = text_value[:-length]
            break
    else:
        factor = Decimal(1)
    try:
        return Decimal(text_value) * factor
    except InvalidOperation as error:
        raise ValueError(f"{text!r} is no quantity; write one like 100m or 2Gi") from error


@lru_cache(maxsize=8192)
def milli(text: str | float) -> int:
    """Thousandths, rounded up: ``"1.5"`` is 1500."""
    return int((parse_quantity(text) * 1000).to_integral_value(ROUND_CEILING))


@lru_cache(maxsize=8192)
def units(text: str | float) -> int:
    """Whole units (bytes, devices), rounded up."""
    return int(parse_quantity(text).to_integral_value(ROUND_CEILING))


@dataclass(frozen=True, slots=True)
class NodeUsage:
    """Amounts on a node. ``devices``: extended resource -> count; ``pods``: how many pods that is."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    devices: Mapping[str, int] = field(default_factory=dict)
    pods: int = 0

    def plus(self, other: NodeUsage, sign: int = 1) -> NodeUsage:
        """Both together; with ``sign=-1`` what is left of this one."""
        devices = dict(self.devices)
        for name, count in other.devices.items():
            devices[name] = devices.get(name, 0) + sign * count
        return NodeUsage(
            self.cpu_milli + sign * other.cpu_milli,
            self.memory_bytes + sign * other.memory_bytes,
            {name: count for name, count in devices.items() if count},
            self.pods + sign * other.pods,
        )

    def most(self, other: NodeUsage) -> NodeUsage:
        """The larger of each amount."""
        names = {*self.devices, *other.devices}
        return NodeUsage(
            max(self.cpu_milli, other.cpu_milli),
            max(self.memory_bytes, other.memory_bytes),
            {name: max(self.devices.get(name, 0), other.devices.get(name, 0)) for name in names},
            max(self.pods, other.pods),
        )


NO_USAGE: Final = NodeUsage()


def pod_usage(pod: Mapping[str, Any]) -> NodeUsage:
    """Resources that the pod reserves on its node; none once it has ended.

    Containers run together, init containers one after another before them, each together with the sidecars (init
    containers that restart always) that were started before it: the largest of these moments counts, plus the pod's
    overhead. https://kubernetes.io/docs/concepts/workloads/pods/init-containers/#resource-sharing-within-containers
    """
    if pod.get("status", {}).get("phase") in _ENDED:
        return NO_USAGE
    spec = pod["spec"]
    sidecars = NO_USAGE
    peak = NO_USAGE
    for container in spec.get("initContainers") or ():
        requests = _requests(container)
        if container.get("restartPolicy") == "Always":
            sidecars = sidecars.plus(requests)
            peak = peak.most(sidecars)
        else:
            peak = peak.most(sidecars.plus(requests))
    together = _sum(_requests(container) for container in spec["containers"])
    usage = peak.most(sidecars.plus(together))
    of_pod = (spec.get("resources") or {}).get("requests")
    if of_pod:  # of the pod as a whole (1.34): they take the place of its containers' sums
        pod_level = _amounts(of_pod)
        usage = NodeUsage(
            pod_level.cpu_milli if "cpu" in of_pod else usage.cpu_milli,
            pod_level.memory_bytes if "memory" in of_pod else usage.memory_bytes,
            usage.devices,
        )
    usage = usage.plus(_amounts(spec.get("overhead") or {}))
    return NodeUsage(usage.cpu_milli, usage.memory_bytes, usage.devices, 1)


def without_devices(use: NodeUsage) -> NodeUsage:
    """Usage of a shared device's placeholder without the device, which the planner counts itself."""
    return NodeUsage(use.cpu_milli, use.memory_bytes, {}, use.pods)


def excess_usage(pod: Mapping[str, Any], main: str) -> NodeUsage:
    """Usage of an own pod beyond its container ``main``: sidecars that a webhook injected, overhead.

    The planner knows of ``main`` alone.
    """
    usage = pod_usage(pod)
    if not usage.pods:
        return NO_USAGE
    excess = usage.plus(planned_usage(pod, main), -1)
    return NodeUsage(
        max(0, excess.cpu_milli), max(0, excess.memory_bytes), {n: c for n, c in excess.devices.items() if c > 0}, 1
    )


def planned_usage(pod: Mapping[str, Any], main: str) -> NodeUsage:
    """Usage that the pod's own planner counts: its container ``main``. :func:`excess_usage` counts the
    pod itself.
    """
    if pod.get("status", {}).get("phase") in _ENDED:
        return NO_USAGE
    return _sum(_requests(container) for container in pod["spec"]["containers"] if container["name"] == main)


def _requests(container: Mapping[str, Any]) -> NodeUsage:
    return _amounts((container.get("resources") or {}).get("requests") or {})


def _amounts(amounts: Mapping[str, Any]) -> NodeUsage:
    # Extended resources have a domain in their name; storage, pages and the like are none of ours.
    devices = {name: units(value) for name, value in amounts.items() if "/" in name}
    return NodeUsage(milli(amounts.get("cpu", "0")), units(amounts.get("memory", "0")), devices)


def _sum(parts: Iterable[NodeUsage]) -> NodeUsage:
    total = NO_USAGE
    for part in parts:
        total = total.plus(part)
    return total
