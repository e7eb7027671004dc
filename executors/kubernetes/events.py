"""What kubelet warns of while a pod waits: a volume that cannot be mounted, an image that cannot be pulled."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

import structlog

from core.domain.errors import ExecutorError
from executors.kubernetes.client import Cluster, Gone, Json, path
from executors.kubernetes.observe import waits_since

log = structlog.get_logger(__name__)

# A pod that starts as it should needs no look at its events.
_LONG: Final = timedelta(seconds=10)
# The API server reads all events of a namespace, whichever are asked for: one question serves all pods there, and takes
# at most this share of the time.
_LOOK_AGAIN_S: Final = 10.0
_SHARE: Final = 0.02
_PAGES: Final = 20
# Warnings that only repeat what another one says better.
_EMPTY: Final = ("Error: ErrImagePull", "Error: ImagePullBackOff")


@dataclass(slots=True)
class _Told:
    """What was told about the pods of a namespace, by their uid. ``is_asking``: a thread is at it."""

    due_s: float = 0.0
    is_asking: bool = False
    messages: dict[str, str] = field(default_factory=dict)


class Warnings:
    """Asks for the events of pods that wait for long. What is remembered only saves requests."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._told: dict[str, _Told] = {}  # by namespace
        self._lock = threading.Lock()

    def about(self, pod: Json, now: datetime) -> str:
        """The latest warning about a pod that has been waiting on its node for ten seconds; empty: none is known yet."""
        since = waits_since(pod)
        if since is None or now - since < _LONG:
            return ""
        namespace, uid = pod["metadata"]["namespace"], pod["metadata"]["uid"]
        with self._lock:
            told = self._told.setdefault(namespace, _Told())
            is_ours = not told.is_asking and time.monotonic() >= told.due_s
            told.is_asking = told.is_asking or is_ours
        if is_ours:
            self._refresh(namespace, told)
        return told.messages.get(uid, "")

    def _refresh(self, namespace: str, told: _Told) -> None:
        begin_s = time.monotonic()
        try:
            told.messages = self._ask(namespace)
        except (ExecutorError, Gone) as error:
            log.info("kubernetes.no_events", why=str(error))  # they wait without being told why
        finally:
            now_s = time.monotonic()
            told.due_s = now_s + max(_LOOK_AGAIN_S, (now_s - begin_s) / _SHARE)
            told.is_asking = False

    def _ask(self, namespace: str) -> dict[str, str]:
        """The latest warning about each pod, by its uid."""
        query = {"fieldSelector": "involvedObject.kind=Pod,type=Warning"}
        latest: dict[str, tuple[str, str]] = {}
        for page in islice(self._cluster.list_pages(path("events", namespace), query), _PAGES):
            for event in page["items"]:
                message, uid = str(event.get("message") or ""), str(event["involvedObject"].get("uid") or "")
                if message and message not in _EMPTY and (at := _at(event)) >= latest.get(uid, ("", ""))[0]:
                    latest[uid] = (at, message)
        return {uid: message for uid, (_, message) in latest.items()}


def _at(event: Json) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"])
