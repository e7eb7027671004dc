"""The cluster's nodes as ours: what may be given out on them, whether they are alive, which GPUs they have.

What our own pods take is subtracted by the planner, from its rows. So a node's ``allocatable`` here is Kubernetes'
allocatable without the requests of all *other* pods on it, including those of another database.

Tolerations are parsed here, too: one rule for the pods' manifest and for judging nodes by their taints.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any, Final

from core.domain.sharing.resources import Amounts
from executors.base import Gpu, NodeInfo
from executors.kubernetes.api_server.client import Json, KubernetesClient, path
from executors.kubernetes.api_server.reflector import Reflector
from executors.kubernetes.cache import PodCache
from executors.kubernetes.pod_usage import NO_USAGE, NodeUsage, milli, units

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
    "karpenter.sh/disruption": "Karpenter is taking it away",
    "node-role.kubernetes.io/control-plane": "It is reserved for the cluster's control plane",
    "node-role.kubernetes.io/master": "It is reserved for the cluster's control plane",
}

_CORDON: Final = "node.kubernetes.io/unschedulable"
# Taints of nodes that are to be empty soon: their pods are evicted next.
_DRAINS: Final = frozenset(
    {_CORDON, "ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", "karpenter.sh/disruption"}
)

# As the planner reads them (scheduler.planning.placement.cluster).
RACK: Final = "topology/rack"
ZONE: Final = "topology/zone"
_ZONE_LABELS: Final = (ZONE, "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")
# An admin's word on a node, before all others.
_MODEL: Final = "trainmaster/gpu-model"
_MEMORY: Final = "trainmaster/gpu-memory"
# "true": no devices are behind its GPUs, which are there for tests. The device of a pod is then unknown.
SIMULATED: Final = "trainmaster/simulated-gpus"
# Where clouds write the model of any vendor's device.
_CLOUD_MODELS: Final = (
    "cloud.google.com/gke-accelerator",
    "cloud.google.com/gke-tpu-accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
    "k8s.amazonaws.com/accelerator",
    "accelerator",
)


@dataclass(frozen=True, slots=True)
class NodeRules:
    """How nodes are read.

    Args:
        gpu_resources: extended resources that count as GPUs; ``nvidia.com/mig-*`` means all that begin so.
        rack_labels: keys that may name a node's rack, the best first.
        tolerations: what our pods tolerate (:func:`~executors.kubernetes.nodes.parse_tolerations`).
    """

    gpu_resources: tuple[str, ...] = ("nvidia.com/gpu",)
    rack_labels: tuple[str, ...] = ("topology.kubernetes.io/rack",)
    tolerations: tuple[Mapping[str, str], ...] = ()


def gpu_id(resource: str, number: int, rules: NodeRules) -> str:
    """A name for a device that kubelet will pick: ``0``, ``1``, … of the first resource, ``amd.com/gpu:0`` of
    another.
    """
    return str(number) if resource == rules.gpu_resources[0] else f"{resource}:{number}"


def gpu_resource(gpu: str, rules: NodeRules) -> str:
    """The resource to request for a device that :func:`gpu_id` named."""
    return gpu.rpartition(":")[0] or rules.gpu_resources[0]


def read_node(node: Mapping[str, Any], use: NodeUsage, rules: NodeRules) -> NodeInfo:
    """``node`` as the planner wants it.

    Args:
        use: the node's usage that the planner does not count; ``pods``: all pods.
    """
    metadata, spec, status = node["metadata"], node["spec"], node["status"]
    own = metadata.get("labels") or {}
    allocatable = status.get("allocatable") or {}
    gpus: list[Gpu] = []
    free: dict[str, int] = {}
    for resource in sorted(allocatable, key=lambda name: _rank(name, rules)):
        count = units(allocatable[resource]) if _rank(resource, rules) < len(rules.gpu_resources) else 0
        if count:
            model, memory_bytes = _model(resource, own), _memory(resource, own)
            gpus += [Gpu(gpu_id(resource, number, rules), model, memory_bytes) for number in range(count)]
            free[model] = free.get(model, 0) + max(0, count - use.devices.get(resource, 0))
    why_not_ready = _why_not_ready(status)
    return NodeInfo(
        name=metadata["name"],
        labels={**own, **_places(own, rules)},
        allocatable=Amounts(
            max(0, milli(allocatable.get("cpu", "0")) - use.cpu_milli),
            max(0, units(allocatable.get("memory", "0")) - use.memory_bytes),
            free,
        ),
        gpus=tuple(gpus),
        is_ready=not why_not_ready,
        condition=why_not_ready or _why_closed(own, spec, status, use, rules),
        is_draining=is_draining(node),
    )


def is_draining(node: Mapping[str, Any]) -> bool:
    """Whether the node is cordoned, or about to be taken away: what runs there is evicted soon."""
    spec = node.get("spec") or {}
    return bool(spec.get("unschedulable")) or any(taint["key"] in _DRAINS for taint in spec.get("taints") or ())


def draining_since(node: Mapping[str, Any]) -> datetime | None:
    """When the node was cordoned, as the control plane noted it on the taint; ``None``: it is not, or not known."""
    taints = (node.get("spec") or {}).get("taints") or ()
    times = [taint["timeAdded"] for taint in taints if taint["key"] in _DRAINS and taint.get("timeAdded")]
    return min(map(datetime.fromisoformat, times), default=None)


class KubernetesNodeCache:
    """All nodes, updated by a watch whose thread the first call starts.

    Args:
        selector: a label selector of the nodes that jobs may use; empty: all.
    """

    def __init__(self, cluster: KubernetesClient, pods: PodCache, rules: NodeRules, *, selector: str = "") -> None:
        self._pods = pods
        self._rules = rules
        self._lock = threading.Lock()
        self._nodes: dict[str, Json] = {}
        self._read: dict[str, tuple[str, NodeUsage, NodeInfo]] = {}
        params = {"labelSelector": selector} if selector else {}
        self.reflector = Reflector(cluster, path("nodes"), self, params=params)

    def infos(self, database_id: str = "") -> Sequence[NodeInfo]:
        """By name; ``database_id``: see :meth:`executors.base.Executor.nodes`. No request is made, and only changed
        nodes are parsed again.

        Raises:
            ExecutorTryAgain: there is no copy yet, or it is older than half a minute.
        """
        self.reflector.start()
        use = self._pods.foreign_usage(database_id)
        self.reflector.require()
        with self._lock:
            return tuple(self._info(node, use.get(name, NO_USAGE)) for name, node in sorted(self._nodes.items()))

    def is_draining(self, name: str) -> bool:
        """As the copy shows it; false where there is none. No request is made."""
        with self._lock:
            node = self._nodes.get(name)
        return node is not None and is_draining(node)

    def draining(self) -> Mapping[str, datetime]:
        """The nodes that are being drained, and since when, where that is known. No request is made."""
        with self._lock:
            nodes = list(self._nodes.items())
        return {name: since for name, node in nodes if (since := draining_since(node)) is not None}

    def replace(self, items: Iterable[Json], resource_version: str) -> None:  # noqa: ARG002 (the Store's interface)
        nodes = {node["metadata"]["name"]: _lean(node) for node in items}
        with self._lock:
            self._nodes = nodes
            self._read = {name: known for name, known in self._read.items() if name in nodes}

    def apply(self, kind: str, item: Json) -> None:
        name = item["metadata"]["name"]
        with self._lock:
            if kind == "DELETED":
                self._nodes.pop(name, None)
                self._read.pop(name, None)
            else:
                self._nodes[name] = _lean(item)

    def _info(self, node: Json, use: NodeUsage) -> NodeInfo:
        name, version = node["metadata"]["name"], node["metadata"]["resourceVersion"]
        known = self._read.get(name)
        if known is not None and known[0] == version and known[1] == use:
            return known[2]
        info = read_node(node, use, self._rules)
        self._read[name] = (version, use, info)
        return info


def _lean(node: Json) -> Json:
    """Without the list of its images and the like, which are most of a node."""
    metadata, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    return {
        "metadata": {key: metadata.get(key) for key in ("name", "resourceVersion", "labels")},
        "spec": {key: spec[key] for key in ("taints", "unschedulable") if key in spec},
        "status": {"allocatable": status.get("allocatable"), "conditions": status.get("conditions")},
    }


def _rank(resource: str, rules: NodeRules) -> int:
    """Which of the GPU resources it is; their number when it is none."""
    matches = (number for number, pattern in enumerate(rules.gpu_resources) if fnmatchcase(resource, pattern))
    return next(matches, len(rules.gpu_resources))


def _model(resource: str, own: Mapping[str, str]) -> str:
    """The vendor's own labels name the model after the resource: NVIDIA's feature discovery ``<resource>.product``
    (https://github.com/NVIDIA/k8s-device-plugin/tree/main/docs/gpu-feature-discovery), AMD's labeller
    ``amd.com/gpu.product-name``, Intel's ``gpu.intel.com/product``.
    """
    domain, _, name = resource.partition("/")
    if name.startswith("mig-"):
        # A slice has its profile in its name, so that a job that asks for an A100 never gets a seventh of one.
        keys = (f"{resource}.product", _MODEL, f"{domain}/gpu.product")
        product = next((own[key] for key in keys if own.get(key)), "")
        return product if "mig" in product.lower() else f"{product}-{name}".lstrip("-")
    for key in (_MODEL, f"{resource}.product", f"{resource}.product-name", f"{domain}/product", *_CLOUD_MODELS):
        if own.get(key):
            return own[key]
    return name


def _memory(resource: str, own: Mapping[str, str]) -> int:
    """Bytes of one device; 0 when no label says it."""
    for key, unit in ((_MEMORY, ""), (f"{resource}.memory", "Mi"), (f"{resource}.vram", "")):
        if own.get(key):
            try:
                return units(own[key] + (unit if own[key].isdigit() else ""))
            except ValueError:
                continue  # a label may hold any text
    return 0


def _places(own: Mapping[str, str], rules: NodeRules) -> dict[str, str]:
    places = {}
    for place, keys in ((RACK, (RACK, *rules.rack_labels)), (ZONE, _ZONE_LABELS)):
        name = next((own[key] for key in keys if own.get(key)), None)
        if name is not None:
            places[place] = name
    return places


def _why_not_ready(status: Mapping[str, Any]) -> str:
    ready = next((c for c in status.get("conditions") or () if c["type"] == "Ready"), None)
    if ready is None:
        return "Its kubelet has not reported yet."
    if ready["status"] == "True":
        return ""
    since = f" since {ready['lastTransitionTime']}" if ready.get("lastTransitionTime") else ""
    if ready["status"] == "Unknown":
        return f"Its kubelet has not reported{since}: the node is down, or cut off from the API server."
    return f"It is not ready{since}: {ready.get('message') or ready.get('reason') or 'it does not say why'}."


def _why_closed(
    own: Mapping[str, str], spec: Mapping[str, Any], status: Mapping[str, Any], use: NodeUsage, rules: NodeRules
) -> str:
    """Why no new work may go to a node that is ready; what runs there stays."""
    if spec.get("unschedulable"):
        return "It is cordoned in the cluster."
    why = why_closed(spec.get("taints") or (), rules.tolerations)
    if why:
        return why
    for condition in status.get("conditions") or ():
        # The taint follows a moment later.
        if condition["type"] in ("MemoryPressure", "DiskPressure", "PIDPressure") and condition["status"] == "True":
            return f"It is under pressure: {condition.get('message') or condition['type']}."
    system = own.get("kubernetes.io/os", "linux")
    if system != "linux":
        return f"It runs {system}; jobs need Linux."
    most = (status.get("allocatable") or {}).get("pods")
    if most is not None and use.pods >= units(most):
        return f"It runs as many pods as it may ({most})."
    return ""


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


def _is_tolerated(taint: Mapping[str, Any], tolerations: Sequence[Mapping[str, str]]) -> bool:
    """By Kubernetes' rules, for tolerations as :func:`parse_tolerations` makes them."""
    return any(
        toleration["key"] == taint["key"]
        and toleration.get("effect", taint["effect"]) == taint["effect"]
        and (toleration["operator"] == "Exists" or toleration["value"] == (taint.get("value") or ""))
        for toleration in tolerations
    )


def why_closed(taints: Sequence[Mapping[str, Any]], tolerations: Sequence[Mapping[str, str]]) -> str:
    """A sentence when one of the taints keeps our pods away; empty when none does."""
    against = [t for t in taints if t["effect"] in ("NoSchedule", "NoExecute") and not _is_tolerated(t, tolerations)]
    if not against:
        return ""
    first = min(against, key=lambda taint: (taint["key"] not in _KNOWN, taint["key"]))
    if first["key"] in _KNOWN:
        return f"{_KNOWN[first['key']]}."
    value = f"={first['value']}" if first.get("value") else ""
    return f"It has the taint {first['key']}{value}:{first['effect']}, which jobs do not tolerate."
