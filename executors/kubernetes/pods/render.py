"""The objects of one replica, built purely: one Pod, and the Service that all replicas share (see also ``secret``)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from core.domain.errors import ExecutorRefused
from core.domain.ids import AttemptId
from executors.base import MountOrder, ReplicaOrder, VolumeSource
from executors.containers import labels, names, paths
from executors.containers.order_files import needs_installer
from executors.kubernetes.cache import WORLD_UPDATE
from executors.kubernetes.nodes import gpu_resource
from executors.kubernetes.options import KubernetesOptions
from executors.kubernetes.pods.secret import SecretLocation, image_command_env, own, uses_image_command, volume_items
from executors.kubernetes.volumes import render_volume

Json = dict[str, Any]

MAIN: Final = "main"
INSTALLER: Final = "runtime"
# On the Pod, shown to its container as paths.STOP_REQUEST; empty until the stop is requested.
STOP: Final = "trainmaster/stop"
# On the Pod of an elastic gang: the number of its newest world, 0 while it joins. WORLD_UPDATE holds the world itself,
# shown to its container as paths.WORLD_REQUEST, empty before the first update.
WORLD: Final = "trainmaster/world"
# On the Pod: the image's own command runs, without the runtime.
IMAGE_COMMAND: Final = "trainmaster/plain"
# On tombstones, whose attempt must not look like a live one.
REMOVED: Final = "trainmaster/removed"

# The runtime enforces stop_grace itself; kubelet's grace, for pods deleted from outside, must not end first.
_GRACE_SLACK_S: Final = 5
_JOIN_PATIENCE_S: Final = 7200
# On the Pod of a replica with a part of a GPU: the device.
DEVICE: Final = "trainmaster/gpu-device"
# Which devices NVIDIA's container runtime shows to a container; a device plugin sets it where kubelet gives devices.
_VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"
# Devices that are shown to a container by their names alone.
_SHAREABLE_VENDOR: Final = "nvidia.com/"
# Node trouble is the control loop's business: a pod stays until the platform has decided about its whole gang.
_NODE_TROUBLE: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def check(order: ReplicaOrder, options: KubernetesOptions) -> None:
    """Raise :class:`ExecutorRefused` for what cannot run on this cluster."""
    role = order.key.role
    if not (order.image or options.default_image):
        raise ExecutorRefused(
            f"Role {role} names no image, and this platform has no default one (TRAINMASTER_DEFAULT_IMAGE); set "
            "`image`.",
            field=f"roles.{role}.image",
        )
    if order.request.gpu_milli and not gpu_resource(order.gpus[0], options.rules).startswith(_SHAREABLE_VENDOR):
        raise ExecutorRefused(
            f"On Kubernetes only NVIDIA's GPUs are given in parts, and {order.node} has others; ask for whole ones.",
            field=f"roles.{role}.resources.gpus",
        )
    if order.command:
        return
    if order.environment:
        raise ExecutorRefused(
            f"Role {role} has no command, and on Kubernetes an image's own command runs with the image's Python: set "
            "`command`, or remove `environment`.",
            field=f"roles.{role}.command",
        )
    if order.world is not None:
        raise ExecutorRefused(
            f"Role {role} has no command, and on Kubernetes an image's own command runs without the runtime that "
            "receives new worlds: set `command`, or `workers` to one number.",
            field=f"roles.{role}.command",
        )
    if order.code_digest is not None:
        raise ExecutorRefused(
            f"Role {role} has code but no command; on Kubernetes an image's own command runs without the code: set "
            "`command`.",
            field=f"roles.{role}.command",
        )
    if len(order.process_env) > 1:
        raise ExecutorRefused(
            f"Role {role} asks for several processes but has no command; set `command`.", field=f"roles.{role}.command"
        )
    if any(not path.startswith(f"{paths.OWN}/") for path in order.files):
        raise ExecutorRefused(
            f"The contract of role {role} writes files, which needs a command; set `command`.",
            field=f"roles.{role}.command",
        )


def owned(thing: Json, kind: str, owner: Mapping[str, Any]) -> Json:
    """``thing``, which goes when its owner goes, even if this platform never comes back."""
    return {**thing, "metadata": {**thing["metadata"], "ownerReferences": [owner_reference(kind, owner)]}}


def owner_reference(kind: str, owner: Mapping[str, Any]) -> Json:
    metadata = owner["metadata"]
    return {"apiVersion": "v1", "kind": kind, "name": metadata["name"], "uid": metadata["uid"]}


def render_service(order: ReplicaOrder, options: KubernetesOptions, namespace: str) -> Json:
    """Gives every replica its name from the start: peers look for each other before they are ready."""
    key = order.key
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": names.attempt_name(key.attempt_id),
            "namespace": namespace,
            "labels": labels.attempt_labels(options.instance, order),
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": labels.selector(options.instance, key.attempt_id),
        },
    }


def show_device(pod: Json, device: str) -> None:
    """Let ``pod``, of a replica with a part of a GPU, see ``device``: kubelet gives it none by itself."""
    (main,) = pod["spec"]["containers"]
    for variable in main["env"]:
        if variable["name"] == _VISIBLE:
            variable["value"] = device
    pod["metadata"]["annotations"][DEVICE] = device


def render_pod(
    order: ReplicaOrder, options: KubernetesOptions, namespace: str, location: SecretLocation | None = None
) -> Json:
    """The Pod, bound to the planner's node by affinity: kube-scheduler and kubelet still check that it fits.

    ``location``: where its secrets are; default: a Secret of its own. With a part of a GPU it sees no device before
    :func:`show_device`.
    """
    key = order.key
    location = location or own(order)
    volumes, mounts = _volumes(order, options, namespace, location)
    metadata = _metadata(order, options, namespace)
    metadata["annotations"] = {STOP: "", **({IMAGE_COMMAND: "true"} if uses_image_command(order) else {})}
    if order.world is not None:
        metadata["annotations"] |= {WORLD: str(order.world), WORLD_UPDATE: ""}
    spec: Json = {
        "restartPolicy": "Never",
        "hostname": names.host_name(key.role, key.index),
        "subdomain": names.attempt_name(key.attempt_id),
        "terminationGracePeriodSeconds": math.ceil(order.stop_grace.total_seconds()) + _GRACE_SLACK_S,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "affinity": {"nodeAffinity": on_node(order.node)},
        "tolerations": tolerations(options),
        "securityContext": pod_security(options),
        "containers": [_main(order, options, mounts, location)],
        "volumes": volumes,
    }
    if not uses_image_command(order):
        spec["initContainers"] = [_installer(order, options)]
    if options.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in options.pull_secrets]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def render_tombstone(attempt_id: AttemptId, options: KubernetesOptions) -> Json:
    """Tombstone of a removed attempt: a late creation of one of its replicas finds it and stops."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": names.attempt_name(attempt_id),
            "namespace": options.namespace,
            "labels": {labels.INSTANCE: options.instance, REMOVED: labels.label_value(attempt_id)},
        },
    }


# Parts of the Pod


def _metadata(order: ReplicaOrder, options: KubernetesOptions, namespace: str) -> Json:
    return {
        "name": names.replica_name(order.key),
        "namespace": namespace,
        "labels": labels.replica_labels(options.instance, order),
    }


def on_node(node: str) -> Json:
    """A node affinity that lets a Pod onto this node alone."""
    # By the node's own name: the label kubernetes.io/hostname differs from it on some clouds. DaemonSets do the same.
    here = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [here]}]}}


def tolerations(options: KubernetesOptions) -> list[Json]:
    """Tolerations of all our Pods."""
    tolerated = [{"key": key, "operator": "Exists", "effect": "NoExecute"} for key in _NODE_TROUBLE]
    return [*tolerated, *(dict(toleration) for toleration in options.rules.tolerations)]


def pod_security(options: KubernetesOptions) -> Json:
    """The security context of all our Pods."""
    context: Json = {"seccompProfile": {"type": "RuntimeDefault"}}
    if options.uid:
        context |= {
            "runAsNonRoot": True,
            "runAsUser": options.uid,
            "runAsGroup": options.gid,
            "fsGroup": options.gid,
            # A volume of millions of files must not be walked through at every start.
            "fsGroupChangePolicy": "OnRootMismatch",
        }
    return context


def container_security(options: KubernetesOptions) -> Json:
    """The security context of all our containers."""
    # An image that runs as root needs what root may do in a container (chown, changing users), but no raw packets.
    drop = ["ALL"] if options.uid else ["NET_RAW"]
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": drop}}


def _installer(order: ReplicaOrder, options: KubernetesOptions) -> Json:
    """Copies the runtime into the Pod."""
    resources = {
        kind: {name: amount for name, amount in amounts.items() if name in ("cpu", "memory")}
        for kind, amounts in _resources(order, options).items()
    }
    return {
        "name": INSTALLER,
        "image": options.runtime_image,
        "imagePullPolicy": "IfNotPresent",
        "command": _install_command(order),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        # As much as the main container: a quota that asks for limits gets them, and nothing more is reserved.
        "resources": resources,
        "securityContext": container_security(options),
        "volumeMounts": [{"name": "runtime", "mountPath": "/into"}],
    }


def _install_command(order: ReplicaOrder) -> list[str]:
    busybox = f"{paths.RUNTIME}/busybox"
    if not needs_installer(order):
        return [busybox, "cp", "-r", f"{paths.RUNTIME}/.", "/into/"]
    # An older runtime image has no tools: then the job's image must have uv or pip.
    script = (
        f"{busybox} cp -r {paths.RUNTIME}/. /into/ && "
        f"if [ -d {paths.INSTALLER} ]; then {busybox} cp -r {paths.INSTALLER}/. /into/; fi"
    )
    return [busybox, "sh", "-c", script]


def _main(order: ReplicaOrder, options: KubernetesOptions, mounts: Sequence[Json], location: SecretLocation) -> Json:
    container: Json = {
        "name": MAIN,
        "image": order.image or options.default_image,
        "imagePullPolicy": "IfNotPresent",
        "terminationMessagePath": paths.TERMINATION_LOG,
        # Where the runtime left no record, the end of the log says more than nothing.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": _resources(order, options),
        "securityContext": container_security(options),
        "volumeMounts": list(mounts),
    }
    # Images of NVIDIA's kind ask for all devices, and get them where its container runtime is the node's default.
    hidden = [{"name": _VISIBLE, "value": "void"}] if not order.request.gpu_count else []
    if uses_image_command(order):
        secret_env = [
            {"name": name, "valueFrom": {"secretKeyRef": {"name": location.name, "key": f"{location.prefix}{name}"}}}
            for name in sorted(image_command_env(order))
        ]
        container["env"] = [*hidden, *secret_env]
        if order.args:
            container["args"] = list(order.args)
        return container
    container["command"] = list(paths.entry())
    if order.world == 0:
        # A running Pod cannot report to the API server itself: kubelet probes, and stops when the file exists.
        # The control loop's patience ends before kubelet's does.
        probe = [f"{paths.RUNTIME}/busybox", "test", "-e", paths.JOINS]
        container["startupProbe"] = {
            "exec": {"command": probe},
            "periodSeconds": 1,
            "timeoutSeconds": 10,
            "failureThreshold": _JOIN_PATIENCE_S,
        }
    if hidden:
        container["env"] = hidden
    return container


def _resources(order: ReplicaOrder, options: KubernetesOptions) -> Json:
    request = order.request
    requests = {"cpu": f"{request.cpu_milli}m", "memory": str(request.memory_bytes)}
    limits: dict[str, str] = {}
    if order.cpu_limit_milli is not None:
        limits["cpu"] = f"{order.cpu_limit_milli}m"
    if order.memory_limit_bytes is not None:
        limits["memory"] = str(order.memory_limit_bytes)
    if request.gpu_count:
        resource = gpu_resource(order.gpus[0] if order.gpus else "", options.rules)
        requests[resource] = limits[resource] = str(request.gpu_count)
    return {"requests": requests, "limits": limits} if limits else {"requests": requests}


def _volumes(
    order: ReplicaOrder, options: KubernetesOptions, namespace: str, location: SecretLocation
) -> tuple[list[Json], list[Json]]:
    """Volumes and where the main container has them, parents first."""
    shm: Json = {"medium": "Memory"}
    # The engine's own 64 MiB would fail every data loader. Its pages count against the memory limit; that a volume
    # without a size is not larger than that is so from 1.22 on only.
    size_bytes = order.shm_bytes if order.shm_bytes is not None else order.memory_limit_bytes
    if size_bytes is not None:
        shm["sizeLimit"] = str(size_bytes)
    volumes: list[Json] = [{"name": "shm", "emptyDir": shm}]
    mounts: list[Json] = [{"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108 (a mount of the container's)
    # Readable for the group alone where the group is ours, else for any user that the image runs as.
    secret: Json = {"secretName": location.name, "defaultMode": 0o440 if options.uid else 0o444}
    if (items := volume_items(order, location)) is not None:
        secret["items"] = items
    if uses_image_command(order):
        if items:  # none would mean all
            volumes.append({"name": "order", "secret": secret})
            mounts.append({"name": "order", "mountPath": paths.OWN, "readOnly": True})
    else:
        request_files = [{"path": "stop", "fieldRef": {"fieldPath": f"metadata.annotations['{STOP}']"}}]
        if order.world is not None:
            request_files.append(
                {"path": "world", "fieldRef": {"fieldPath": f"metadata.annotations['{WORLD_UPDATE}']"}}
            )
        volumes += [
            {"name": "order", "secret": secret},
            {"name": "runtime", "emptyDir": {}},
            {"name": "asked", "downwardAPI": {"items": request_files}},
        ]
        mounts += [
            {"name": "order", "mountPath": paths.ORDER, "readOnly": True},
            {"name": "runtime", "mountPath": paths.RUNTIME, "readOnly": True},
            {"name": "asked", "mountPath": paths.REQUESTS, "readOnly": True},
        ]
        for number, folder in enumerate(paths.scratch_folders(order)):
            volumes.append({"name": f"scratch-{number}", "emptyDir": {}})
            mounts.append({"name": f"scratch-{number}", "mountPath": folder})
    mounted: dict[str, Json] = {}
    for mount in sorted(order.mounts, key=lambda mount: mount.target):
        volume, volume_mount = _mount(mount, f"mount-{len(mounted)}", options, namespace)
        # A volume that is used twice is one volume of the Pod: a claim must not be there twice.
        key = repr(sorted((name, repr(value)) for name, value in volume.items() if name != "name"))
        known = mounted.setdefault(key, volume)
        mounts.append({**volume_mount, "name": known["name"]})
    return volumes + list(mounted.values()), mounts


def _mount(mount: MountOrder, name: str, options: KubernetesOptions, namespace: str) -> tuple[Json, Json]:
    return render_volume(
        mount.volume or VolumeSource(name, "local", {"path": mount.source}),
        name=name,
        target=mount.target,
        read_only=mount.read_only,
        host_paths=options.host_paths,
        namespace=namespace,
    )
