"""Stopping and removing.

A Pod that is deleted takes its end with it: exit code and record are gone as soon as kubelet has ended it. So a stop is
no deletion. It is written into an annotation of the Pod, which kubelet shows to the runtime as a file within a second;
the runtime passes it on, and the Pod ends by itself and keeps its record. Only what never began, and what runs
without the runtime, is deleted.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import structlog

from core.domain.errors import ExecutorTryAgain
from core.domain.ids import AttemptId
from executors.base import ReplicaKey
from executors.containers import labels, names
from executors.containers.exits import stop_mark
from executors.kubernetes.api_server.client import Json, ObjectConflict, ObjectExists, ObjectNotFound, path
from executors.kubernetes.pods import render
from executors.kubernetes.pods.observe import has_started, has_stopped, is_beginning, is_over, is_stuck, stop_annotation
from executors.kubernetes.pods.phrases import unkillable
from executors.kubernetes.pods.pod_writer import PodWriter

log = structlog.get_logger(__name__)

# Longer than any process can hold an order: afterwards a tombstone has no late creator to stop.
_TOMBSTONE_AGE: Final = timedelta(hours=1)
_FORGET_EVERY_S: Final = 300.0
# For kubelet to end what still runs; an idle one takes one to two seconds.
_END_S: Final = 10.0
_FRESH_S: Final = 2.0  # without news: ask the API server itself
_MARK_S: Final = 2.5  # for a pod that is just being made
_KILL_GRACE_S: Final = 1  # the shortest that kubelet still answers for; 0 would forget the pod while it runs
_KUBELET_REACTION: Final = timedelta(seconds=2)
# A kubelet that reports and has not ended a pod this long after its grace will not do it soon.
_UNKILLABLE_AFTER: Final = timedelta(seconds=60)
_LOOK_S: Final = 0.05
_TRIES: Final = 3


@dataclass(eq=False)
class PodDeleter(PodWriter):
    """Ends replicas and attempts."""

    _forgot_at: float | None = field(default=None, init=False)
    # Sentence by Pod, until the caller has recorded it.
    _unkilled: dict[AttemptId, dict[str, str]] = field(default_factory=dict, init=False)

    def stop(self, key: ReplicaKey, grace: timedelta) -> None:
        """See :meth:`executors.base.Executor.stop`."""
        pod = self._pods.find(key)
        for _ in range(_TRIES):
            if pod is None or is_over(pod):
                return
            try:
                self._ask(pod, grace)
            except ObjectNotFound:
                return
            except ObjectConflict:
                # It began, or ended, in this moment: what is to be done depends on which.
                pod = self._refetch(pod)
                continue
            return
        raise ExecutorTryAgain(f"Pod {names.replica_name(key)} changes too quickly to be stopped.")

    def remove(self, attempt_id: AttemptId) -> None:
        """See :meth:`executors.base.Executor.remove`."""
        self._bury(attempt_id)
        pods = self._pods.fresh(attempt_id) if self._options.is_per_project else ()
        namespaces = self._namespaces.of_attempt(attempt_id, pods)
        for namespace in namespaces:
            self._drop_secrets(namespace, attempt_id)
        # After the Secrets: what is posted from here on finds none, and never starts.
        self._end_pods(attempt_id)
        for namespace in namespaces:
            # The network policy is the Service's and goes with it.
            self._delete(path("services", namespace, names.attempt_name(attempt_id)))

    def kill(self, key: ReplicaKey) -> None:
        """See :class:`executors.base.ChangesWorlds`. A Pod's DNS name must not lead to a process that does not
        answer.
        """
        pod = self._pods.find(key)
        if pod is not None and not is_over(pod):
            self._end([pod], may_mark=False)

    def unkilled_replicas(self, attempt_id: AttemptId) -> Sequence[str]:
        """See :class:`executors.base.ReportsUnkilledReplicas`."""
        return tuple(self._unkilled.get(attempt_id, {}).values())

    def forget_unkilled_replicas(self, attempt_id: AttemptId) -> None:
        """See :class:`executors.base.ReportsUnkilledReplicas`."""
        self._unkilled.pop(attempt_id, None)

    def labels_of_attempts(self) -> Sequence[Mapping[str, str]]:
        """The labels of the Services of all attempts, with or without Pods."""
        query = {"labelSelector": _selector(labels.selector(self._options.instance))}
        pages = self._cluster.list_pages(path("services", self._namespaces.scope()), query)
        return [item["metadata"].get("labels") or {} for page in pages for item in page["items"]]

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

    def _refetch(self, pod: Json) -> Json | None:
        try:
            return self._cluster.get(_url(pod))
        except ObjectNotFound:
            return None

    def _ask(self, pod: Json, grace: timedelta) -> None:
        # Only if it still is as we judge it here.
        if not has_started(pod) and not is_beginning(pod, self._clock()):
            self._delete_pod(pod, grace_s=_KILL_GRACE_S, preconditions=_preconditions(pod))
        elif _uses_image_command(pod):
            seconds = math.ceil(grace.total_seconds())
            current_grace_s = pod["metadata"].get("deletionGracePeriodSeconds")
            if current_grace_s is None or seconds < current_grace_s:
                self._delete_pod(pod, grace_s=seconds)
        else:
            self._stop_by_annotation(pod, grace)

    def _stop_by_annotation(self, pod: Json, grace: timedelta) -> None:
        if not _is_stopping_sooner(pod, grace):
            mark = {"metadata": {"annotations": {render.STOP: stop_mark(grace).decode()}}}
            self._pods.put(self._cluster.patch(_url(pod), mark))

    # Removing

    def _bury(self, attempt_id: AttemptId) -> None:
        url = path("configmaps", self._options.namespace)
        try:
            self._cluster.post(url, render.render_tombstone(attempt_id, self._options))
        except ObjectExists:
            pass
        except ObjectNotFound:
            # Without the namespace nothing is in it, and a late creator has to create it first.
            if not self._options.is_per_project:
                return
            self._namespaces.ensure_own()
            self._cluster.post(url, render.render_tombstone(attempt_id, self._options))

    def _drop_secrets(self, namespace: str, attempt_id: AttemptId) -> None:
        query = {"labelSelector": _selector(labels.selector(self._options.instance, attempt_id))}
        try:
            self._cluster.delete(path("secrets", namespace), params=query)
        except ObjectNotFound:
            pass

    def _end_pods(self, attempt_id: AttemptId) -> None:
        """Returns when the API server has none of the attempt's pods any more."""
        look_s = time.monotonic()
        end_s, marked_s = look_s + _END_S, look_s + _MARK_S
        pods = self._pods.fresh(attempt_id)
        while pods:
            self._end(pods, may_mark=time.monotonic() < marked_s)
            self._wait_for_change(attempt_id, pods)
            if time.monotonic() - look_s < _FRESH_S:
                pods = self._pods.pods(attempt_id) or self._pods.fresh(attempt_id)
                continue
            look_s = time.monotonic()
            pods = self._pods.fresh(attempt_id)
            if pods and look_s > end_s:
                where = f"{pods[0]['metadata']['name']} on {pods[0]['spec'].get('nodeName')}"
                raise ExecutorTryAgain(f"Pod {where} has not ended yet.")

    def _end(self, pods: Sequence[Json], *, may_mark: bool) -> None:
        live = [pod for pod in pods if not has_stopped(pod)]
        reporting = self._reporting(live)
        for pod in pods:
            node = str(pod["spec"].get("nodeName") or "")
            if may_mark and node in reporting and is_beginning(pod, self._clock()) and not _uses_image_command(pod):
                # A kubelet that is just making a pod takes ten seconds to give it up, but two to make and end it.
                self._stop_by_annotation(pod, timedelta())
            elif pod in live and not node:
                # On no node it goes at once, unless that has just changed: then the next look finds it there.
                with suppress(ObjectConflict):
                    self._delete_pod(pod, grace_s=_KILL_GRACE_S, preconditions=_preconditions(pod))
            elif pod in live and node in reporting and not self._is_unkillable(pod):
                # kubelet must end it; asked once.
                if pod["metadata"].get("deletionTimestamp") is None or _grace_s(pod) > _KILL_GRACE_S:
                    self._delete_pod(pod, grace_s=_KILL_GRACE_S)
            else:
                # Nothing runs, or no kubelet reports: a kubelet takes ten seconds to release a pod that has ended or
                # never began, or for ever.
                self._delete_pod(pod, grace_s=0)

    def _is_unkillable(self, pod: Json) -> bool:
        """Whether kubelet has heard that the pod must end, and will not end it soon though it reports."""
        late = _late(pod, self._clock())
        if late > _UNKILLABLE_AFTER:
            attempt_id = AttemptId(pod["metadata"]["labels"][labels.ATTEMPT])
            sentence = unkillable(pod["metadata"]["name"], str(pod["spec"].get("nodeName")), late.total_seconds())
            sentences = self._unkilled.setdefault(attempt_id, {})
            if pod["metadata"]["name"] not in sentences:
                log.warning("kubernetes.pod_abandoned", pod=pod["metadata"]["name"], why=sentence)
            sentences[pod["metadata"]["name"]] = sentence
            return True
        return is_stuck(pod) and late > _KUBELET_REACTION

    def _wait_for_change(self, attempt_id: AttemptId, pods: Sequence[Json]) -> None:
        known = {pod["metadata"]["resourceVersion"] for pod in pods}
        end_s = time.monotonic() + _FRESH_S
        while time.monotonic() < end_s:
            now = {pod["metadata"]["resourceVersion"] for pod in self._pods.pods(attempt_id)}
            if now - known or len(now) < len(known):
                return
            self._sleep.wait(_LOOK_S)

    def _reporting(self, pods: Iterable[Json]) -> frozenset[str]:
        """The nodes of ``pods`` whose kubelet is there to end them, as the API server knows now."""
        nodes = {str(pod["spec"].get("nodeName") or "") for pod in pods}
        return frozenset(name for name in nodes if name and self._reports(name))

    def _reports(self, node: str) -> bool:
        try:
            conditions = self._cluster.get(path("nodes", name=node))["status"].get("conditions") or ()
        except ObjectNotFound:
            return False
        # A kubelet that reports "not ready" is alive; a silent kubelet is "Unknown".
        return any(c["type"] == "Ready" and c["status"] != "Unknown" for c in conditions)

    def _delete_pod(self, pod: Json, *, grace_s: int, preconditions: Json | None = None) -> None:
        options: dict[str, Any] = {
            "gracePeriodSeconds": grace_s,
            # Another Pod of this name is not meant.
            "preconditions": preconditions or {"uid": pod["metadata"]["uid"]},
        }
        try:
            answer = self._cluster.delete(_url(pod), options=options)
        except ObjectNotFound:
            return
        if answer.get("kind") == "Pod":
            self._pods.put(answer)

    def _delete(self, url: str) -> None:
        try:
            self._cluster.delete(url)
        except ObjectNotFound:
            pass


def _is_stopping_sooner(pod: Json, grace: timedelta) -> bool:
    """Whether it was asked to stop within ``grace`` or sooner. A longer grace does not take a shorter one back."""
    mark = stop_annotation(pod)
    return bool(mark) and float(json.loads(mark)["grace_s"]) <= grace.total_seconds()


def _late(pod: Json, now: datetime) -> timedelta:
    """Time since the grace of a deleted pod was over; zero for a pod that is not deleted."""
    deleted = pod["metadata"].get("deletionTimestamp")
    return timedelta() if deleted is None else now - datetime.fromisoformat(deleted)


def _preconditions(pod: Json) -> Json:
    return {"resourceVersion": pod["metadata"]["resourceVersion"], "uid": pod["metadata"]["uid"]}


def _uses_image_command(pod: Json) -> bool:
    return render.IMAGE_COMMAND in (pod["metadata"].get("annotations") or {})


def _grace_s(pod: Json) -> float:
    return float(pod["metadata"].get("deletionGracePeriodSeconds", math.inf))


def _url(pod: Json) -> str:
    return path("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])


def _selector(labels: dict[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())
