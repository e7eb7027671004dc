"""Disruption budgets: the API server refuses to evict the Pods of a gang, so that ``kubectl drain`` waits while the
platform, which sees the cordon, has the gang save a checkpoint and moves it.

There is one per attempt, and its Service owns it. A gang that does not move, as a job that is not preemptible, must not
block a drain for ever: after :data:`LONGEST_WAIT` its budget is deleted.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

import structlog

from core.domain.errors import ExecutorError
from core.domain.ids import AttemptId
from executors.base import ReplicaOrder
from executors.containers import labels, names
from executors.kubernetes.api_server.client import Json, KubernetesClient, ObjectExists, ObjectNotFound, path
from executors.kubernetes.cache import PodCache

log = structlog.get_logger(__name__)

LONGEST_WAIT: Final = timedelta(minutes=10)
# v1 from 1.21 on, v1beta1 until 1.24; what we write is the same in both.
_GROUPS: Final = ("policy/v1", "policy/v1beta1")
# More than any gang has: each of its Pods is needed. Kubernetes takes no percentage, and no maxUnavailable, for Pods
# without a controller that it knows.
_ALL: Final = 1_000_000


def budgets_url(namespace: str, name: str = "", *, group: str = _GROUPS[0]) -> str:
    return path("poddisruptionbudgets", namespace, name, group=group)


def render_budget(order: ReplicaOrder, instance: str, namespace: str, owner: Json) -> Json:
    """The budget of the order's attempt, called like its Service, which owns it."""
    attempt_id = order.key.attempt_id
    return {
        "kind": "PodDisruptionBudget",
        "metadata": {
            "name": names.attempt_name(attempt_id),
            "namespace": namespace,
            "labels": labels.attempt_labels(instance, order),
            "ownerReferences": [owner],
        },
        "spec": {"minAvailable": _ALL, "selector": {"matchLabels": labels.selector(instance, attempt_id)}},
    }


class DisruptionBudgets:
    """Creates budgets, and deletes those that block a drain for too long. What it remembers only saves requests."""

    def __init__(self, cluster: KubernetesClient, instance: str, pods: PodCache) -> None:
        self._cluster = cluster
        self._instance = instance
        self._pods = pods
        self._group = _GROUPS[0]
        self._lifted: set[AttemptId] = set()
        self._lock = threading.Lock()

    def create(self, order: ReplicaOrder, namespace: str, owner: Json) -> None:
        """Without a budget the gang runs as well, and a drain ends it without a wait: errors are only logged."""
        budget = render_budget(order, self._instance, namespace, owner)
        try:
            self._post(namespace, budget)
        except ObjectExists:
            pass
        except (ExecutorError, ObjectNotFound) as error:
            log.warning("kubernetes.no_budget", attempt=order.key.attempt_id, why=str(error))

    def delete_expired(self, draining: Mapping[str, datetime], now: datetime) -> None:
        """Delete the budgets of attempts that stay on nodes which have been draining for too long.

        Args:
            draining: nodes, and since when they are drained.
        """
        nodes = {name for name, since in draining.items() if now - since >= LONGEST_WAIT}
        found = self._pods.attempts_on(nodes) if nodes else {}
        with self._lock:
            self._lifted &= found.keys()
            due = {attempt_id: namespace for attempt_id, namespace in found.items() if attempt_id not in self._lifted}
        for attempt_id, namespace in due.items():
            try:
                self._cluster.delete(budgets_url(namespace, names.attempt_name(attempt_id), group=self._group))
            except ObjectNotFound:
                self._delete_older(namespace, attempt_id)
            log.info("kubernetes.budget_lifted", attempt=attempt_id)
            with self._lock:
                self._lifted.add(attempt_id)

    def _post(self, namespace: str, budget: Json) -> None:
        try:
            self._cluster.post(budgets_url(namespace, group=self._group), {"apiVersion": self._group, **budget})
        except ObjectNotFound:
            # The version of another release; or the namespace is gone, and no version finds it.
            (other,) = (group for group in _GROUPS if group != self._group)
            self._cluster.post(budgets_url(namespace, group=other), {"apiVersion": other, **budget})
            self._group = other

    def _delete_older(self, namespace: str, attempt_id: AttemptId) -> None:
        (other,) = (group for group in _GROUPS if group != self._group)
        try:
            self._cluster.delete(budgets_url(namespace, names.attempt_name(attempt_id), group=other))
        except ObjectNotFound:
            return
        self._group = other
