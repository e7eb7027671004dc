"""Where jobs run: one namespace for all, or one per project, made when it is first needed.

A namespace that the platform makes gets ``KubernetesOptions.pod_security`` as its pod security level: ``auto`` is the
strictest that lets its jobs run, and grows laxer with the first job that needs it; empty leaves it to the cluster. One
that an administrator has made keeps its labels.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final

from core.domain.errors import ExecutorRefused, ExecutorTryAgain
from core.domain.ids import AttemptId
from executors.base import ReplicaOrder
from executors.containers import labels, names
from executors.kubernetes.api_server.client import (
    ApiRefused,
    Json,
    KubernetesClient,
    ObjectExists,
    ObjectNotFound,
    path,
)
from executors.kubernetes.options import KubernetesOptions

# https://kubernetes.io/docs/concepts/security/pod-security-standards/, from strict to lax
LEVELS: Final = ("restricted", "baseline", "privileged")
AUTO: Final = "auto"
_ENFORCE: Final = "pod-security.kubernetes.io/enforce"
_FOREIGN_NAMESPACE: Final[Json] = {"metadata": {}}
# On namespaces that we made and whose level follows from what runs there.
_AUTO_LEVEL: Final = "trainmaster/pod-security"
# What is left of every name, however it is made to fit.
_HEAD: Final = 40


class Namespaces:
    """For many threads. What it knows is only for speed: it is found again by asking."""

    def __init__(self, cluster: KubernetesClient, options: KubernetesOptions) -> None:
        self._cluster = cluster
        self._options = options
        self._lock = threading.Lock()
        self._ready: dict[str, str] = {}  # namespace -> the level that it surely admits

    def name_of(self, project: str) -> str:
        """The namespace of a project's jobs. Pure: the same project, the same name."""
        base = self._options.namespace
        return names.fit(f"{base}-{project}") if self._options.is_per_project and project else base

    def scope(self) -> str:
        """Where to list what is ours: the one namespace, or empty for all of the cluster."""
        return "" if self._options.is_per_project else self._options.namespace

    def may_hold(self, namespace: str) -> bool:
        """Whether a namespace may be one of ours, by its name."""
        base = self._options.namespace
        if not self._options.is_per_project:
            return namespace == base
        return namespace == base or namespace.removeprefix("x-").startswith(f"{base}-"[:_HEAD])

    def of_attempt(self, attempt_id: AttemptId, pods: Iterable[Json]) -> frozenset[str]:
        """Namespaces that hold anything of an attempt with these pods: its Service is the first to come, the last to
        go.
        """
        if not self._options.is_per_project:
            return frozenset({self._options.namespace})
        names = {str(pod["metadata"]["namespace"]) for pod in pods}
        if not names:
            selector = labels.selector(self._options.instance, attempt_id)
            query = {"labelSelector": ",".join(f"{key}={value}" for key, value in selector.items())}
            for page in self._cluster.list_pages(path("services"), query):
                names |= {str(item["metadata"]["namespace"]) for item in page["items"]}
        return frozenset(names)

    def ensure(self, order: ReplicaOrder) -> str:
        """The order's namespace, which is there and admits its pod as far as that is ours to say. Asks the server once.

        Raises:
            ExecutorRefused: it is not there, and we may not make it.
            ExecutorTryAgain: it is being deleted, or the server is away.
        """
        return self._ensure(self.name_of(order.project), order.project, needed_level(order, self._options.uid))

    def ensure_own(self) -> str:
        """The namespace that no project owns; raises like :meth:`ensure`."""
        return self._ensure(self._options.namespace, "", LEVELS[0])

    def forget(self, namespace: str) -> None:
        """A call found the namespace missing: check it again before the next call."""
        with self._lock:
            self._ready.pop(namespace, None)

    def _ensure(self, namespace: str, project: str, level: str) -> str:
        known = self._ready.get(namespace)
        if known is not None and LEVELS.index(known) >= LEVELS.index(level):
            return namespace
        with self._lock:  # a gang is created by several threads: one asks
            known = self._ready.get(namespace)
            if known is None or LEVELS.index(known) < LEVELS.index(level):
                self._ready[namespace] = self._make(namespace, project, level)
        return namespace

    def _make(self, namespace: str, project: str, level: str) -> str:
        """The level that the namespace admits now: at least ``level``, where that is ours to say."""
        existing = self._find(namespace) or self._create(namespace, project, level)
        if existing.get("status", {}).get("phase") == "Terminating":
            raise ExecutorTryAgain(f"Namespace {namespace} is being deleted; it is made again when it is gone.")
        own = existing["metadata"].get("labels") or {}
        if own.get(labels.INSTANCE) != self._options.instance or own.get(_AUTO_LEVEL) != AUTO:
            return LEVELS[-1]  # its owner decides: the API server refuses a pod that needs more
        current = own.get(_ENFORCE, LEVELS[-1])
        if current not in LEVELS or LEVELS.index(current) >= LEVELS.index(level):
            return current if current in LEVELS else LEVELS[-1]
        try:
            self._cluster.patch(path("namespaces", "", namespace), {"metadata": {"labels": {_ENFORCE: level}}})
        except ApiRefused as refused:
            raise ExecutorRefused(
                f"Jobs of namespace {namespace} need the pod security level {level}, and the platform may not set it: "
                f"label the namespace {_ENFORCE}={level}. {refused.sentence}"
            ) from refused
        return level

    def _find(self, namespace: str) -> Json | None:
        try:
            return self._cluster.get(path("namespaces", "", namespace))
        except ObjectNotFound:
            return None
        except ApiRefused as refused:
            if refused.http_status != 403:
                raise
            # No permission to read it. A single namespace is the administrator's then, and the first call into it shows
            # whether it exists; a project's may be missing: trying to create it shows.
            return None if self._options.is_per_project else _FOREIGN_NAMESPACE

    def _create(self, namespace: str, project: str, level: str) -> Json:
        own = {labels.INSTANCE: self._options.instance, "app.kubernetes.io/managed-by": "trainmaster"}
        if self._options.is_per_project and project:
            own[labels.PROJECT] = labels.label_value(project)
        if self._options.pod_security == AUTO:
            own |= {_AUTO_LEVEL: AUTO, _ENFORCE: level}
        elif self._options.pod_security:
            own[_ENFORCE] = self._options.pod_security
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": own}}
        try:
            return self._cluster.post(path("namespaces"), body)
        except ObjectExists:
            return self._find(namespace) or _FOREIGN_NAMESPACE
        except ApiRefused as refused:
            raise ExecutorRefused(
                f"Namespace {namespace} does not exist, or the platform has no rights in it, and it may not create it: "
                f"create it (kubectl create namespace {namespace}) and bind the platform's rights there, or give it "
                f"the right to make namespaces. {refused.sentence}"
            ) from refused


def needed_level(order: ReplicaOrder, uid: int) -> str:
    """The strictest pod security level that admits the order's pod. ``uid`` 0: the image chooses its user."""
    kinds = {mount.volume.kind if mount.volume is not None else "local" for mount in order.mounts}
    if "local" in kinds:
        return "privileged"  # the only one that admits hostPath
    return "baseline" if "nfs" in kinds or uid == 0 else "restricted"
