"""What kubelet warns of while a pod waits: a volume that cannot be mounted, an image that cannot be pulled."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import structlog

from core.domain.errors import ExecutorError
from executors.kubernetes.client import Cluster, Json, path
from executors.kubernetes.observe import waits_since

log = structlog.get_logger(__name__)

# A pod that starts as it should needs no look at its events.
_LONG: Final = timedelta(seconds=10)
_LOOK_AGAIN: Final = timedelta(seconds=20)
_REMEMBERED: Final = 2_000
# Warnings that only repeat what another one says better.
_EMPTY: Final = ("Error: ErrImagePull", "Error: ImagePullBackOff")


@dataclass(frozen=True, slots=True)
class _Told:
    at: datetime
    message: str


class Warnings:
    """Asks for the events of pods that wait for long. What is remembered only saves requests."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._told: OrderedDict[str, _Told] = OrderedDict()
        self._lock = threading.Lock()

    def about(self, pod: Json, now: datetime) -> str:
        """The latest warning about a pod that has been waiting on its node for ten seconds; empty: none."""
        since = waits_since(pod)
        if since is None or now - since < _LONG:
            return ""
        uid = pod["metadata"]["uid"]
        with self._lock:
            known = self._told.get(uid)
        if known is not None and now - known.at < _LOOK_AGAIN:
            return known.message
        message = self._ask(pod["metadata"]["namespace"], uid) or (known.message if known is not None else "")
        with self._lock:
            self._told[uid] = _Told(now, message)
            while len(self._told) > _REMEMBERED:
                self._told.popitem(last=False)
        return message

    def _ask(self, namespace: str, uid: str) -> str:
        query = {"fieldSelector": f"involvedObject.uid={uid},type=Warning"}
        try:
            events = self._cluster.list_page(path("events", namespace), query, limit=50)["items"]
        except ExecutorError as error:
            log.info("kubernetes.no_events", why=error.sentence)
            return ""  # it waits without being told why
        told = [event for event in events if event.get("message") and event["message"] not in _EMPTY]
        latest = max(told, key=_at, default=None)
        return "" if latest is None else str(latest["message"])


def _at(event: Json) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"])
