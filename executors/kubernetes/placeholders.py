"""Parts of GPUs: a Pod of our own holds the whole device for all that share it.

kubelet gives devices out whole, and chooses which. So for each device that is given away in parts there is one
*placeholder*: a Pod that requests one device, reports which one it got, and sleeps. The Pods that share it request no
device: they are shown that one by ``NVIDIA_VISIBLE_DEVICES``. KAI-Scheduler does the same
(https://github.com/NVIDIA/KAI-Scheduler/tree/main/docs/gpu-sharing); where its reservation pod calls the API server,
ours needs no right to anything: its init container leaves the device's name as its termination message.

A placeholder's name follows from the node and from the planner's name of the device, so that all processes find the
same one. It has an annotation for each attempt that holds it. The process that removes the last annotation deletes it,
if nothing has changed since; what a killed process leaves is deleted by :meth:`Placeholders.gc`. Why like this:
docs/decisions/0025.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Final

import structlog

from core.domain.errors import ExecutorTryAgain
from core.domain.ids import AttemptId
from executors.base import ReplicaKey, ReplicaOrder
from executors.containers import labels, names, paths
from executors.kubernetes.api_server.client import Json, ObjectConflict, ObjectExists, ObjectNotFound, path
from executors.kubernetes.cache import PLACEHOLDER
from executors.kubernetes.nodes import SIMULATED, gpu_resource
from executors.kubernetes.options import KubernetesOptions
from executors.kubernetes.pods import render
from executors.kubernetes.pods.pod_writer import PodWriter

log = structlog.get_logger(__name__)

# On a placeholder, one for each attempt that holds it: since when.
_HOLDER_PREFIX: Final = "held.trainmaster/"
_DEVICE_PROBE: Final = "look"
# Long enough for a node that has the runtime's image; the control loop comes back anyway.
_WAIT_S: Final = 4.0
_STEP_S: Final = 0.2
_TRIES: Final = 5
# A creator marks the placeholder a moment before anything else of its attempt can be seen.
_YOUNG: Final = timedelta(seconds=60)
# Of a program that sleeps. As much as it may have is guaranteed to it: so it is evicted last.
_OWN_RESOURCES: Final = {"cpu": "10m", "memory": "16Mi"}
# How device plugins pass a device to a container: a variable, files (device-list-strategy), or only what the
# driver shows there: https://github.com/NVIDIA/k8s-device-plugin#as-command-line-flags-or-envvars
_SCRIPT: Final = """
device=$NVIDIA_VISIBLE_DEVICES
case $device in GPU-*|MIG-*) ;; *) device= ;; esac
for file in /var/run/nvidia-container-devices/*; do [ -e "$file" ] && device=${file##*/}; done
[ -n "$device" ] || device=$("$0" sed -n 's/^GPU UUID:[^G]*//p' /proc/driver/nvidia/gpus/*/information 2>/dev/null)
printf %s "$device" > /dev/termination-log
"""


class Placeholders(PodWriter):
    """Makes, shares and ends them. Keeps nothing."""

    def hold(self, orders: Sequence[ReplicaOrder]) -> Mapping[ReplicaKey, str]:
        """For each order of a part of a GPU what ``NVIDIA_VISIBLE_DEVICES`` is to be: the device, pending until
        :meth:`release`.

        Raises:
            ExecutorTryAgain: kubelet has not given a device, or the device cannot be identified.
        """
        orders_by_name = {_render_placeholder(order, self._options)["metadata"]["name"]: order for order in orders}
        if not orders_by_name:
            return {}
        if self._options.is_per_project:
            self._namespaces.ensure_own()
        end_s = time.monotonic() + _WAIT_S
        pending = {name: self._ensure(order) for name, order in orders_by_name.items()}
        devices: dict[str, str] = {}
        while pending:
            for name, pod in list(pending.items()):
                device = self._device(pod, orders_by_name[name].node)
                if device is not None:
                    devices[name] = device
                    del pending[name]
            if pending:
                if time.monotonic() >= end_s:
                    raise ExecutorTryAgain(_why_waits(next(iter(pending.values()))))
                self._sleep.wait(_STEP_S)
                pending = {name: self._refetch(pod, orders_by_name[name]) for name, pod in pending.items()}
        return {order.key: devices[_placeholder_name(order, self._options)] for order in orders}

    def release(self, attempt_id: AttemptId) -> None:
        """The attempt has ended: delete its placeholders that no other attempt holds."""
        mark = _holder_key(attempt_id)
        for pod in self._pods.placeholders():
            if mark in (pod["metadata"].get("annotations") or {}):
                self._release_marks(pod, {mark})

    def gc(self, live: Collection[AttemptId]) -> None:
        """Take off the marks of attempts that are not among ``live``, if they are older than a minute."""
        marks = {_holder_key(attempt_id) for attempt_id in live}
        oldest = self._clock() - _YOUNG
        for pod in self._pods.placeholders():
            stale = {mark for mark, since in _holders(pod).items() if mark not in marks and _time(since) < oldest}
            if stale or (not _holders(pod) and _time(pod["metadata"]["creationTimestamp"]) < oldest):
                log.info("kubernetes.reservation_swept", pod=pod["metadata"]["name"], holders=sorted(stale))
                self._release_marks(pod, stale)

    def _ensure(self, order: ReplicaOrder) -> Json:
        """The placeholder, with the mark of the order's attempt on it."""
        mark = _holder_key(order.key.attempt_id)
        placeholder = _render_placeholder(order, self._options)
        url = path("pods", self._options.namespace)
        for _ in range(_TRIES):
            placeholder["metadata"]["annotations"] |= {mark: self._clock().isoformat()}
            try:
                made = self._cluster.post(url, placeholder)
            except ObjectExists:
                existing = self._mark_existing(f"{url}/{placeholder['metadata']['name']}", mark)
                if existing is None:
                    self._sleep.wait(_STEP_S)
                    continue
                made = existing
            self._pods.put(made)
            return made
        raise ExecutorTryAgain(f"The GPU on {order.node} that it shares is just being given back.")

    def _mark_existing(self, url: str, mark: str) -> Json | None:
        """The Pod that is there, marked; ``None`` where it is going, or has ended and is sent away."""
        try:
            known = self._cluster.get(url)
            if (known.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
                # kubelet has the device back. Without a deletion, its node was shut down or ran short of a resource.
                if known["metadata"].get("deletionTimestamp") is None:
                    log.warning("kubernetes.reservation_ended", pod=known["metadata"]["name"])
                # Nothing of it runs: there is no need to wait until kubelet lets it go, which may take ten seconds.
                self._delete(known, grace_s=0)
                return None
            if known["metadata"].get("deletionTimestamp") is None and mark not in _holders(known):
                # Always a patch, so that a concurrent deletion of an unused placeholder meets another version.
                known = self._cluster.patch(url, {"metadata": {"annotations": {mark: self._clock().isoformat()}}})
        except (ObjectNotFound, ObjectConflict):
            return None
        return known if known["metadata"].get("deletionTimestamp") is None else None

    def _refetch(self, pod: Json, order: ReplicaOrder) -> Json:
        try:
            return self._cluster.get(_url(pod))
        except ObjectNotFound:
            return self._ensure(order)

    def _device(self, pod: Json, node: str) -> str | None:
        """Which device it got; ``None``: not yet known. Raises ``ExecutorTryAgain`` where it cannot be known."""
        statuses = (pod.get("status") or {}).get("initContainerStatuses") or ()
        ended = next(
            (
                status_of_container["state"].get("terminated")
                for status_of_container in statuses
                if status_of_container["name"] == _DEVICE_PROBE
            ),
            None,
        )
        if ended is None:
            return None
        device = str(ended.get("message") or "").strip()
        if device and len(device.split()) == 1:
            return device
        if self._is_simulated(node):
            return "void"
        raise ExecutorTryAgain(
            f"Node {node} does not report which GPU it gave for sharing: its device plugin sets neither "
            "NVIDIA_VISIBLE_DEVICES nor device files in the container. The administrator finds more in "
            "docs/kubernetes.md."
        )

    def _is_simulated(self, node: str) -> bool:
        try:
            own = self._cluster.get(path("nodes", name=node))["metadata"].get("labels") or {}
        except ObjectNotFound:
            return False
        return own.get(SIMULATED) == "true"

    def _release_marks(self, pod: Json, marks: Collection[str]) -> None:
        """Take ``marks`` off, and delete it if that leaves none."""
        with suppress(ObjectNotFound):
            for _ in range(_TRIES):
                try:
                    if marks:
                        pod = self._cluster.patch(_url(pod), {"metadata": {"annotations": dict.fromkeys(marks)}})
                        self._pods.put(pod)
                    if not _holders(pod):
                        self._delete(pod)
                except ObjectConflict:
                    # Another attempt took it meanwhile: then it stays, else it is tried again.
                    pod = self._cluster.get(_url(pod))
                else:
                    return

    def _delete(self, pod: Json, *, grace_s: int = 1) -> None:
        metadata = pod["metadata"]
        preconditions = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        options = {"gracePeriodSeconds": grace_s, "preconditions": preconditions}
        answer = self._cluster.delete(_url(pod), options=options)
        if answer.get("kind") == "Pod":
            self._pods.put(answer)


def _placeholder_name(order: ReplicaOrder, options: KubernetesOptions) -> str:
    """The same for all that share the device."""
    identity = "\n".join((options.instance, order.database_id, order.node, order.gpus[0]))
    return f"gpu-{hashlib.sha256(identity.encode()).hexdigest()[:20]}"


def _render_placeholder(order: ReplicaOrder, options: KubernetesOptions) -> Json:
    """The Pod that holds the device of ``order``, without marks."""
    resource = gpu_resource(order.gpus[0], options.rules)
    device = {"limits": {**_OWN_RESOURCES, resource: "1"}, "requests": {**_OWN_RESOURCES, resource: "1"}}
    name = _placeholder_name(order, options)
    own = {labels.INSTANCE: options.instance, PLACEHOLDER: name}
    if order.database_id:
        own[labels.DATABASE] = order.database_id
    container: Json = {
        "image": options.runtime_image,
        "imagePullPolicy": "IfNotPresent",
        # kubelet gives the main container the device that its init container had.
        "resources": device,
        "securityContext": render.container_security(options),
    }
    busybox = f"{paths.RUNTIME}/busybox"
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "affinity": {"nodeAffinity": render.on_node(order.node)},
        "tolerations": render.tolerations(options),
        "securityContext": render.pod_security(options),
        "initContainers": [{"name": _DEVICE_PROBE, **container, "command": [busybox, "sh", "-c", _SCRIPT, busybox]}],
        "containers": [{"name": render.MAIN, **container, "command": [busybox, "sleep", "2147483647"]}],
    }
    if options.pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret} for secret in options.pull_secrets]
    about = {"trainmaster/node": order.node, "trainmaster/gpu": order.gpus[0]}
    metadata = {"name": name, "namespace": options.namespace, "labels": own, "annotations": about}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _holder_key(attempt_id: AttemptId) -> str:
    return f"{_HOLDER_PREFIX}{names.attempt_name(attempt_id)}"


def _holders(pod: Mapping[str, Any]) -> dict[str, str]:
    own = pod["metadata"].get("annotations") or {}
    return {key: value for key, value in own.items() if key.startswith(_HOLDER_PREFIX)}


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _url(pod: Json) -> str:
    return path("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])


def _why_waits(pod: Json) -> str:
    node = (pod["metadata"].get("annotations") or {}).get("trainmaster/node", "its node")
    status = pod.get("status") or {}
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False" and condition.get("message"):
            return f"It waits for the GPU on {node} that it shares: {condition['message']}"
    for status_of_container in status.get("initContainerStatuses") or ():
        waiting = (status_of_container.get("state") or {}).get("waiting") or {}
        if waiting.get("message"):
            return f"It waits for the GPU on {node} that it shares: {waiting['message']}"
    return f"It waits for the GPU on {node} that it shares: {node} has not given it yet."
