"""From an order to a running Pod, in steps that may be killed, repeated and made by two processes at once.

1. the attempt's Service, and its NetworkPolicy; 2. the replica's Secret, owned by the Service; 3. is the attempt still
wanted? 4. the Pod, owned by the Service; 5. the Secret becomes the Pod's.

Every name is deterministic, so whoever repeats a step meets what is there. A removal (``ending``) writes a tombstone
first and deletes the Secrets next. So a creator that sees no tombstone in step 3 has made its Secret before the removal
deletes it: a Pod that it posts late, however late, waits for a Secret that never comes, until the sweep or the garbage
collector takes it away. No container of it ever starts.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

from core.domain.errors import ExecutorRefused, ExecutorTryAgain
from core.domain.ids import AttemptId
from executors.base import ReplicaOrder
from executors.containers import labels, names
from executors.kubernetes import render
from executors.kubernetes.cache import PodCache
from executors.kubernetes.client import AlreadyExists, Cluster, Json, NotFound, path
from executors.kubernetes.namespaces import Namespaces
from executors.kubernetes.options import Options
from executors.kubernetes.policy import policies_url, render_policy

_REMEMBERED: Final = 10_000


class Starting:
    """Creates replicas. What it remembers only saves requests."""

    def __init__(self, cluster: Cluster, options: Options, namespaces: Namespaces, pods: PodCache) -> None:
        self._cluster = cluster
        self._options = options
        self._namespaces = namespaces
        self._pods = pods
        self._services: OrderedDict[AttemptId, Json] = OrderedDict()
        self._lock = threading.Lock()

    def create(self, order: ReplicaOrder) -> None:
        """See :meth:`executors.base.Executor.create`."""
        render.check(order, self._options)
        if self._is_there(order):
            return
        namespace = self._namespaces.name_of(order.project)
        secret = render.render_secret(order, self._options, namespace)
        pod = render.render_pod(order, self._options, namespace)
        self._namespaces.ensure(order)
        service = self._service(order, namespace)
        self._make(path("secrets", namespace), render.owned(secret, "Service", service))
        if self._is_removed(order.key.attempt_id):
            self._undo(order, namespace)
            raise ExecutorRefused(f"Attempt {order.key.attempt_id} was removed; start a new attempt.")
        made = self._make(path("pods", namespace), render.owned(pod, "Service", service))
        if made is None:
            made = self._known(namespace, pod)
        self._pods.put(made)
        self._give_secret(namespace, made)

    def forget(self, attempt_id: AttemptId) -> None:
        """The attempt was removed: its Service is nobody's owner any more."""
        with self._lock:
            self._services.pop(attempt_id, None)

    def _is_there(self, order: ReplicaOrder) -> bool:
        try:
            pods = self._pods.pods(order.key.attempt_id)
        except ExecutorTryAgain:
            return False  # no copy yet: ask the API server itself
        return any(labels.key_of(pod["metadata"]["labels"]) == order.key for pod in pods)

    def _service(self, order: ReplicaOrder, namespace: str) -> Json:
        """The attempt's Service, which is there, and its network policy beside it."""
        attempt_id = order.key.attempt_id
        with self._lock:
            known = self._services.get(attempt_id)
        if known is not None:
            return known
        service = render.render_service(order, self._options, namespace)
        made = self._make(path("services", namespace), service) or self._known(namespace, service)
        if self._options.is_isolated:
            owner = render.owner_reference("Service", made)
            policy = render_policy(order, self._options.instance, namespace, owner, egress=self._options.egress)
            self._make(policies_url(namespace), policy)
        with self._lock:
            self._services[attempt_id] = {"metadata": {key: made["metadata"][key] for key in ("name", "uid")}}
            while len(self._services) > _REMEMBERED:
                self._services.popitem(last=False)
        return made

    def _make(self, url: str, thing: Json) -> Json | None:
        """The object as it was made; ``None`` when one of this name is there already."""
        try:
            return self._cluster.post(url, thing)
        except AlreadyExists:
            return None
        except NotFound as error:
            self._namespaces.forget(thing["metadata"]["namespace"])
            raise ExecutorTryAgain(f"Namespace {thing['metadata']['namespace']} is gone; it is made again.") from error

    def _known(self, namespace: str, thing: Json) -> Json:
        """The object that was there before us."""
        kind, name = thing["kind"], thing["metadata"]["name"]
        try:
            known = self._cluster.get(path(f"{kind.lower()}s", namespace, name))
        except NotFound as error:
            raise ExecutorTryAgain(f"{kind} {name} is just being removed.") from error
        own = known["metadata"].get("labels") or {}
        if own.get(labels.INSTANCE) != self._options.instance:
            raise ExecutorRefused(
                f"{kind} {name} in namespace {namespace} is not this platform's; give each platform a "
                "TRAINMASTER_INSTANCE of its own."
            )
        return known

    def _is_removed(self, attempt_id: AttemptId) -> bool:
        try:
            self._cluster.get(path("configmaps", self._options.namespace, names.attempt_name(attempt_id)))
        except NotFound:
            return False
        return True

    def _undo(self, order: ReplicaOrder, namespace: str) -> None:
        self.forget(order.key.attempt_id)
        for resource, name in (
            ("secrets", names.replica_name(order.key)),
            ("services", names.attempt_name(order.key.attempt_id)),
        ):
            try:
                self._cluster.delete(path(resource, namespace, name))
            except NotFound:
                pass

    def _give_secret(self, namespace: str, pod: Json) -> None:
        """Let the Secret go with its Pod. Should we die before, it goes with the Service."""
        body = {"metadata": {"ownerReferences": [render.owner_reference("Pod", pod)]}}
        try:
            self._cluster.patch(path("secrets", namespace, pod["metadata"]["name"]), body)
        except NotFound:
            pass  # a removal came in between
