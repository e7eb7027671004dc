"""All pods of the cluster, updated by a watch: our own with their status, the others only with the resources that
they use on their nodes.

The watch gives hints, a list gives truth: what is *here* was so a moment ago; that something is *not* here proves
nothing before :meth:`PodCache.fresh` has asked the API server.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from core.domain.ids import AttemptId
from executors.base import ReplicaKey
from executors.containers import labels
from executors.kubernetes.api_server.client import Gone, Json, KubernetesClient, path
from executors.kubernetes.api_server.reflector import Reflector
from executors.kubernetes.pod_usage import NO_USAGE, NodeUsage, excess_usage, planned_usage, pod_usage, without_devices

# Pods that were deleted, so that an answer which comes late cannot bring them back.
_REMEMBERED_DEAD: Final = 10_000
_METADATA_FIELDS: Final = (
    "name", "namespace", "uid", "resourceVersion", "labels", "annotations", "creationTimestamp", "deletionTimestamp",
    "deletionGracePeriodSeconds", "ownerReferences",
)  # fmt: skip
# On the Pod of an elastic gang: all that the replica must know of its newest world. Only the replica reads it.
WORLD_UPDATE: Final = "trainmaster/world-told"
# The label of a placeholder (:mod:`executors.kubernetes.placeholders`). Its value stays: it is on pods that run.
PLACEHOLDER: Final = "trainmaster/reservation"
_SPEC_FIELDS: Final = ("nodeName", "terminationGracePeriodSeconds", "activeDeadlineSeconds", "affinity")


def lean_pod(pod: Json) -> Json:
    """The cached part of an own pod: its names, labels, node, status and its containers' names, images and resources.

    A whole pod is 30 KB of Python objects, and a platform may have five thousand.
    """
    metadata, spec = pod["metadata"], pod["spec"]
    location = {key: spec[key] for key in _SPEC_FIELDS if key in spec}
    location["containers"] = [
        {"name": c["name"], "image": c.get("image", ""), "resources": c.get("resources") or {}}
        for c in spec["containers"]
    ]
    own = {key: metadata[key] for key in _METADATA_FIELDS if key in metadata}
    if WORLD_UPDATE in (own.get("annotations") or {}):
        own["annotations"] = {key: value for key, value in own["annotations"].items() if key != WORLD_UPDATE}
    return {
        "metadata": own,
        "spec": location,
        "status": pod.get("status") or {},
    }


class PodCache:
    """The copy, and its thread, which the first question starts.

    Args:
        instance: whose pods are our own.
        main: name of the container that the planner has counted in our own pods.
        home: the namespace of all own pods, where there is one: asking afresh is cheaper there.
        is_home: whether own pods may be in a namespace. A user of another namespace can copy our labels: such a
            pod is a foreign one, and what it takes from its node counts.

    Questions raise ``ExecutorTryAgain`` while there is no copy, or it is older than half a minute.
    """

    def __init__(
        self,
        cluster: KubernetesClient,
        instance: str,
        *,
        main: str,
        home: str = "",
        is_home: Callable[[str], bool] | None = None,
        page: int = 500,
    ) -> None:
        self._cluster = cluster
        self._instance = instance
        self._main = main
        self._home = home
        self._is_home = is_home or (lambda namespace: namespace == home or not home)
        self._page = page
        self._changed = threading.Condition()
        self._own: dict[AttemptId, dict[str, Json]] = {}  # by uid
        self._attempt_of: dict[str, AttemptId] = {}
        self._placeholders: dict[str, Json] = {}  # by uid
        self._counted: dict[str, tuple[str, NodeUsage]] = {}  # uid -> node and what is not the planner's own there
        self._use: dict[str, NodeUsage] = {}  # their sums by node
        self._deleted_uids: OrderedDict[str, None] = OrderedDict()
        self._changed_attempts: set[AttemptId] = set()
        self.reflector = Reflector(cluster, path("pods"), self, page=page)

    # Questions

    def pods(self, attempt_id: AttemptId) -> tuple[Json, ...]:
        """The attempt's pods as they were a moment ago, ended ones too. No request is made."""
        self.reflector.require()
        with self._changed:
            return tuple(self._own.get(attempt_id, {}).values())

    def placeholders(self) -> tuple[Json, ...]:
        """Our Pods that hold shared devices. No request is made."""
        self.reflector.require()
        with self._changed:
            return tuple(self._placeholders.values())

    def labels_of_attempts(self) -> Sequence[Mapping[str, str]]:
        """The labels of one pod of each attempt that has any. No request is made."""
        self.reflector.require()
        with self._changed:
            return [next(iter(pods.values()))["metadata"]["labels"] for pods in self._own.values()]

    def attempts_on(self, nodes: Collection[str]) -> Mapping[AttemptId, str]:
        """The attempts with a pod on one of ``nodes``, each with its namespace. No request is made."""
        self.reflector.require()
        with self._changed:
            return {
                attempt_id: pod["metadata"]["namespace"]
                for attempt_id, pods in self._own.items()
                for pod in pods.values()
                if pod["spec"].get("nodeName") in nodes
            }

    def foreign_usage(self, database_id: str = "") -> Mapping[str, NodeUsage]:
        """By node: the usage that the planner does not count itself. ``pods`` counts all pods, ours too.

        The planner knows of ``database_id``'s attempts alone: another database's pods count whole, as any tenant's.
        """
        self.reflector.require()
        with self._changed:
            taken = dict(self._use)
            for pods in self._own.values():
                for pod in pods.values():
                    if labels.is_of_foreign_database(pod["metadata"]["labels"], database_id):
                        entry = _entry(pod, planned_usage(pod, self._main))
                        if entry is not None:
                            node, use = entry
                            taken[node] = taken.get(node, NO_USAGE).plus(use)
            for pod in self._placeholders.values():
                if labels.is_of_foreign_database(pod["metadata"]["labels"], database_id):
                    entry = _entry(pod, NodeUsage(devices=pod_usage(pod).devices))
                    if entry is not None:
                        node, use = entry
                        taken[node] = taken.get(node, NO_USAGE).plus(use)
            return taken

    def fresh(self, attempt_id: AttemptId) -> tuple[Json, ...]:
        """The attempt's pods by a consistent list from the API server: a pod that is not in it is gone."""
        selector = labels.selector(self._instance, attempt_id)
        params = {"labelSelector": ",".join(f"{key}={value}" for key, value in selector.items())}
        for is_last in (False, True):
            version, pods = "", []
            try:
                for page in self._cluster.list_pages(path("pods", self._home), params, limit=self._page):
                    version = version or page["metadata"]["resourceVersion"]
                    pods += page["items"]
                break
            except Gone:
                if is_last:
                    raise
        with self._changed:
            for pod in pods:
                self._put(pod)
            listed = {pod["metadata"]["uid"] for pod in pods}
            for uid, pod in list(self._own.get(attempt_id, {}).items()):
                if uid not in listed and _version(pod) <= int(version):
                    self._forget(uid)
            return tuple(self._own.get(attempt_id, {}).values())

    def find(self, key: ReplicaKey) -> Json | None:
        """The pod of one start of a replica, from the cache, else from the API server."""
        for read_pods in (self.pods, self.fresh):
            for pod in read_pods(key.attempt_id):
                if labels.key_of(pod["metadata"]["labels"]) == key:
                    return pod
        return None

    def wait_for_change(self, timeout_s: float) -> frozenset[AttemptId]:
        """Attempts of which a pod has come, changed or gone since the last call; empty when none did in time.

        A hint, for one listener: it may be lost with this process.
        """
        self.reflector.start()
        with self._changed:
            if not self._changed_attempts:
                self._changed.wait(timeout_s)
            news, self._changed_attempts = frozenset(self._changed_attempts), set()
            return news

    # Updates

    def put(self, pod: Json) -> None:
        """An own pod as an answer to ``post``, ``patch`` or ``delete`` showed it: no need to wait for the watch."""
        with self._changed:
            self._put(pod)

    def apply(self, kind: str, item: Json) -> None:
        with self._changed:
            if kind == "DELETED":
                self._forget(item["metadata"]["uid"])
            else:
                self._put(item)

    def replace(self, items: Iterable[Json], resource_version: str) -> None:
        # Built separately, page by page: foreign pods are reduced at once, and a list that fails changes nothing.
        own: list[Json] = []
        counted: dict[str, tuple[str, NodeUsage]] = {}
        for pod in items:
            if self._attempt(pod) is not None or self._is_placeholder(pod):
                own.append(pod)
            elif (entry := _entry(pod, pod_usage(pod))) is not None:
                counted[pod["metadata"]["uid"]] = entry
        listed = int(resource_version)
        with self._changed:
            present = {pod["metadata"]["uid"] for pod in own}
            location = self._attempt_of.keys() | self._placeholders.keys()
            for uid in list(self._counted.keys() - location - counted.keys()):
                self._count(uid, None)
            for uid, foreign in counted.items():
                self._count(uid, foreign)
            for pod in own:
                self._put(pod)
            for uid, attempt_id in list(self._attempt_of.items()):
                # What was put here after the list was made stays.
                if uid not in present and _version(self._own[attempt_id][uid]) <= listed:
                    self._forget(uid)
            for uid, pod in list(self._placeholders.items()):
                if uid not in present and _version(pod) <= listed:
                    self._forget(uid)

    def _put(self, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        if self._is_placeholder(pod):
            before = self._placeholders.get(uid)
            if uid not in self._deleted_uids and (before is None or _version(before) < _version(pod)):
                self._placeholders[uid] = lean_pod(pod)
                self._count(uid, _entry(pod, without_devices(pod_usage(pod))))
            return
        attempt_id = self._attempt(pod)
        if attempt_id is None:
            self._count(uid, _entry(pod, pod_usage(pod)))
            return
        known = self._own.get(attempt_id, {}).get(uid)
        if uid in self._deleted_uids or (known is not None and _version(known) >= _version(pod)):
            return
        self._own.setdefault(attempt_id, {})[uid] = lean_pod(pod)
        self._attempt_of[uid] = attempt_id
        self._count(uid, _entry(pod, excess_usage(pod, self._main)))
        self._notify(attempt_id)

    def _forget(self, uid: str) -> None:
        self._count(uid, None)
        attempt_id = self._attempt_of.pop(uid, None)
        if self._placeholders.pop(uid, None) is not None:
            self._bury(uid)
        if attempt_id is None:
            return
        pods = self._own[attempt_id]
        del pods[uid]
        if not pods:
            del self._own[attempt_id]
        self._bury(uid)
        self._notify(attempt_id)

    def _bury(self, uid: str) -> None:
        self._deleted_uids[uid] = None
        if len(self._deleted_uids) > _REMEMBERED_DEAD:
            self._deleted_uids.popitem(last=False)

    def _count(self, uid: str, entry: tuple[str, NodeUsage] | None) -> None:
        before = self._counted.get(uid)
        if before == entry:
            return
        if before is not None:
            del self._counted[uid]
            node, use = before
            left = self._use[node].plus(use, -1)
            if left == NO_USAGE:
                del self._use[node]
            else:
                self._use[node] = left
        if entry is not None:
            self._counted[uid] = entry
            node, use = entry
            self._use[node] = self._use.get(node, NO_USAGE).plus(use)

    def _notify(self, attempt_id: AttemptId) -> None:
        self._changed_attempts.add(attempt_id)
        self._changed.notify_all()

    def _is_placeholder(self, pod: Json) -> bool:
        own = pod["metadata"].get("labels") or {}
        is_of_platform = own.get(labels.INSTANCE) == self._instance and bool(own.get(PLACEHOLDER))
        return is_of_platform and self._is_home(pod["metadata"]["namespace"])

    def _attempt(self, pod: Json) -> AttemptId | None:
        own = pod["metadata"].get("labels") or {}
        if own.get(labels.INSTANCE) != self._instance or not own.get(labels.ATTEMPT):
            return None
        return AttemptId(own[labels.ATTEMPT]) if self._is_home(pod["metadata"]["namespace"]) else None


def _entry(pod: Mapping[str, Any], use: NodeUsage) -> tuple[str, NodeUsage] | None:
    node = pod["spec"].get("nodeName")
    return (node, use) if node and use != NO_USAGE else None


def _version(pod: Mapping[str, Any]) -> int:
    # Numbers in every released API server, and by contract since 1.35.
    return int(pod["metadata"]["resourceVersion"])
