"""The engine's machine as a node."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from core.domain.sharing.gpus import normal_model
from core.domain.sharing.resources import Amounts
from executors.base import Gpu, NodeInfo
from executors.containers import labels
from executors.docker.engine import DockerEngine
from executors.docker.render import MEMORY
from executors.node_resources import ForeignUsage
from executors.process import machine
from executors.process.machine import GpuCache

# Left to the engine and the system: a twentieth of the memory, at most this.
_RESERVE_BYTES: Final = 1024 * 2**20
_GPU: Final = re.compile(r"([^=,:\s]+)=([^=,:]+):([0-9]+)")


def node_name(info: Mapping[str, Any]) -> str:
    """The machine's name as a label."""
    name = re.sub(r"[^a-z0-9-]+", "-", str(info.get("Name") or "").lower()).strip("-")[:63].rstrip("-")
    return name or "docker"


def describe(info: Mapping[str, Any], gpus: tuple[Gpu, ...]) -> NodeInfo:
    """The node, from the engine's ``/info``."""
    models: dict[str, int] = {}
    for gpu in gpus:
        models[gpu.model] = models.get(gpu.model, 0) + 1
    memory = int(info.get("MemTotal") or 0)
    name = node_name(info)
    own = dict(label.partition("=")[::2] for label in info.get("Labels") or ())
    return NodeInfo(
        name=name,
        labels={
            **own,
            "hostname": name,
            "os": str(info.get("OSType") or "linux"),
            "arch": str(info.get("Architecture") or ""),
        },
        allocatable=Amounts(int(info.get("NCPU") or 0) * 1000, memory - min(_RESERVE_BYTES, memory // 20), models),
        gpus=gpus,
    )


def is_live_and_foreign(summary: Mapping[str, Any], database_id: str) -> bool:
    """Whether a container, as a list shows it, holds what the database ``database_id`` does not know of."""
    is_live = summary["State"] not in ("exited", "dead", "removing")
    return is_live and labels.is_of_foreign_database(summary.get("Labels") or {}, database_id)


def read_usage(container: Mapping[str, Any]) -> ForeignUsage:
    """The resources of a replica's container, as :mod:`executors.docker.render` requested them."""
    host, own = container["HostConfig"], container["Config"].get("Labels") or {}
    gpus = {gpu for request in host.get("DeviceRequests") or () for gpu in request.get("DeviceIDs") or ()}
    # Containers of a version without this label: only the limit is known.
    memory_bytes = int(own.get(MEMORY) or host.get("Memory") or 0)
    return ForeignUsage(int(host.get("CpuShares") or 0) * 1000 // 1024, memory_bytes, frozenset(gpus))


def find_gpus(engine: DockerEngine) -> Callable[[], tuple[Gpu, ...]]:
    """Asks this machine's driver, by UUID, where the engine is on this machine; no GPUs for a remote engine."""
    if not engine.is_local:
        return tuple
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return GpuCache(partial(machine.find_gpus, visible=visible))


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """GPUs that an administrator lists, as ``<UUID or index>=<model>:<GiB>,…``. Raises ``ValueError``."""
    gpus = []
    for part in filter(None, (word.strip() for word in text.split(","))):
        match = _GPU.fullmatch(part)
        if match is None:
            raise ValueError(f"{part!r} is not <UUID or index>=<model>:<GiB>, such as 0=NVIDIA A100:80")
        gpus.append(Gpu(match.group(1), normal_model(match.group(2).strip()), int(match.group(3)) * 2**30))
    return tuple(gpus)
