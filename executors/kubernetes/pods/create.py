"""From orders to running Pods, in steps that may be killed, repeated and made by two processes at once.

1. the attempt's Service; 2. its NetworkPolicy, its disruption budget and the Secrets, all owned by the Service; 3. is
the attempt still wanted? 4. the Pods, owned by the Service, several at once.

Every name is deterministic, so a repeated step finds the existing object. A removal (``delete``) writes a tombstone
first and deletes the Secrets next. So a creator that sees no tombstone in step 3 has made its Secrets before the
removal deletes them: a Pod that it posts late, however late, waits for a Secret that never comes, until our gc or
the cluster's garbage collector takes it away. No container of it ever starts.

Each step is one request for all replicas that are created together, but for the Pods: a gang of eight is thirteen
requests.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from core.domain.errors import AttemptRemoved, ExecutorError, ExecutorRefused, ExecutorTryAgain
from core.domain.ids import AttemptId
from executors.base import ReplicaKey, ReplicaOrder
from executors.containers import labels, names
from executors.kubernetes.api_server.client import Json, KubernetesClient, ObjectExists, ObjectNotFound, path
from executors.kubernetes.budgets import DisruptionBudgets
from executors.kubernetes.cache import PodCache
from executors.kubernetes.namespaces import Namespaces
from executors.kubernetes.options import KubernetesOptions
from executors.kubernetes.placeholders import Placeholders
from executors.kubernetes.pods import render
from executors.kubernetes.pods.observe import is_over
from executors.kubernetes.pods.secret import Bundle, bundle
from executors.kubernetes.policy import policies_url, render_policy

_REMEMBERED: Final = 10_000
# Requests of this process's creations that wait for their answers, all attempts together.
_CREATION_THREADS: Final = 8
_KILL_GRACE_S: Final = 1  # the shortest that kubelet still answers for; 0 would forget the pod while it runs


class PodCreator:
    """Creates replicas. What it remembers only saves requests."""

    def __init__(
        self,
        cluster: KubernetesClient,
        options: KubernetesOptions,
        namespaces: Namespaces,
        pods: PodCache,
        placeholders: Placeholders,
        budgets: DisruptionBudgets,
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._namespaces = namespaces
        self._pods = pods
        self._placeholders = placeholders
        self._budgets = budgets
        self._services: OrderedDict[AttemptId, Json] = OrderedDict()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(_CREATION_THREADS, thread_name_prefix="pods")

    def create(self, order: ReplicaOrder) -> None:
        """See :meth:`executors.base.Executor.create`."""
        (error,) = self.create_all([order])
        if error is not None:
            raise error

    def create_all(self, orders: Sequence[ReplicaOrder]) -> Sequence[ExecutorError | None]:
        """See :meth:`executors.base.CreatesGangs.create_all`."""
        errors: dict[ReplicaKey, ExecutorError] = {}
        missing: list[ReplicaOrder] = []
        known = self._known_keys(orders[0].key.attempt_id) if orders else frozenset()
        for order in orders:
            try:
                render.check(order, self._options)
            except ExecutorError as error:
                errors[order.key] = error
            else:
                missing += [] if order.key in known else [order]
        if missing:
            try:
                errors |= self._create(missing)
            except ExecutorError as error:
                errors |= dict.fromkeys((order.key for order in missing), error)
        return [errors.get(order.key) for order in orders]

    def close(self) -> None:
        """Start nothing any more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _create(self, orders: Sequence[ReplicaOrder]) -> dict[ReplicaKey, ExecutorError]:
        """Create missing replicas; returns errors of single replicas, raises an error that concerns all of them."""
        first = orders[0]
        namespace = self._namespaces.name_of(first.project)
        parts = bundle(orders, self._options, namespace)
        pods = {
            order.key: render.render_pod(order, self._options, namespace, part.location(order))
            for part in parts
            for order in part.orders
        }
        for order in orders:
            self._namespaces.ensure(order)
        is_restart = any(order.key.generation > 1 for order in orders)
        service, protection = self._service(first, namespace, may_remember=not is_restart)
        for part in parts:
            self._make(path("secrets", namespace), render.owned(part.secret, "Service", service))
        if self._is_removed(first.key.attempt_id):
            self._undo(first.key.attempt_id, parts, namespace)
            raise AttemptRemoved(f"Attempt {first.key.attempt_id} was removed; start a new attempt.")
        if protection is not None:
            protection.result()
        # After the Service: as long as it is there, gc leaves what is held for its attempt.
        devices = self._placeholders.hold([order for order in orders if order.request.gpu_milli])
        for key, device in devices.items():
            render.show_device(pods[key], device)
        self._end_earlier(orders)
        owned = {key: render.owned(pod, "Service", service) for key, pod in pods.items()}
        if len(owned) == 1:
            made = [self._make_pod(namespace, pod) for pod in owned.values()]
        else:
            made = list(self._pool.map(lambda pod: self._make_pod(namespace, pod), owned.values()))
        return {key: error for key, error in zip(owned, made, strict=True) if error is not None}

    def _end_earlier(self, orders: Sequence[ReplicaOrder]) -> None:
        """Delete pods of earlier generations: a pod that waited too long counts as failed, and would still
        start.
        """
        keys = {(order.key.role, order.key.index): order.key for order in orders if order.key.generation > 1}
        for pod in self._pods.fresh(orders[0].key.attempt_id) if keys else ():
            known = labels.key_of(pod["metadata"]["labels"])
            key = keys.get((known.role, known.index)) if known is not None else None
            if known is None or key is None or known.generation >= key.generation or is_over(pod):
                continue
            options = {"gracePeriodSeconds": _KILL_GRACE_S, "preconditions": {"uid": pod["metadata"]["uid"]}}
            with suppress(ObjectNotFound):
                self._cluster.delete(
                    path("pods", pod["metadata"]["namespace"], pod["metadata"]["name"]), options=options
                )

    def _make_pod(self, namespace: str, pod: Json) -> ExecutorError | None:
        try:
            made = self._make(path("pods", namespace), pod) or self._known(namespace, pod)
        except ExecutorError as error:
            return error
        self._pods.put(made)
        return None

    def forget(self, attempt_id: AttemptId) -> None:
        """The attempt was removed: forget its Service, the owner of its objects."""
        with self._lock:
            self._services.pop(attempt_id, None)

    def _known_keys(self, attempt_id: AttemptId) -> frozenset[ReplicaKey | None]:
        try:
            pods = self._pods.pods(attempt_id)
        except ExecutorTryAgain:
            return frozenset()  # no copy yet: ask the API server itself
        return frozenset(labels.key_of(pod["metadata"]["labels"]) for pod in pods)

    def _service(self, order: ReplicaOrder, namespace: str, *, may_remember: bool) -> tuple[Json, Future[None] | None]:
        """The attempt's Service, which is there, and what protects it: its network policy and its disruption budget,
        which must be there before the first Pod.

        Args:
            may_remember: whether the cached Service may be used. One that was deleted by hand since takes with it
                all that names it as its owner.
        """
        attempt_id = order.key.attempt_id
        with self._lock:
            known = self._services.get(attempt_id) if may_remember else None
        if known is not None:
            return known, None
        service = render.render_service(order, self._options, namespace)
        made = self._make(path("services", namespace), service) or self._known(namespace, service)
        lean = {"metadata": {key: made["metadata"][key] for key in ("name", "uid")}}
        return lean, self._pool.submit(self._protect, order, namespace, lean)

    def _protect(self, order: ReplicaOrder, namespace: str, service: Json) -> None:
        """The network policy and the disruption budget."""
        owner = render.owner_reference("Service", service)
        if self._options.is_isolated:
            policy = render_policy(order, self._options.instance, namespace, owner, egress=self._options.egress)
            self._make(policies_url(namespace), policy)
        self._budgets.create(order, namespace, owner)
        self._remember(order.key.attempt_id, service)

    def _remember(self, attempt_id: AttemptId, service: Json) -> None:
        with self._lock:
            self._services[attempt_id] = service
            while len(self._services) > _REMEMBERED:
                self._services.popitem(last=False)

    def _make(self, url: str, thing: Json) -> Json | None:
        """The object as it was made; ``None`` when one of this name is there already."""
        try:
            return self._cluster.post(url, thing)
        except ObjectExists:
            return None
        except ObjectNotFound as error:
            self._namespaces.forget(thing["metadata"]["namespace"])
            raise ExecutorTryAgain(f"Namespace {thing['metadata']['namespace']} is gone; it is made again.") from error

    def _known(self, namespace: str, thing: Json) -> Json:
        """The object that was there before us."""
        kind, name = thing["kind"], thing["metadata"]["name"]
        try:
            known = self._cluster.get(path(f"{kind.lower()}s", namespace, name))
        except ObjectNotFound as error:
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
        except ObjectNotFound:
            return False
        return True

    def _undo(self, attempt_id: AttemptId, parts: Sequence[Bundle], namespace: str) -> None:
        self.forget(attempt_id)
        created = [("secrets", part.secret["metadata"]["name"]) for part in parts]
        for resource, name in (*created, ("services", names.attempt_name(attempt_id))):
            try:
                self._cluster.delete(path(resource, namespace, name))
            except ObjectNotFound:
                pass
