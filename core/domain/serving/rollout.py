"""Rolling updates of a deployed model as a pure function of its state, and the states that it can have.

Modelled on Kubernetes' Deployment: as many replicas of the newest revision as desired, never more than ``max_surge``
above that and never more than ``max_unavailable`` ready ones below it. The difference is an automatic rollback: after
``START_LIMIT`` failed replicas of a revision that never became ready, the stable revision becomes the target again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from core.domain.errors import IllegalTransition

# Failed replicas of a new revision until it is rolled back.
START_LIMIT: Final = 3
# Consecutive failed probes until a ready replica gets no more requests.
MISSES: Final = 3
# After being ready this long, a replica's failure counts as the first one again.
HEALTHY_AFTER: Final = timedelta(seconds=60)
_BACKOFF: Final = timedelta(seconds=1)
# Starting and ending replicas are probed again after a tenth of their elapsed time, which bounds the delay to a tenth.
# Beyond a second the control loop's own interval is shorter.
_AGAIN_PART: Final = 10
_AGAIN_LEAST: Final = timedelta(seconds=0.15)
_AGAIN_MOST: Final = timedelta(seconds=1)
_BACKOFF_MOST: Final = timedelta(minutes=5)


class DeploymentState(StrEnum):
    """The desired state of a deployed model; its replicas show the actual state."""

    ACTIVE = "active"
    FAILED = "failed"  # its first revision never became ready; nothing of it runs until it is redeployed
    UNDEPLOYING = "undeploying"  # its replicas drain and end
    ENDED = "ended"


class ServingState(StrEnum):
    """The state of one serving replica, which is one job."""

    STARTING = "starting"  # its job is queued or runs, and its health route does not answer 200
    READY = "ready"  # it gets requests
    DRAINING = "draining"  # it gets no new requests, and finishes the open ones
    ENDED = "ended"

    @property
    def is_up(self) -> bool:
        """Whether it counts towards the desired replicas."""
        return self in (ServingState.STARTING, ServingState.READY)


class DeploymentEvent(StrEnum):
    UPDATE = "update"  # another revision is the target
    FAIL = "fail"
    UNDEPLOY = "undeploy"
    END = "end"


class ServingEvent(StrEnum):
    READY = "ready"
    UNREADY = "unready"
    DRAIN = "drain"
    END = "end"


DEPLOYMENT_MOVES: Final = {
    (DeploymentState.ACTIVE, DeploymentEvent.UPDATE): DeploymentState.ACTIVE,
    (DeploymentState.FAILED, DeploymentEvent.UPDATE): DeploymentState.ACTIVE,
    (DeploymentState.ACTIVE, DeploymentEvent.FAIL): DeploymentState.FAILED,
    (DeploymentState.ACTIVE, DeploymentEvent.UNDEPLOY): DeploymentState.UNDEPLOYING,
    (DeploymentState.FAILED, DeploymentEvent.UNDEPLOY): DeploymentState.UNDEPLOYING,
    (DeploymentState.UNDEPLOYING, DeploymentEvent.END): DeploymentState.ENDED,
}
SERVING_MOVES: Final = {
    (ServingState.STARTING, ServingEvent.READY): ServingState.READY,
    (ServingState.READY, ServingEvent.UNREADY): ServingState.STARTING,
    (ServingState.STARTING, ServingEvent.DRAIN): ServingState.DRAINING,
    (ServingState.READY, ServingEvent.DRAIN): ServingState.DRAINING,
    (ServingState.STARTING, ServingEvent.END): ServingState.ENDED,
    (ServingState.READY, ServingEvent.END): ServingState.ENDED,
    (ServingState.DRAINING, ServingEvent.END): ServingState.ENDED,
}


def advance_deployment(state: DeploymentState, event: DeploymentEvent) -> DeploymentState:
    """The next state. Raises ``IllegalTransition``: the table has no such move."""
    after = DEPLOYMENT_MOVES.get((state, event))
    if after is None:
        raise IllegalTransition(f"A deployed model that is {state.value} has no {event.value}.")
    return after


def advance_serving(state: ServingState, event: ServingEvent) -> ServingState:
    """The next state. Raises ``IllegalTransition``: the table has no such move."""
    after = SERVING_MOVES.get((state, event))
    if after is None:
        raise IllegalTransition(f"A serving replica that is {state.value} has no {event.value}.")
    return after


@dataclass(frozen=True, slots=True)
class ServingReplicaStatus:
    """One serving replica as its row, its job and its health route show it.

    ``running_since``: since when its job has been running without a break; ``None``: it does not run. ``is_healthy``:
    result of the health probe; ``None``: not probed. ``message``: the probe's message, or why the job waits or ended.
    """

    id: str
    revision: int
    state: ServingState
    created_at: datetime
    running_since: datetime | None = None
    is_over: bool = False
    is_cancelled: bool = False
    is_healthy: bool | None = None
    failed_probes: int = 0
    ready_at: datetime | None = None
    draining_at: datetime | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Revision:
    """``stable_at``: when all its desired replicas were ready for the first time. ``failures``: consecutive failed
    replicas.
    ``failure_reason``: why it was rolled back.
    """

    number: int
    ready_timeout: timedelta
    drain: timedelta
    max_surge: int
    max_unavailable: int
    stable_at: datetime | None = None
    failures: int = 0
    failed_at: datetime | None = None
    failure_reason: str = ""


@dataclass(frozen=True, slots=True)
class DeployedModel:
    """A deployed model. ``target_revision``: the revision to serve; ``stable_revision``: the last fully ready one."""

    state: DeploymentState
    replicas: int
    target_revision: int
    stable_revision: int | None
    revisions: Sequence[Revision]
    servers: Sequence[ServingReplicaStatus]

    def revision(self, number: int) -> Revision:
        return next(known for known in self.revisions if known.number == number)


@dataclass(frozen=True, slots=True)
class RolloutEvent:
    """One event of its history. ``kind``: noun.verb."""

    kind: str
    sentence: str


@dataclass(slots=True)
class RolloutPlan:
    """Everything to write, at once. ``deployed``: the new state. ``recheck_at``: when time alone changes something."""

    deployed: DeployedModel
    servers: dict[str, ServingReplicaStatus] = field(default_factory=dict)  # changed servers
    cancel: dict[str, str] = field(default_factory=dict)  # job of the server -> reason
    start: int = 0  # replicas of the target revision
    events: list[RolloutEvent] = field(default_factory=list)
    recheck_at: datetime | None = None

    def __bool__(self) -> bool:
        return bool(self.servers or self.cancel or self.start or self.events)

    def wake_at(self, at: datetime) -> None:
        """Wake at ``at``, unless an earlier wake-up is due."""
        if self.recheck_at is None or at < self.recheck_at:
            self.recheck_at = at


def backoff(failures: int) -> timedelta:
    """Delay from the last failure to the next replica's start."""
    return min(_BACKOFF_MOST, _BACKOFF * float(2 ** min(max(0, failures - 1), 16)))


def plan(deployed: DeployedModel, now: datetime) -> RolloutPlan:
    """The plan for now. Every server of ``deployed`` is one that has not ended."""
    steps = RolloutPlan(deployed)
    servers = [_assess(steps, server, now) for server in deployed.servers]
    _roll_back(steps)
    if steps.deployed.state is DeploymentState.ACTIVE:
        servers = _roll(steps, servers, now)
    else:
        servers = [_drain(steps, server, now, "It is no longer needed.") for server in servers]
    for server in servers:
        _end_drained(steps, server, now)
    if steps.deployed.state is DeploymentState.UNDEPLOYING and all(s.state is ServingState.ENDED for s in servers):
        _advance(steps, DeploymentEvent.END)
        steps.events.append(RolloutEvent("deployment.ended", "Nothing of it runs any more."))
    return steps


# Assessment of each replica


def _assess(steps: RolloutPlan, server: ServingReplicaStatus, now: datetime) -> ServingReplicaStatus:
    if server.is_over:
        was_up = server.state.is_up and not server.is_cancelled
        if was_up:
            _count_failure(steps, server, now, server.message)
        return _move(steps, server, ServingEvent.END)
    if not server.state.is_up:
        if server.is_cancelled and server.draining_at is not None:
            drained = server.draining_at + steps.deployed.revision(server.revision).drain
            _schedule_probe(steps, drained if drained <= now else server.draining_at, now)
        return server
    if server.is_cancelled:  # cancelled by a user
        return _move(steps, server, ServingEvent.DRAIN, draining_at=now)
    return _after_probe(steps, server, now)


def _after_probe(steps: RolloutPlan, server: ServingReplicaStatus, now: datetime) -> ServingReplicaStatus:
    """For a replica that is to serve."""
    if server.running_since is None:
        # Its job is queued (again): preempted, or its node was lost.
        if server.state is ServingState.STARTING:
            _schedule_probe(steps, server.created_at, now)
            return server
        return _move(steps, server, ServingEvent.UNREADY, ready_at=None, failed_probes=0)
    if server.is_healthy:
        if server.state is ServingState.READY:
            return _change(steps, server, failed_probes=0) if server.failed_probes else server
        return _move(steps, server, ServingEvent.READY, ready_at=now, failed_probes=0)
    if server.state is ServingState.STARTING:
        _schedule_probe(steps, server.running_since, now)
    if server.is_healthy is None:
        return server
    if server.state is ServingState.READY:
        if server.failed_probes + 1 < MISSES:
            return _change(steps, server, failed_probes=server.failed_probes + 1)
        steps.events.append(RolloutEvent("serving_replica.unready", f"It gets no more requests: {server.message}"))
        # Its readiness timeout restarts now.
        return _move(steps, server, ServingEvent.UNREADY, ready_at=None, failed_probes=0, running_since=now)
    limit = steps.deployed.revision(server.revision).ready_timeout
    if now - server.running_since < limit:
        return server
    sentence = f"It was not ready within {limit.total_seconds():g} s: {server.message}"
    _count_failure(steps, server, now, sentence)
    return _end(steps, server, now, sentence)


def _schedule_probe(steps: RolloutPlan, since: datetime, now: datetime) -> None:
    """Schedule the next probe of a replica that has been starting or ending since ``since``."""
    wait = max(_AGAIN_LEAST, (now - since) / _AGAIN_PART)
    if wait < _AGAIN_MOST:
        steps.wake_at(now + wait)


def _count_failure(steps: RolloutPlan, server: ServingReplicaStatus, now: datetime, sentence: str) -> None:
    revision = steps.deployed.revision(server.revision)
    was_well = server.ready_at is not None and now - server.ready_at >= HEALTHY_AFTER
    counted = replace(revision, failures=1 if was_well else revision.failures + 1, failed_at=now)
    _set_revision(steps, counted)
    steps.events.append(RolloutEvent("serving_replica.failed", sentence))


def _set_revision(steps: RolloutPlan, revision: Revision) -> None:
    others = [known for known in steps.deployed.revisions if known.number != revision.number]
    steps.deployed = replace(steps.deployed, revisions=[*others, revision])


def _roll_back(steps: RolloutPlan) -> None:
    """Make the stable revision the target again if the target revision fails to become ready."""
    deployed = steps.deployed
    if deployed.state is not DeploymentState.ACTIVE:
        return
    wanted = deployed.revision(deployed.target_revision)
    # The stable revision may be unable to serve by now, too: its files or its image are gone.
    if deployed.target_revision == deployed.stable_revision or wanted.failures < START_LIMIT:
        return
    last = next((event.sentence for event in reversed(steps.events) if event.kind == "serving_replica.failed"), "")
    why = f"{wanted.failures} of its replicas failed before it was ready. {last}".strip()
    if deployed.stable_revision is None:
        verdict = f"Revision {wanted.number} never got ready: {why}"
        _set_revision(steps, replace(wanted, failure_reason=verdict))
        _advance(steps, DeploymentEvent.FAIL)
        steps.events.append(RolloutEvent("deployment.failed", verdict))
        return
    never = "never got ready" if wanted.stable_at is None else "did not get ready again"
    verdict = f"Revision {wanted.number} {never}, so revision {deployed.stable_revision} serves on: {why}"
    _set_revision(steps, replace(wanted, failure_reason=verdict))
    # Old failures no longer count: it served well.
    _set_revision(steps, replace(deployed.revision(deployed.stable_revision), failures=0, failed_at=None))
    steps.deployed = replace(steps.deployed, target_revision=deployed.stable_revision)
    steps.events.append(RolloutEvent("deployment.rolled_back", verdict))


# From the old revision to the target


def _roll(steps: RolloutPlan, servers: Sequence[ServingReplicaStatus], now: datetime) -> list[ServingReplicaStatus]:
    deployed = steps.deployed
    wanted = deployed.revision(deployed.target_revision)
    count = deployed.replicas
    new = [server for server in servers if server.state.is_up and server.revision == wanted.number]
    old = [server for server in servers if server.state.is_up and server.revision != wanted.number]
    ending = [server for server in servers if not server.state.is_up]
    # Old replicas that are not ready are of no use.
    old = _ending(steps, old, [server for server in old if server.state is ServingState.STARTING], now, ending)
    if len(new) > count:
        extra = sorted(new, key=lambda server: (server.state is ServingState.READY, _backwards(server)))[
            : len(new) - count
        ]
        new = _ending(steps, new, extra, now, ending)
    ready_new = [server for server in new if server.state is ServingState.READY]
    spare = len(ready_new) + len(old) - (count - wanted.max_unavailable)
    if len(ready_new) >= count:
        spare = len(old)
    old = _ending(steps, old, old[: max(0, spare)], now, ending)
    room = count + (wanted.max_surge if old else 0) - len(new) - len(old)
    missing = min(count - len(new), room)
    if missing > 0:
        due = wanted.failed_at + backoff(wanted.failures) if wanted.failed_at is not None and wanted.failures else now
        if due <= now:
            steps.start = missing
        else:
            steps.wake_at(due)
    if not old and not missing and len(ready_new) == count and count and deployed.stable_revision != wanted.number:
        _set_revision(steps, replace(wanted, stable_at=wanted.stable_at or now, failures=0, failed_at=None))
        steps.deployed = replace(steps.deployed, stable_revision=wanted.number)
        steps.events.append(
            RolloutEvent("deployment.rolled_out", f"Revision {wanted.number} serves with {count} replicas.")
        )
    return [*new, *old, *ending]


def _backwards(server: ServingReplicaStatus) -> float:
    """For sorting: the newest first."""
    return -server.created_at.timestamp()


def _ending(
    steps: RolloutPlan,
    servers: Sequence[ServingReplicaStatus],
    replaced: Sequence[ServingReplicaStatus],
    now: datetime,
    ending: list[ServingReplicaStatus],
) -> list[ServingReplicaStatus]:
    """``servers`` without ``replaced``; those are drained and added to ``ending``."""
    ids = {server.id for server in replaced}
    ending += [
        _drain(steps, server, now, "It was replaced by another replica.") for server in servers if server.id in ids
    ]
    return [server for server in servers if server.id not in ids]


def _drain(steps: RolloutPlan, server: ServingReplicaStatus, now: datetime, why: str) -> ServingReplicaStatus:
    """Drain it: no more requests; a replica that had none is ended at once."""
    match server.state:
        case ServingState.READY:
            return _move(steps, server, ServingEvent.DRAIN, draining_at=now, message=why)
        case ServingState.STARTING:
            return _end(steps, server, now, why)
        case ServingState.DRAINING | ServingState.ENDED:
            return server


def _end(steps: RolloutPlan, server: ServingReplicaStatus, now: datetime, why: str) -> ServingReplicaStatus:
    """End its job. It no longer counts, and has ended when the job has."""
    steps.cancel[server.id] = why
    return _move(steps, server, ServingEvent.DRAIN, draining_at=now, is_cancelled=True, message=why)


def _end_drained(steps: RolloutPlan, server: ServingReplicaStatus, now: datetime) -> None:
    if server.state is not ServingState.DRAINING or server.is_cancelled or server.draining_at is None:
        return
    due = server.draining_at + steps.deployed.revision(server.revision).drain
    if due <= now:
        steps.cancel[server.id] = server.message or "It was replaced by another replica."
    else:
        steps.wake_at(due)


def _advance(steps: RolloutPlan, event: DeploymentEvent) -> None:
    steps.deployed = replace(steps.deployed, state=advance_deployment(steps.deployed.state, event))


def _move(
    steps: RolloutPlan, server: ServingReplicaStatus, event: ServingEvent, **values: object
) -> ServingReplicaStatus:
    return _change(steps, server, state=advance_serving(server.state, event), **values)


def _change(steps: RolloutPlan, server: ServingReplicaStatus, **values: object) -> ServingReplicaStatus:
    changed = replace(server, **values)  # type: ignore[arg-type]
    steps.servers[server.id] = changed
    return changed
