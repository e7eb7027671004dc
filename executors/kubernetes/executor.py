"""The driver for Kubernetes: plain Pods and headless Services, stable v1 APIs alone.

It keeps nothing: pods are found again by labels, through a copy that a watch keeps up to date. The parts:

================  ====================================================================================================
``render``        an order as Service and Pod, ``secret`` what is not to be read in them
``create``        sends them, in an order that is safe against crashes and concurrent removals
``observe``       a Pod as an observation, in ``phrases``
``pod_writer``    a new world of its gang, sent to a running Pod
``budgets``       let a drain wait while the platform moves a gang
``placeholders``  Pods that hold shared devices for the Pods that use parts of them
``delete``        stop and remove
================  ====================================================================================================
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Final

import structlog

from core.domain.errors import ExecutorError, ExecutorTryAgain
from core.domain.ids import AttemptId
from core.domain.jobs.layout import Layout, Ports
from executors.base import NodeInfo, Observation, ReplicaKey, ReplicaOrder, newest_generations
from executors.containers import labels, names
from executors.kubernetes.api_server.client import Gone, Json, KubernetesClient, path
from executors.kubernetes.budgets import DisruptionBudgets
from executors.kubernetes.cache import PodCache
from executors.kubernetes.namespaces import Namespaces
from executors.kubernetes.nodes import KubernetesNodeCache
from executors.kubernetes.options import KubernetesOptions
from executors.kubernetes.placeholders import Placeholders
from executors.kubernetes.pods import render
from executors.kubernetes.pods.create import PodCreator
from executors.kubernetes.pods.delete import PodDeleter
from executors.kubernetes.pods.observe import Patience, node_of, read_pod, waits_since
from executors.kubernetes.pods.pod_writer import change_world
from executors.node_resources import with_memory_limit

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


class KubernetesExecutor:
    """Satisfies :class:`executors.base.Executor`. Safe to use from several threads and processes.

    Threads begin with the first question about pods or nodes; :meth:`close` ends them.

    Args:
        node_selector: a label selector of the nodes that jobs may use; empty: all.
        clock: aware UTC, compared with the cluster's own times.
    """

    name = "kubernetes"
    shares_hosts = False

    def __init__(
        self,
        cluster: KubernetesClient,
        options: KubernetesOptions,
        *,
        node_selector: str = "",
        patience: Patience | None = None,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        self._cluster = cluster
        self._patience = patience or Patience()
        self._clock = clock or _utc_now
        namespaces = Namespaces(cluster, options)
        self._pods = PodCache(
            cluster,
            options.instance,
            main=render.MAIN,
            home="" if options.is_per_project else options.namespace,
            is_home=namespaces.may_hold,
        )
        self._nodes = KubernetesNodeCache(cluster, self._pods, options.rules, selector=node_selector)
        self._placeholders = Placeholders(cluster, options, namespaces, self._pods, self._clock)
        self._budgets = DisruptionBudgets(cluster, options.instance, self._pods)
        self._creator = PodCreator(cluster, options, namespaces, self._pods, self._placeholders, self._budgets)
        self._deleter = PodDeleter(cluster, options, namespaces, self._pods, self._clock)
        self._warnings = PodWarnings(cluster)

    def nodes(self, *, database_id: str = "") -> Sequence[NodeInfo]:
        return self._nodes.infos(database_id)

    def assign_addresses(
        self,
        layout: Layout,
        taken_ports: frozenset[int],  # noqa: ARG002
        attempt_id: AttemptId,
        *,
        world: int = 1,
    ) -> Layout:
        """Names in the attempt's own Service. Each replica has an address of its own, so the well-known ports serve, in
        the first world.

        The names are relative: the pod's DNS search path, which begins with its own namespace, completes them. So
        nothing needs to know the cluster's domain.
        """
        service = names.attempt_name(attempt_id)
        return Layout(
            tuple(
                replace(
                    replica,
                    host=f"{names.host_name(replica.role, replica.index)}.{service}",
                    ports=names.ports_of_world(world, Ports()),
                )
                for replica in layout.replicas
            )
        )

    def create(self, order: ReplicaOrder) -> None:
        self._creator.create(self._with_memory_limit(order))

    def create_all(self, orders: Sequence[ReplicaOrder]) -> Sequence[ExecutorError | None]:
        """See :class:`executors.base.CreatesGangs`."""
        return self._creator.create_all([self._with_memory_limit(order) for order in orders])

    def change_world(self, order: ReplicaOrder) -> None:
        """See :class:`executors.base.ChangesWorlds`. kubelet shows it to the replica within a second."""
        change_world(self._cluster, self._pods, order)

    def kill(self, key: ReplicaKey) -> None:
        """See :class:`executors.base.ChangesWorlds`."""
        self._deleter.kill(key)

    def stop(self, key: ReplicaKey, *, grace: timedelta) -> None:
        self._deleter.stop(key, grace)

    def observe(self, attempt_id: AttemptId, *, fresh: bool = False) -> Sequence[Observation]:
        pods = self._pods.fresh(attempt_id) if fresh else self._pods.pods(attempt_id)
        return newest_generations(map(self._read, pods))

    def attempts(self) -> Mapping[AttemptId, str]:
        """Also deletes old tombstones, budgets that have blocked a drain for too long, and placeholders of shared
        devices that no attempt uses: it is garbage collection's call, every few minutes.
        """
        self._deleter.forget_old_tombstones()
        self._budgets.delete_expired(self._nodes.draining(), self._clock())
        live = labels.databases([*self._pods.labels_of_attempts(), *self._deleter.labels_of_attempts()])
        self._placeholders.gc(live)
        return live

    def remove(self, attempt_id: AttemptId) -> None:
        """Blocks while kubelet ends what still runs: a second or two, at most ten.

        On a node that does not report no kubelet can end it: there the pod is force-deleted. If the node is only cut
        off, its containers run on until it is back, and kubelet ends them then.

        Raises:
            ExecutorTryAgain: a pod does not end in time, though its node reports. A minute after its grace it is
                forgotten, too.
        """
        self._deleter.remove(attempt_id)
        self._placeholders.release(attempt_id)
        self._creator.forget(attempt_id)

    def unkilled_replicas(self, attempt_id: AttemptId) -> Sequence[str]:
        """See :class:`executors.base.ReportsUnkilledReplicas`."""
        return self._deleter.unkilled_replicas(attempt_id)

    def forget_unkilled_replicas(self, attempt_id: AttemptId) -> None:
        """See :class:`executors.base.ReportsUnkilledReplicas`."""
        self._deleter.forget_unkilled_replicas(attempt_id)

    def wait_for_change(self, timeout_s: float) -> frozenset[AttemptId]:
        """See :class:`executors.base.ReportsChanges`."""
        return self._pods.wait_for_change(timeout_s)

    def close(self) -> None:
        """End the threads and the connections."""
        self._pods.reflector.stop()
        self._nodes.reflector.stop()
        self._cluster.close()
        self._creator.close()

    def _with_memory_limit(self, order: ReplicaOrder) -> ReplicaOrder:
        if not order.request.gpu_milli:
            return order
        try:
            nodes = self._nodes.infos()
        except ExecutorTryAgain:
            return order  # no cached nodes yet: the limit is advisory
        return with_memory_limit(order, (gpu for node in nodes if node.name == order.node for gpu in node.gpus))

    def _read(self, pod: Json) -> Observation | None:
        now = self._clock()
        is_draining = self._nodes.is_draining(node_of(pod))
        return read_pod(pod, now, self._patience, warning=self._warnings.about(pod, now), is_draining=is_draining)


def _utc_now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - the edge
