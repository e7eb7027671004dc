"""Stopping and removing.

A Pod that is deleted takes its end with it: exit code and record are gone as soon as kubelet has ended it. So a stop is
no deletion. It is written into an annotation of the Pod, which kubelet shows to the runtime as a file within a second;
the runtime passes it on, and the Pod ends by itself and keeps its record. Only what never began, and what runs
without the runtime, is deleted.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, Final

from core.domain.errors import ExecutorTryAgain
from core.domain.ids import AttemptId
from executors.base import ReplicaKey
from executors.containers import labels, names
from executors.containers.exits import stop_mark
from executors.kubernetes import render
from executors.kubernetes.cache import PodCache
from executors.kubernetes.client import AlreadyExists, Cluster, Conflict, Json, NotFound, path
from executors.kubernetes.namespaces import Namespaces
from executors.kubernetes.observe import has_begun, is_over, stop_asked
from executors.kubernetes.options import Options
from executors.kubernetes.policy import policies_url

# Longer than any process can hold an order: then a tombstone has nobody left to warn.
_TOMBSTONE_AGE: Final = timedelta(hours=1)
_FORGET_EVERY_S: Final = 300.0
# For kubelet to end what still runs; an idle one takes one to two seconds.
_END_S: Final = 8.0
_LOOK_S: Final = 0.05
_TRIES: Final = 3


class Ending:
    """Ends replicas and attempts."""

    def __init__(
        self,
        cluster: Cluster,
        options: Options,
        namespaces: Namespaces,
        pods: PodCache,
        clock: Callable[[], datetime],
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._namespaces = namespaces
        self._pods = pods
        self._clock = clock
        self._forgot_at: float | None = None
        self._rest = threading.Event()  # never set: a wait that needs no clock

    def stop(self, key: ReplicaKey, grace: timedelta) -> None:
        """See :meth:`executors.base.Executor.stop`."""
        pod = self._find(key)
        for _ in range(_TRIES):
            if pod is None or is_over(pod):
                return
            try:
                self._ask(pod, grace)
            except NotFound:
                return
            except Conflict:
                # It began, or ended, in this moment: what is to be done depends on which.
                pod = self._again(pod)
                continue
            return
        raise ExecutorTryAgain(f"Pod {names.replica_name(key)} changes too quickly to be stopped.")

    def remove(self, attempt_id: AttemptId) -> None:
        """See :meth:`executors.base.Executor.remove`."""
        self._bury(attempt_id)
        namespaces = self._namespaces.of_attempt(attempt_id, self._pods.fresh(attempt_id))
        for namespace in namespaces:
            self._drop_secrets(namespace, attempt_id)
        # After the Secrets: what is posted from here on finds none, and never starts.
        self._end_pods(attempt_id)
        for namespace in namespaces:
            if self._options.is_isolated:
                self._delete(policies_url(namespace, names.attempt_name(attempt_id)))
            self._delete(path("services", namespace, names.attempt_name(attempt_id)))

    def attempts(self) -> frozenset[AttemptId]:
        """Attempts that have a Service, with or without Pods."""
        query = {"labelSelector": _selector(labels.selector(self._options.instance))}
        found: set[AttemptId] = set()
        for page in self._cluster.list_pages(path("services", self._namespaces.scope()), query):
            own = (item["metadata"].get("labels") or {} for item in page["items"])
            found |= {AttemptId(one[labels.ATTEMPT]) for one in own if labels.ATTEMPT in one}
        return frozenset(found)

    def forget_old_tombstones(self) -> None:
        """Delete those that are an hour old; looks every five minutes at most."""
        now_s = time.monotonic()
        if self._forgot_at is not None and now_s - self._forgot_at < _FORGET_EVERY_S:
            return
        self._forgot_at = now_s
        query = {"labelSelector": f"{_selector(labels.selector(self._options.instance))},{render.REMOVED}"}
        oldest = self._clock() - _TOMBSTONE_AGE
        for page in self._cluster.list_pages(path("configmaps", self._options.namespace), query):
            for item in page["items"]:
                if datetime.fromisoformat(item["metadata"]["creationTimestamp"]) < oldest:
                    self._delete(path("configmaps", self._options.namespace, item["metadata"]["name"]))

    # Stopping

    def _find(self, key: ReplicaKey) -> Json | None:
        for look in (self._pods.pods, self._pods.fresh):
            for pod in look(key.attempt_id):
                if labels.key_of(pod["metadata"]["labels"]) == key:
                    return pod
        return None

    def _again(self, pod: Json) -> Json | None:
        try:
            return self._cluster.get(_url(pod))
        except NotFound:
            return None

    def _ask(self, pod: Json, grace: timedelta) -> None:
        annotations = pod["metadata"].get("annotations") or {}
        # Only if it still is as we judged it.
        as_seen = {"resourceVersion": pod["metadata"]["resourceVersion"], "uid": pod["metadata"]["uid"]}
        if not has_begun(pod):
            self._delete_pod(pod, grace_s=1, preconditions=as_seen)
        elif annotations.get(render.PLAIN):
            seconds = math.ceil(grace.total_seconds())
            left = pod["metadata"].get("deletionGracePeriodSeconds")
            if left is None or seconds < left:
                self._delete_pod(pod, grace_s=seconds)
        elif not _is_asked_already(pod, grace):
            mark = {"metadata": {"annotations": {render.STOP: stop_mark(grace).decode()}}}
            self._pods.put(self._cluster.patch(_url(pod), mark))

    # Removing

    def _bury(self, attempt_id: AttemptId) -> None:
        url = path("configmaps", self._options.namespace)
        try:
            self._cluster.post(url, render.render_tombstone(attempt_id, self._options))
        except AlreadyExists:
            pass
        except NotFound:
            # Without the namespace there is nothing in it, and whoever creates late makes it first.
            if not self._options.is_per_project:
                return
            self._namespaces.ensure_own()
            self._cluster.post(url, render.render_tombstone(attempt_id, self._options))

    def _drop_secrets(self, namespace: str, attempt_id: AttemptId) -> None:
        query = {"labelSelector": _selector(labels.selector(self._options.instance, attempt_id))}
        try:
            self._cluster.delete(path("secrets", namespace), params=query)
        except NotFound:
            pass

    def _end_pods(self, attempt_id: AttemptId) -> None:
        """Returns when the API server has none of the attempt's pods any more."""
        end_s = time.monotonic() + _END_S
        while True:
            pods = self._pods.fresh(attempt_id)
            if not pods:
                return
            reporting = self._reporting({str(pod["spec"].get("nodeName") or "") for pod in pods if not is_over(pod)})
            for pod in pods:
                is_alone = is_over(pod) or str(pod["spec"].get("nodeName") or "") not in reporting
                grace_s = 0 if is_alone else 1
                if pod["metadata"].get("deletionGracePeriodSeconds", math.inf) > grace_s or is_alone:
                    self._delete_pod(pod, grace_s=grace_s)
            self._wait_for_none(attempt_id, min(end_s, time.monotonic() + _END_S / 4))
            if time.monotonic() > end_s and (left := self._pods.fresh(attempt_id)):
                where = f"{left[0]['metadata']['name']} on {left[0]['spec'].get('nodeName')}"
                raise ExecutorTryAgain(f"Pod {where} has not ended yet.")

    def _wait_for_none(self, attempt_id: AttemptId, end_s: float) -> None:
        while self._pods.pods(attempt_id) and time.monotonic() < end_s:
            self._rest.wait(_LOOK_S)

    def _reporting(self, nodes: Iterable[str]) -> frozenset[str]:
        """Those of ``nodes`` whose kubelet is there to end a pod, as the API server knows now."""
        return frozenset(name for name in nodes if name and self._reports(name))

    def _reports(self, node: str) -> bool:
        try:
            conditions = self._cluster.get(path("nodes", name=node))["status"].get("conditions") or ()
        except NotFound:
            return False
        # A kubelet that says "not ready" is there; one that says nothing is "Unknown".
        return any(c["type"] == "Ready" and c["status"] != "Unknown" for c in conditions)

    def _delete_pod(self, pod: Json, *, grace_s: int, preconditions: Json | None = None) -> None:
        options: dict[str, Any] = {
            "gracePeriodSeconds": grace_s,
            # Another Pod of this name is not meant.
            "preconditions": preconditions or {"uid": pod["metadata"]["uid"]},
        }
        try:
            answer = self._cluster.delete(_url(pod), options=options)
        except NotFound:
            return
        if answer.get("kind") == "Pod":
            self._pods.put(answer)

    def _delete(self, url: str) -> None:
        try:
            self._cluster.delete(url)
        except NotFound:
            pass


def _is_asked_already(pod: Json, grace: timedelta) -> bool:
    """Whether it was asked to stop within ``grace`` or sooner. A longer grace does not take a shorter one back."""
    mark = stop_asked(pod)
    return bool(mark) and float(json.loads(mark)["grace_s"]) <= grace.total_seconds()


def _url(pod: Json) -> str:
    return path("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])


def _selector(wanted: dict[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in wanted.items())
