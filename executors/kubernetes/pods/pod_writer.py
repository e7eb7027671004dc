"""Changing Pods: the base of the driver's parts that do, and world updates.

A running Pod gets another world of its elastic gang by an annotation, as it gets a stop, and kubelet shows it to the
runtime as a file within a second. So the API server's answer guarantees that the replica will receive it, and no
connection into the Pod is needed.
"""

from __future__ import annotations

import base64
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from core.domain.errors import ExecutorRefused
from executors.base import ReplicaOrder
from executors.containers.order_files import render_world
from executors.kubernetes.api_server.client import KubernetesClient, ObjectNotFound, path
from executors.kubernetes.cache import WORLD_UPDATE, PodCache
from executors.kubernetes.namespaces import Namespaces
from executors.kubernetes.options import KubernetesOptions
from executors.kubernetes.pods.observe import has_started, is_over, world_of
from executors.kubernetes.pods.render import WORLD

# For all annotations of an object together, ours and others.
# https://kubernetes.io/docs/concepts/overview/working-with-objects/annotations/ names no limit; the API server has one
# of 256 KiB (apimachinery, TotalAnnotationSizeLimitB).
_LIMIT_BYTES: Final = 200 * 1024


@dataclass(eq=False)
class PodWriter:
    """Base of the driver's parts that change Pods: they decide by the cached state, and wait for the
    effects.
    """

    _cluster: KubernetesClient
    _options: KubernetesOptions
    _namespaces: Namespaces
    _pods: PodCache
    _clock: Callable[[], datetime]
    # Never set: a wait that needs no clock.
    _sleep: threading.Event = field(default_factory=threading.Event, init=False)


def change_world(cluster: KubernetesClient, pods: PodCache, order: ReplicaOrder) -> None:
    """See :class:`executors.base.ChangesWorlds`."""
    pod = pods.find(order.key)
    if pod is None or is_over(pod) or not has_started(pod):
        return
    known = world_of(pod)
    world = order.world or 0
    if known is None or known >= world:
        return
    annotations = {WORLD: str(world), WORLD_UPDATE: encode_world(order)}
    try:
        # Only this Pod: another one of its name has another uid.
        patch = {"metadata": {"uid": pod["metadata"]["uid"], "annotations": annotations}}
        url = path("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])
        pods.put(cluster.patch(url, patch))
    except ObjectNotFound:
        return


def encode_world(order: ReplicaOrder) -> str:
    """Value of the annotation for a world update.

    Raises:
        ExecutorRefused: it is too long, for a gang of thousands.
    """
    text = base64.b64encode(zlib.compress(render_world(order))).decode()
    if len(text) > _LIMIT_BYTES:
        raise ExecutorRefused(
            f"The layout of this gang takes {len(text) / 2**10:.0f} KiB, and Kubernetes takes at most "
            f"{_LIMIT_BYTES / 2**10:.0f} KiB for a world update: ask for fewer replicas."
        )
    return text
