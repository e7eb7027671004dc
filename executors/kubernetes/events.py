"""Kubelet's warning events about pending pods: a volume that cannot be mounted, an image that cannot be pulled."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

import structlog

from core.domain.errors import ExecutorError
from executors.kubernetes.api_server.client import Gone, Json, KubernetesClient, path
from executors.kubernetes.pods.observe import waits_since

log = structlog.get_logger(__name__)

# A pod that starts within this time needs no look at its events.
_LONG: Final = timedelta(seconds=10)
# The API server reads all events of a namespace, whichever are asked for: one question serves all pods there, and takes
# at most this share of the time.
_LOOK_AGAIN_S: Final = 10.0
_SHARE: Final = 0.02
_PAGES: Final = 20
# Warnings that only repeat what another one says better.
_EMPTY: Final = ("Error: ErrImagePull", "Error: ImagePullBackOff")
# Reasons of warnings about images: the next try to pull does not mend them before it ends well.
_OF_IMAGES: Final = frozenset({"Failed", "BackOff", "InspectFailed", "ErrImageNeverPull"})


@dataclass(slots=True)
class _NamespaceWarnings:
    """Warnings about the pods of a namespace, by uid. ``is_asking``: a thread is fetching them."""

    due_s: float = 0.0
    is_asking: bool = False
    messages: dict[str, tuple[datetime, str]] = field(default_factory=dict)


class PodWarnings:
    """Asks for the events of pods that wait for long. What is remembered only saves requests."""

    def __init__(self, cluster: KubernetesClient) -> None:
        self._cluster = cluster
        self._by_namespace: dict[str, _NamespaceWarnings] = {}  # by namespace
        self._lock = threading.Lock()

    def about(self, pod: Json, now: datetime) -> str:
        """The latest warning about a pod that has been waiting on its node for ten seconds; empty: none is known yet.

        Warnings from before the present wait began are ignored.
        """
        since = waits_since(pod)
        if since is None or now - since < _LONG:
            return ""
        namespace, uid = pod["metadata"]["namespace"], pod["metadata"]["uid"]
        with self._lock:
            known = self._by_namespace.setdefault(namespace, _NamespaceWarnings())
            is_due = not known.is_asking and time.monotonic() >= known.due_s
            known.is_asking = known.is_asking or is_due
        if is_due:
            self._refresh(namespace, known)
        at, message = known.messages.get(uid, (since, ""))
        return message if at >= since else ""

    def _refresh(self, namespace: str, known: _NamespaceWarnings) -> None:
        begin_s = time.monotonic()
        try:
            known.messages = self._ask(namespace)
        except (ExecutorError, Gone) as error:
            log.info("kubernetes.no_events", why=str(error))  # the pods stay pending without a reason
        finally:
            now_s = time.monotonic()
            known.due_s = now_s + max(_LOOK_AGAIN_S, (now_s - begin_s) / _SHARE)
            known.is_asking = False

    def _ask(self, namespace: str) -> dict[str, tuple[datetime, str]]:
        """The latest warning about each pod, by its uid, but where kubelet has come further since."""
        latest: dict[str, tuple[datetime, str]] = {}
        mendable: set[str] = set()
        for event in self._events(namespace, "type=Warning"):
            message, uid = str(event.get("message") or ""), _uid(event)
            if not message or message in _EMPTY:
                continue
            at = _at(event)
            if uid not in latest or at >= latest[uid][0]:
                latest[uid] = (at, message)
                (mendable.discard if event.get("reason") in _OF_IMAGES else mendable.add)(uid)
        # kubelet pulls when all before it went well: sandbox and volumes.
        for event in self._events(namespace, "reason=Pulling") if mendable else ():
            uid = _uid(event)
            if uid in mendable and uid in latest and _at(event) >= latest[uid][0]:
                del latest[uid]
        return latest

    def _events(self, namespace: str, selector: str) -> Iterator[Json]:
        query = {"fieldSelector": f"involvedObject.kind=Pod,{selector}"}
        for page in islice(self._cluster.list_pages(path("events", namespace), query), _PAGES):
            yield from page["items"]


def _uid(event: Json) -> str:
    return str(event["involvedObject"].get("uid") or "")


def _at(event: Json) -> datetime:
    text = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"]
    return datetime.fromisoformat(str(text))
