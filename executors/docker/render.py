"""Requests to the engine, built purely from a :class:`ReplicaOrder`."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from core.domain.errors import ExecutorRefused
from core.domain.ids import AttemptId
from executors.base import MountOrder, ReplicaKey, ReplicaOrder
from executors.containers import labels, names, paths

REMOVED: Final = "trainmaster/removed"  # on the volume that stands for an attempt that is gone
MEMORY: Final = "trainmaster/memory"  # bytes that the planner reserved: a container without a limit shows them nowhere
_BRIDGE_NAME: Final = "com.docker.network.bridge.name"
_NO_GPUS: Final = "NVIDIA_VISIBLE_DEVICES=void"


@dataclass(frozen=True, slots=True)
class ContainerSettings:
    """Settings of all containers of a platform. ``uid`` 0: the image's own user. ``host_paths`` empty: any.

    ``shm_bytes``: size of /dev/shm where an order states neither it nor a memory limit; the driver takes half of the
    machine's memory, as the kernel does. ``log_limit_bytes``: of one replica's log; 0: no limit. ``is_here``: the
    engine's containers see the files of this machine, under its kernel; the driver finds out.
    """

    instance: str
    uid: int = 1000
    gid: int = 1000
    host_paths: tuple[str, ...] = ()
    shm_bytes: int = 2**30
    log_limit_bytes: int = 0
    is_here: bool = False


def container_name(key: ReplicaKey) -> str:
    return names.replica_name(key)


def _network_name(attempt: AttemptId) -> str:
    return names.attempt_name(attempt)


def tombstone_name(attempt: AttemptId, instance: str) -> str:
    return f"{names.attempt_name(attempt)}.{instance}.removed"


def check(order: ReplicaOrder, node: str, settings: ContainerSettings) -> None:
    """Raise :class:`ExecutorRefused` for what this engine cannot do."""
    key = order.key
    if order.node != node:
        raise ExecutorRefused(
            f"Replica {key.role}-{key.index} was placed on {order.node}, and this Docker engine is {node}."
        )
    for mount in order.mounts:
        if mount.kind not in ("local", "nfs"):
            raise ExecutorRefused(
                f"{mount.target}: a volume of kind {mount.kind} cannot be mounted by a Docker engine; use one of kind "
                "local or nfs."
            )
        if mount.kind == "local" and not _is_allowed(mount.source, settings.host_paths):
            raise ExecutorRefused(
                f"{mount.target}: the folder {mount.source} is not among those that volumes may lie under "
                "(TRAINMASTER_HOST_PATHS)."
            )


def render_network(order: ReplicaOrder, settings: ContainerSettings) -> dict[str, Any]:
    """Arguments of the network of the order's attempt.

    The engine may make two networks of one name when two ask at once, but never two with one interface: so the
    interface's name decides which request is first.
    """
    attempt = order.key.attempt_id
    mark = hashlib.sha256(f"{settings.instance}/{attempt}".encode()).hexdigest()[:12]
    return {
        "name": _network_name(attempt),
        "driver": "bridge",
        "options": {_BRIDGE_NAME: f"tm-{mark}"},  # 15 characters: the kernel's limit
        "check_duplicate": True,
        "labels": labels.attempt_labels(settings.instance, order),
    }


def render_container(order: ReplicaOrder, image: str, settings: ContainerSettings) -> dict[str, Any]:
    """The body of the request that creates the container. Nothing in it is secret."""
    key = order.key
    host = names.host_name(key.role, key.index)
    network = _network_name(key.attempt_id)
    body: dict[str, Any] = {
        "Image": image,
        "Hostname": host,
        "Entrypoint": list(paths.entry()),
        "Cmd": [],
        "Env": [] if order.gpus else [_NO_GPUS],
        "Labels": {**labels.replica_labels(settings.instance, order), MEMORY: str(order.request.memory_bytes)},
        "StopSignal": "SIGTERM",
        "StopTimeout": math.ceil(order.stop_grace.total_seconds()),
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": _host_config(order, network, settings),
        "NetworkingConfig": {"EndpointsConfig": {network: {"Aliases": [host]}}},
    }
    if settings.uid:
        body["User"] = f"{settings.uid}:{settings.gid}"
    return body


def _host_config(order: ReplicaOrder, network: str, settings: ContainerSettings) -> dict[str, Any]:
    config: dict[str, Any] = {
        "NetworkMode": network,
        "Mounts": _mounts(order, settings),
        "CpuShares": max(2, order.request.cpu_milli * 1024 // 1000),
        "PidsLimit": order.pids_limit,
        "ShmSize": _shm_bytes(order, settings),
        "SecurityOpt": ["no-new-privileges"],
        "RestartPolicy": {"Name": "no"},
        "Init": False,
        # The replica's own log is a file under the output; this is for the runtime's last messages.
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "1"}},
    }
    if settings.uid:
        config["CapDrop"] = ["ALL"]
    if order.cpu_limit_milli is not None:
        config["NanoCpus"] = order.cpu_limit_milli * 1_000_000
    if order.memory_limit_bytes is not None:
        # Equal: no swap, as in a machine that has none.
        config["Memory"] = config["MemorySwap"] = order.memory_limit_bytes
    if order.gpus:
        config["DeviceRequests"] = [
            {"Driver": "", "Count": 0, "DeviceIDs": list(order.gpus), "Capabilities": [["gpu"]], "Options": {}}
        ]
    return config


def _shm_bytes(order: ReplicaOrder, settings: ContainerSettings) -> int:
    """As a machine has it, half of the memory: the engine's own 64 MB are too little for data loaders."""
    if order.shm_bytes is not None:
        return order.shm_bytes
    return order.memory_limit_bytes // 2 if order.memory_limit_bytes is not None else settings.shm_bytes


def _mounts(order: ReplicaOrder, settings: ContainerSettings) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = []
    if order.code_digest is not None:
        # An empty folder over what the image has there, on the disk and gone with the container.
        options = {"NoCopy": True, "Labels": labels.attempt_labels(settings.instance, order)}
        mounts.append({"Type": "volume", "Target": paths.WORK, "VolumeOptions": options})
    return mounts + [_mount(mount, order, settings) for mount in order.mounts]


def _mount(mount: MountOrder, order: ReplicaOrder, settings: ContainerSettings) -> dict[str, Any]:
    if mount.volume is None or mount.kind == "local":
        return {"Type": "bind", "Source": mount.source, "Target": mount.target, "ReadOnly": mount.read_only}
    config, path = mount.volume.config, mount.volume.path
    device = str(PurePosixPath(str(config["path"])) / path)
    options = [f"addr={config['server']}", "ro" if mount.read_only else "rw"]
    options += [str(config["options"])] if config.get("options") else []
    driver_options = {"type": "nfs", "o": ",".join(options), "device": f":{device}"}
    mark = hashlib.sha256(repr(sorted(driver_options.items())).encode()).hexdigest()[:12]
    return {
        "Type": "volume",
        "Source": names.fit(f"{order.key.attempt_id}-nfs-{mark}"),
        "Target": mount.target,
        "ReadOnly": mount.read_only,
        "VolumeOptions": {
            "NoCopy": True,
            "Labels": labels.attempt_labels(settings.instance, order),
            "DriverConfig": {"Name": "local", "Options": driver_options},
        },
    }


def _is_allowed(path: str, allowed: Sequence[str]) -> bool:
    if ".." in PurePosixPath(path).parts:
        return False
    return not allowed or any(PurePosixPath(path).is_relative_to(folder) for folder in allowed)
