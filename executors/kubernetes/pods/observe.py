"""From a Pod to an :class:`Observation`. Pure: the pod and the time in, a value out.

======================================  ===========================================================================
the pod shows                           we say
======================================  ===========================================================================
nothing yet, or why it waits            pending, in words; failed when that lasts too long (see ``Patience``)
main container runs                     running; pending, where it waits for its place in an elastic gang
main container ended                    its exit record; without one its exit code and reason
failed before it ran                    failed, by its reason: the node refused it, evicted it, was shut down
being deleted, not by us, and it runs   running, with the eviction; its end is maintenance where the node is cordoned,
                                        evicted or shut down, else unknown: never a fault of the node
being deleted, its end unknown          lost
======================================  ===========================================================================
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from core.domain.jobs.exits import ExitCause
from executors.base import Observation, Phase, ReplicaExit, ReplicaKey
from executors.containers import labels
from executors.containers.exits import exit_without_record, phase_of, read_exit, read_facts
from executors.kubernetes.pod_usage import units
from executors.kubernetes.pods import phrases
from executors.kubernetes.pods.render import INSTALLER, MAIN, STOP, WORLD

Json = Mapping[str, Any]

# kubelet's reasons for a container that it cannot find any more.
_LOST_CONTAINER: Final = frozenset({"ContainerStatusUnknown", "Unknown"})
_LOG_TAIL_CHARS: Final = 4096
_STARTING_REASONS: Final = frozenset({"PodInitializing", "ContainerCreating"})
_SOON: Final = timedelta(seconds=15)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a pod may wait before its replica counts as failed, so that a job never waits for ever.

    ``image``: the registry says that there is no such image; kubelet tries again after 10, 20, 40 s. ``scheduling``:
    kube-scheduler sees no room where the planner saw some: the planner is to look again. ``other``: all that may mend
    itself, such as a registry or a file server that is away.
    """

    image: timedelta = timedelta(seconds=45)
    scheduling: timedelta = timedelta(seconds=60)
    other: timedelta = timedelta(minutes=10)


def read_pod(
    pod: Json, now: datetime, patience: Patience, *, warning: str = "", is_draining: bool = False
) -> Observation | None:
    """The observation of a pod; ``None`` when the pod is no replica.

    Args:
        warning: kubelet's latest warning about the pod, where it has been pending for a while.
        is_draining: whether its node is cordoned in the cluster.
    """
    key = labels.key_of(pod["metadata"].get("labels") or {})
    return None if key is None else _Reading(pod, key, now, patience, warning, is_draining=is_draining).observation()


def is_over(pod: Json) -> bool:
    """Whether nothing of the pod runs any more, as kubelet says."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def has_stopped(pod: Json) -> bool:
    """Whether it is over, or is being deleted and kubelet says that each of its containers is over."""
    if is_over(pod):
        return True
    status = pod.get("status") or {}
    statuses = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    is_deleted = pod["metadata"].get("deletionTimestamp") is not None
    return is_deleted and bool(statuses) and all("terminated" in (item.get("state") or {}) for item in statuses)


def has_started(pod: Json) -> bool:
    """Whether the main container was started, as far as is known."""
    state = _state(pod, "containerStatuses", MAIN)
    return "running" in state or "terminated" in state


def is_beginning(pod: Json, now: datetime) -> bool:
    """Whether kubelet is just making its containers, and nothing has gone wrong: they will run within seconds."""
    since = waits_since(pod)
    if since is None or now - since > _SOON or pod["metadata"].get("deletionTimestamp") is not None:
        return False
    states = (_state(pod, "initContainerStatuses", INSTALLER), _state(pod, "containerStatuses", MAIN))
    return all((state.get("waiting") or {}).get("reason", "PodInitializing") in _STARTING_REASONS for state in states)


def is_stuck(pod: Json) -> bool:
    """Whether it has not begun because an image or a container cannot be had: kubelet only waits to try again."""
    states = (_state(pod, "initContainerStatuses", INSTALLER), _state(pod, "containerStatuses", MAIN))
    reasons = {str((state.get("waiting") or {}).get("reason") or "") for state in states}
    return not has_started(pod) and bool(reasons & (phrases.PULL_ERRORS | phrases.CONFIG_ERRORS))


def stop_annotation(pod: Json) -> str:
    """Value of the pod's stop annotation; empty: no stop was requested."""
    return str((pod["metadata"].get("annotations") or {}).get(STOP) or "")


def world_of(pod: Json) -> int | None:
    """The newest world of its elastic gang that was sent to the Pod, 0: it joins; ``None``: the gang is not elastic."""
    number = (pod["metadata"].get("annotations") or {}).get(WORLD)
    return int(number) if number is not None else None


def node_of(pod: Json) -> str:
    """The pod's node; of a pod that is on none yet, the planner's."""
    return str(pod["spec"].get("nodeName") or _wanted_node(pod))


def waits_since(pod: Json) -> datetime | None:
    """Since when the pod has been on a node without running; ``None`` when it is not so."""
    status = pod.get("status") or {}
    if status.get("phase", "Pending") != "Pending" or not pod["spec"].get("nodeName") or has_started(pod):
        return None
    times = (
        _time(status.get("startTime")),
        _condition_since(status, "Initialized"),
        _condition_since(status, "PodScheduled"),
    )
    return max((time for time in times if time is not None), default=None)


class _Reading:
    """Parses one pod."""

    def __init__(
        self, pod: Json, key: ReplicaKey, now: datetime, patience: Patience, warning: str, *, is_draining: bool
    ) -> None:
        self.pod = pod
        self.key = key
        self.now = now
        self.patience = patience
        self.warning = warning
        self.status: Json = pod.get("status") or {}
        self.name = str(pod["metadata"]["name"])
        self.node = node_of(pod)
        self.is_deleted = pod["metadata"].get("deletionTimestamp") is not None
        self.was_requested = bool(stop_annotation(pod))
        self.is_evicted = self.is_deleted and not self.was_requested
        self.is_draining = is_draining
        self.disruption = str(_condition(self.status, "DisruptionTarget").get("reason") or "")
        self.world = world_of(pod)
        self.main = _state(pod, "containerStatuses", MAIN)
        self.began = _time((self.main.get("running") or self.main.get("terminated") or {}).get("startedAt"))

    def observation(self) -> Observation:
        ended = self._ended()
        if ended is not None:
            return self._show(phase_of(ended), exit_=ended)
        if self.is_deleted and self._has_unknown_exit():
            return self._show(Phase.LOST, self._deleted())
        if "running" in self.main:
            detail = self._deleted() if self.is_evicted else ""
            if self.world == 0:
                return self._show(Phase.PENDING, detail or "Waiting for its place in the gang.")
            return replace(self._show(Phase.RUNNING, detail), eviction=detail)
        if self.status.get("phase") == "Unknown":
            return self._show(Phase.RUNNING if self.began else Phase.PENDING, f"Node {self.node} does not report.")
        return self._pending()

    # The end

    def _ended(self) -> ReplicaExit | None:
        terminated = self.main.get("terminated")
        reason = str(self.status.get("reason") or "")
        record = read_exit(_message(terminated), was_requested=self.was_requested) if terminated else None
        if record is not None and record.cause is not ExitCause.NODE_LOST:
            return record
        if self.status.get("phase") == "Failed" and reason:
            return self._failed_pod(reason, str(self.status.get("message") or ""))
        if terminated is None:
            return self._failed_installer()
        if self.is_evicted and (record is not None or self._has_unknown_exit() or _is_killed(terminated)):
            if record is None and self._has_unknown_exit() and not self._is_maintenance():
                return None
            return self._eviction()
        if record is not None:
            return replace(record, cause=self._lost_cause())  # a NODE_LOST
        return self._failed_container(terminated)

    def _eviction(self) -> ReplicaExit:
        """The end of a pod that was deleted from outside. Its peers may end before it: it began with the deletion."""
        grace = timedelta(seconds=float(self.pod["metadata"].get("deletionGracePeriodSeconds") or 0))
        deleted = _time(self.pod["metadata"].get("deletionTimestamp")) or self.now
        cause = ExitCause.MAINTENANCE if self._is_maintenance() else ExitCause.UNKNOWN
        return ReplicaExit(cause, None, self._deleted(), min(deleted - grace, self.now))

    def _is_maintenance(self) -> bool:
        return self.is_draining or phrases.is_maintenance(self.disruption)

    def _failed_container(self, terminated: Json) -> ReplicaExit:
        """The main container ended and left no record."""
        at = _time(terminated.get("finishedAt")) or self.now
        reason, message = str(terminated.get("reason") or ""), str(terminated.get("message") or "")
        code = terminated.get("exitCode")
        if reason in _LOST_CONTAINER:
            return ReplicaExit(self._lost_cause(), None, phrases.rebooted(self.node), at)
        if reason in ("StartError", "ContainerCannotRun"):
            is_missing = "executable file not found" in message or "no such file or directory" in message
            cause = ExitCause.COMMAND_NOT_FOUND if is_missing else ExitCause.START_FAILED
            return ReplicaExit(cause, code, phrases.not_started(message), at)
        limit = (self._resources().get("limits") or {}).get("memory")
        return exit_without_record(
            code,
            at=at,
            is_out_of_memory=reason == "OOMKilled",
            reason=reason,
            was_requested=self.was_requested,
            memory_bytes=units(limit) if limit else None,
            log_tail=message[-_LOG_TAIL_CHARS:],
        )

    def _failed_pod(self, reason: str, message: str) -> ReplicaExit:
        """The kubelet or the control plane ended the pod as a whole, or never began it."""
        terminated = self.main.get("terminated") or {}
        at = _time(terminated.get("finishedAt")) or self._last_change()
        if self.was_requested:
            return ReplicaExit(ExitCause.STOPPED, None, "Stopped because the platform asked.", at)
        if reason in phrases.EVICTIONS:
            match phrases.own_limit(message):
                case "shm":
                    return ReplicaExit(ExitCause.OUT_OF_MEMORY, None, phrases.too_much_shm(message), at)
                case "disk":
                    return ReplicaExit(ExitCause.DISK_LIMIT, None, phrases.too_much_disk(message), at)
            return ReplicaExit(ExitCause.EVICTED, None, phrases.evicted(self.node, message), at)
        if reason in phrases.SHUTDOWNS:
            return ReplicaExit(ExitCause.MAINTENANCE, None, phrases.shut_down(self.node, message), at)
        if reason in phrases.LOST_NODES:
            return ReplicaExit(ExitCause.NODE_LOST, None, phrases.lost(self.node, message), at)
        if terminated:
            return self._failed_container(terminated)
        return ReplicaExit(ExitCause.ENGINE_REFUSED, None, phrases.refused_by_node(self.node, reason, message), at)

    def _failed_installer(self) -> ReplicaExit | None:
        terminated = _state(self.pod, "initContainerStatuses", INSTALLER).get("terminated")
        if terminated is None or (terminated.get("exitCode") == 0 and self.status.get("phase") != "Failed"):
            if self.status.get("phase") != "Failed":
                return None
            return ReplicaExit(
                ExitCause.ENGINE_REFUSED, None, phrases.refused_by_node(self.node, "Failed", ""), self._last_change()
            )
        at = _time(terminated.get("finishedAt")) or self.now
        if self.was_requested:
            return ReplicaExit(ExitCause.STOPPED, None, "Stopped because the platform asked.", at)
        if self.is_evicted:
            return self._eviction()
        if str(terminated.get("reason") or "") in _LOST_CONTAINER:
            return ReplicaExit(self._lost_cause(), None, phrases.rebooted(self.node), at)
        code, message = terminated.get("exitCode"), str(terminated.get("message") or "")
        return ReplicaExit(ExitCause.ENGINE_REFUSED, None, phrases.not_installed(code, message), at)

    def _lost_cause(self) -> ExitCause:
        """Of a container that is gone as after a reboot: that of a drained node is part of its maintenance."""
        return ExitCause.MAINTENANCE if self.is_draining else ExitCause.NODE_LOST

    def _has_unknown_exit(self) -> bool:
        """Whether the container is over and its exit unknown: kubelet clears its status when it deletes a pod."""
        terminated = self.main.get("terminated")
        return terminated is not None and _time(terminated.get("finishedAt")) is None

    def _deleted(self) -> str:
        if self.is_draining:
            return phrases.drained(self.name, self.node)
        return phrases.deleted(self.name, self.disruption)

    # Before the start

    def _pending(self) -> Observation:
        if self.is_deleted:
            return self._show(Phase.PENDING, "It is being stopped." if self.was_requested else self._deleted())
        scheduled = _condition(self.status, "PodScheduled")
        if scheduled.get("status") == "False":
            detail = phrases.not_scheduled(self.node, str(scheduled.get("message") or ""))
            since = _time(scheduled.get("lastTransitionTime"))
            if self.is_draining:
                # kube-scheduler never lets it there, and another node may take it now.
                return self._wait(phrases.cordoned(self.node), since, timedelta(), ExitCause.MAINTENANCE)
            return self._wait(detail, since, self.patience.scheduling, ExitCause.ENGINE_REFUSED)
        if not self.pod["spec"].get("nodeName"):
            return self._show(Phase.PENDING, "It waits for Kubernetes' scheduler.")
        since = waits_since(self.pod)
        for kind, container in (("initContainerStatuses", INSTALLER), ("containerStatuses", MAIN)):
            waiting = _state(self.pod, kind, container).get("waiting") or {}
            reason, message = str(waiting.get("reason") or ""), str(waiting.get("message") or "")
            if reason in phrases.PULL_ERRORS:
                return self._no_image(container, reason, message, since)
            if reason in phrases.CONFIG_ERRORS:
                detail = phrases.not_created(reason, message)
                return self._wait(detail, since, self.patience.image, ExitCause.START_FAILED)
        if self.warning and since is not None:
            detail = phrases.not_mounted(self.node, self.warning)
            return self._wait(detail, since, self.patience.other, ExitCause.ENGINE_REFUSED)
        return self._show(Phase.PENDING, self._making_ready(since))

    def _making_ready(self, since: datetime | None) -> str:
        """Nothing has gone wrong, and kubelet does not say what it is at: its steps have an order."""
        if since is None or self.now - since <= _SOON:
            return phrases.making_ready(self.node)
        statuses = {s["name"]: s.get("state") or {} for s in self.status.get("initContainerStatuses") or ()}
        if "waiting" in statuses.get(INSTALLER, {}):
            return phrases.mounting_or_pulling(self.node, self._image(INSTALLER))
        if INSTALLER in statuses:
            return phrases.pulling(self.node, self._image(MAIN))
        return phrases.mounting_or_pulling(self.node, self._image(MAIN))

    def _no_image(self, container: str, reason: str, message: str, since: datetime | None) -> Observation:
        image = self._image(container)
        # ImagePullBackOff alone does not say why; the event does.
        if reason == "ImagePullBackOff" and (not message or message.startswith("Back-off pulling image")):
            message = self.warning or message
        if container == INSTALLER or not (reason in phrases.HOPELESS_PULLS or phrases.is_no_such_image(message)):
            limit = self.patience.other
            detail = phrases.registry_away(image, message, since, None if since is None else since + limit)
            if container == INSTALLER:
                detail = phrases.of_platform(detail)
            return self._wait(detail, since, limit, ExitCause.IMAGE_UNREACHABLE)
        limit = timedelta() if reason in phrases.HOPELESS_PULLS else self.patience.image
        detail = phrases.image_not_pulled(image, reason, message)
        return self._wait(detail, since, limit, ExitCause.START_REFUSED)

    def _wait(self, detail: str, since: datetime | None, limit: timedelta, cause: ExitCause) -> Observation:
        if since is None or self.now - since < limit:
            return self._show(Phase.PENDING, detail)
        # At a time that does not move: the same pod always shows the same end.
        return self._show(Phase.FAILED, exit_=ReplicaExit(cause, None, detail, since + limit))

    # Small things

    def _show(self, phase: Phase, detail: str = "", *, exit_: ReplicaExit | None = None) -> Observation:
        facts: dict[str, Any] = {"pod": self.name, "namespace": self.pod["metadata"]["namespace"]}
        if phase is Phase.RUNNING and self.status.get("podIP"):
            facts["address"] = self.status["podIP"]  # for clients of a serving replica
        if self.world is not None:
            # kubelet probes a joining container until it is ready once (the Pod's startup probe).
            is_ready = self.world == 0 and "running" in self.main and self._has_passed_startup()
            facts |= {"world": self.world, "is_ready": is_ready}
        if exit_ is not None:
            facts |= read_facts(_message(self.main.get("terminated")))
        began = None if self.world == 0 else self.began
        return Observation(self.key, phase, began, exit_, detail, facts)

    def _has_passed_startup(self) -> bool:
        statuses = self.status.get("containerStatuses") or ()
        return any(status["name"] == MAIN and status.get("started") is True for status in statuses)

    def _resources(self) -> Json:
        return next((c.get("resources") or {} for c in self.pod["spec"]["containers"] if c["name"] == MAIN), {})

    def _image(self, container: str) -> str:
        statuses = [*(self.status.get("initContainerStatuses") or ()), *(self.status.get("containerStatuses") or ())]
        return str(next((s.get("image") for s in statuses if s["name"] == container), "") or "of this job")

    def _last_change(self) -> datetime:
        times = [_time(c.get("lastTransitionTime")) for c in self.status.get("conditions") or ()]
        times += [_time(self.status.get("startTime")), _time(self.pod["metadata"].get("creationTimestamp"))]
        return max((time for time in times if time is not None), default=self.now)


def _state(pod: Json, kind: str, container: str) -> Json:
    statuses = (pod.get("status") or {}).get(kind) or ()
    return next((status.get("state") or {} for status in statuses if status["name"] == container), {})


def _is_killed(terminated: Json) -> bool:
    """By SIGTERM or SIGKILL, the signals of a deletion."""
    if terminated.get("reason") == "OOMKilled":
        return False
    return terminated.get("exitCode") in (128 + signal.SIGTERM, 128 + signal.SIGKILL)


def _message(terminated: Json | None) -> bytes:
    return str((terminated or {}).get("message") or "").encode()


def _condition(status: Json, kind: str) -> Json:
    return next((c for c in status.get("conditions") or () if c["type"] == kind), {})


def _condition_since(status: Json, kind: str) -> datetime | None:
    condition = _condition(status, kind)
    return _time(condition.get("lastTransitionTime")) if condition.get("status") == "True" else None


def _wanted_node(pod: Json) -> str:
    """The planner's node, for a pod that is on none yet."""
    try:
        required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        return str(required["nodeSelectorTerms"][0]["matchFields"][0]["values"][0])
    except (KeyError, IndexError):
        return "its node"


def _time(text: object) -> datetime | None:
    if not isinstance(text, str):
        return None
    return datetime.fromisoformat(text).astimezone(UTC)
