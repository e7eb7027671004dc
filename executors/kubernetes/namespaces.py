"""Where jobs run: one namespace for all, or one per project, made when it is first needed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any, Final

from core.domain.errors import ExecutorRefused, ExecutorTryAgain
from executors.containers import labels, names
from executors.kubernetes.client import AlreadyExists, Cluster, Json, NotFound, Refused, path

# https://kubernetes.io/docs/concepts/security/pod-security-standards/, from strict to lax
LEVELS: Final = ("restricted", "baseline", "privileged")
AUTO: Final = "auto"
_ENFORCE: Final = "pod-security.kubernetes.io/enforce"
# On namespaces that we made and whose level follows from what runs there.
_FITTED: Final = "trainmaster/pod-security"
_RESTRICTED_VOLUMES: Final = frozenset(
    {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
)


class Namespaces:
    """For many threads. What it knows is only for speed: it is found again by asking.

    Args:
        base: the namespace, or what those of projects begin with.
        pod_security: the level for namespaces that we make: one of ``LEVELS``, ``auto`` (the strictest that lets the
            jobs of the namespace run), or empty: the cluster's own default.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        instance: str,
        base: str,
        is_per_project: bool = False,
        pod_security: str = AUTO,
    ) -> None:
        self._cluster = cluster
        self._instance = instance
        self._base = base
        self._is_per_project = is_per_project
        self._pod_security = pod_security
        self._lock = threading.Lock()
        self._ready: dict[str, str] = {}  # namespace -> the level that it surely admits

    def name_of(self, project: str) -> str:
        """The namespace of a project's jobs. Pure: the same project, the same name."""
        return names.fit(f"{self._base}-{project}") if self._is_per_project and project else self._base

    def ensure(self, project: str, pod: Mapping[str, Any]) -> str:
        """The namespace, which is there and admits ``pod`` as far as it is ours to say. Asks the server once for each.

        Raises:
            ExecutorRefused: it is not there, and we may not make it.
            ExecutorTryAgain: it is being deleted, or the server is away.
        """
        namespace = self.name_of(project)
        level = needed_level(pod)
        known = self._ready.get(namespace)
        if known is not None and LEVELS.index(known) >= LEVELS.index(level):
            return namespace
        with self._lock:  # a gang is created by several threads: one asks
            known = self._ready.get(namespace)
            if known is None or LEVELS.index(known) < LEVELS.index(level):
                self._ready[namespace] = self._make(namespace, project, level)
        return namespace

    def forget(self, namespace: str) -> None:
        """A call said that it is not there: look again before the next."""
        with self._lock:
            self._ready.pop(namespace, None)

    def _make(self, namespace: str, project: str, level: str) -> str:
        """The level that the namespace admits now: at least ``level``, where that is ours to say."""
        found = self._find(namespace) or self._create(namespace, project, level)
        if found.get("status", {}).get("phase") == "Terminating":
            raise ExecutorTryAgain(f"Namespace {namespace} is being deleted; it is made anew when it is gone.")
        own = found["metadata"].get("labels") or {}
        if own.get(labels.INSTANCE) != self._instance or own.get(_FITTED) != AUTO:
            return LEVELS[-1]  # somebody else's to say: the API server tells when a pod is too much
        current = own.get(_ENFORCE, LEVELS[-1])
        if current not in LEVELS or LEVELS.index(current) >= LEVELS.index(level):
            return current if current in LEVELS else LEVELS[-1]
        try:
            self._cluster.patch(path("namespaces", "", namespace), {"metadata": {"labels": {_ENFORCE: level}}})
        except Refused as refused:
            raise ExecutorRefused(
                f"Jobs of namespace {namespace} need the pod security level {level}, and the platform may not set it: "
                f"label the namespace {_ENFORCE}={level}. {refused.sentence}"
            ) from refused
        return level

    def _find(self, namespace: str) -> Json | None:
        try:
            return self._cluster.get(path("namespaces", "", namespace))
        except NotFound:
            return None
        except Refused as refused:
            if refused.http_status != 403:
                raise
            # We may not look at it: then it is the administrator's, and the first call into it tells whether it is there.
            return {"metadata": {}}

    def _create(self, namespace: str, project: str, level: str) -> Json:
        own = {labels.INSTANCE: self._instance, "app.kubernetes.io/managed-by": "trainmaster"}
        if self._is_per_project and project:
            own[labels.PROJECT] = labels.label_value(project)
        if self._pod_security == AUTO:
            own |= {_FITTED: AUTO, _ENFORCE: level}
        elif self._pod_security:
            own[_ENFORCE] = self._pod_security
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": own}}
        try:
            return self._cluster.post(path("namespaces"), body)
        except AlreadyExists:
            return self._cluster.get(path("namespaces", "", namespace))
        except Refused as refused:
            raise ExecutorRefused(
                f"Namespace {namespace} does not exist, and the platform may not create it: create it "
                f"(kubectl create namespace {namespace}), or give the platform that right. {refused.sentence}"
            ) from refused


def needed_level(pod: Mapping[str, Any]) -> str:
    """The strictest pod security level that admits a pod as we render them."""
    spec = pod["spec"]
    kinds = {key for volume in spec.get("volumes") or () for key in volume if key != "name"}
    if "hostPath" in kinds:
        return "privileged"
    of_pod = spec.get("securityContext") or {}
    is_restricted = kinds <= _RESTRICTED_VOLUMES and all(
        _is_restricted(container.get("securityContext") or {}, of_pod) for container in _containers(spec)
    )
    return "restricted" if is_restricted else "baseline"


def _is_restricted(own: Mapping[str, Any], of_pod: Mapping[str, Any]) -> bool:
    profile = (own.get("seccompProfile") or of_pod.get("seccompProfile") or {}).get("type")
    return (
        own.get("allowPrivilegeEscalation") is False
        and "ALL" in ((own.get("capabilities") or {}).get("drop") or ())
        and own.get("runAsNonRoot", of_pod.get("runAsNonRoot")) is True
        and profile in ("RuntimeDefault", "Localhost")
    )


def _containers(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from spec.get("initContainers") or ()
    yield from spec["containers"]
