"""Promises to waiting jobs, and why they could not be met.

A job's readers are shown an expected start with an interval, or that nodes are reserved for it. If a later plan expects
the start after that interval, or reserves no nodes for the job any more, the job gets one event with the cause: the
difference between the planner's last two inputs. The new interval is then the promise, so a queue that is late by an
hour has one event per job and not one per minute.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from core.domain.ids import JobId, NodeId
from core.domain.sharing.wait_phrases import RESERVED_FOR
from scheduler.planning import phrases
from scheduler.planning.forecast.start_times import StartForecast
from scheduler.planning.model import Plan, QueuedGang, RunningGang, Snapshot, WaitReasonCode

# A start is late if it is after the interval by more than this, or by this fraction of the promised wait.
_LATE: Final = timedelta(minutes=1)
_LATE_PART: Final = 0.1
_EVENTS_APART: Final = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Promise:
    """What a waiting job's readers were shown. ``nodes``: reserved for it. ``event_at``: of the last event."""

    shown_at: datetime
    early: datetime | None = None
    likely: datetime | None = None
    late: datetime | None = None
    nodes: tuple[str, ...] = ()
    event_at: datetime | None = None

    def to_json(self) -> dict[str, Any]:
        times = {name: getattr(self, name) for name in ("shown_at", "early", "likely", "late", "event_at")}
        return {
            **{name: None if at is None else at.isoformat() for name, at in times.items()}, "nodes": list(self.nodes)
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Promise:
        times = {
            name: None if data.get(name) is None else datetime.fromisoformat(data[name])
            for name in ("early", "likely", "late", "event_at")
        }
        return cls(datetime.fromisoformat(data["shown_at"]), nodes=tuple(data.get("nodes", ())), **times)


@dataclass(frozen=True, slots=True)
class Delay:
    """A promise that is not met, as an event of the job says it. ``cause``: a code."""

    job_id: JobId
    cause: str
    sentence: str
    promise: Promise


def check_promise(
    promise: Promise | None, start: StartForecast, planned: PlannedState, before: PlannedState | None
) -> tuple[Promise, Delay | None]:
    """The promise that holds from now on, and the delay if the last one is not met.

    Args:
        start: as shown. before: what the last forecasts were made from; ``None`` after a restart.
    """
    now, reserved = planned.snapshot.now, planned.reserved_nodes(start.job_id)
    shown = Promise(now, start.earliest, start.likely, start.latest, reserved)
    if promise is None:
        return shown, None
    shown = replace(shown, event_at=promise.event_at)
    is_late = _is_late(promise, start)
    is_released = bool(promise.nodes) and not reserved and not planned.is_preempting(start.job_id)
    if not is_late and not is_released:
        is_sooner = promise.late is None or (shown.late is not None and shown.late <= promise.late)
        return (shown if is_sooner else replace(promise, nodes=reserved or promise.nodes)), None
    if promise.event_at is not None and now - promise.event_at < _EVENTS_APART:
        return promise, None
    cause, because = Cause(start.job_id, planned, before).find(promise.nodes or start.nodes)
    sentence = f"{_change(promise, start, now, is_late=is_late)}, because {because}."
    return replace(shown, event_at=now), Delay(start.job_id, cause, sentence, promise)


def _is_late(promise: Promise, start: StartForecast) -> bool:
    if promise.late is None:
        return False
    if start.likely is None:
        return True
    slack = max(_LATE, _LATE_PART * (promise.late - promise.shown_at))
    return start.likely > promise.late + slack


def _change(promise: Promise, start: StartForecast, now: datetime, *, is_late: bool) -> str:
    expected = _interval(start.earliest, start.likely, start.latest, now)
    if is_late:
        return f"Expected start moved from {_interval(promise.early, promise.likely, promise.late, now)} to {expected}"
    nodes = phrases.shortlist(promise.nodes)
    then = f" (expected start: {expected})" if start.likely is not None else ""
    return f"What becomes free on {nodes} is not kept for this job any more{then}"


def _interval(early: datetime | None, likely: datetime | None, late: datetime | None, now: datetime) -> str:
    """``14:20 (13:50–16:10) UTC``."""
    if likely is None:
        return "a time that is not known"
    at, first, last = (
        "?" if moment is None else phrases.about(moment, now).removeprefix("about ").removesuffix(" UTC")
        for moment in (likely, early, late)
    )
    return f"{at} ({first}–{last}) UTC"


class PlannedState:
    """A snapshot and its plan."""

    def __init__(self, snapshot: Snapshot, plan: Plan) -> None:
        self.snapshot = snapshot
        self.plan = plan
        self.queued: dict[JobId, QueuedGang] = {job.job_id: job for job in snapshot.queued}
        self.running: dict[JobId, RunningGang] = {view.job_id: view for view in snapshot.running}
        self.nodes = {node.id: node for node in snapshot.nodes}
        self._places = {job_id: place for place, job_id in enumerate(plan.order)}

    def reserved_nodes(self, job_id: JobId) -> tuple[str, ...]:
        reason = self.plan.waits.get(job_id)
        if reason is None or reason.numbers.get(RESERVED_FOR) != job_id:
            return ()
        return tuple(reason.numbers.get("on", ()))

    def is_preempting(self, job_id: JobId) -> bool:
        reason = self.plan.waits.get(job_id)
        return reason is not None and reason.code is WaitReasonCode.PREEMPTING

    def ahead_of(self, job_id: JobId) -> frozenset[JobId]:
        return frozenset(self.plan.order[: self._places.get(job_id, 0)])


class Cause:
    """Why ``job_id`` starts later than promised: what differs between two planned states."""

    def __init__(self, job_id: JobId, planned: PlannedState, before: PlannedState | None) -> None:
        self._job = planned.queued.get(job_id)
        self._job_id = job_id
        self._now = planned
        self._before = before

    def find(self, nodes: Sequence[str]) -> tuple[str, str]:
        """A code and a clause. ``nodes``: those on which the job was, or is, to start."""
        before = self._before
        if before is None:
            return "unknown", "the plan has changed while the scheduler was restarted"
        found = next(self._causes(before, set(nodes)), None)
        return found or ("forecast", "jobs that run or are before it in the queue are expected to take longer now")

    def _causes(self, before: PlannedState, nodes: set[str]) -> Iterator[tuple[str, str]]:
        if before.snapshot.policy != self._now.snapshot.policy:
            yield "policy", "the planner's policy was changed"
        lost = [name for name, node in before.nodes.items() if node.is_schedulable and not self._is_open(name)]
        for name in sorted(lost, key=lambda name: (name not in nodes, name))[:1]:
            node = self._now.nodes.get(name)
            yield "node", f"node {name} {node.why_not if node is not None else 'has left the cluster'}"
        known = {booking.id for booking in before.snapshot.bookings}
        for booking in self._now.snapshot.bookings:
            if booking.id not in known:
                yield "reservation", "nodes were reserved for a project"
        yield from self._overtaken(before)
        yield from self._started(before, nodes)
        yield from self._longer(before, nodes)

    def _is_open(self, name: NodeId) -> bool:
        node = self._now.nodes.get(name)
        return node is not None and node.is_schedulable

    def _overtaken(self, before: PlannedState) -> Iterator[tuple[str, str]]:
        preceding = before.ahead_of(self._job_id)
        fresh = [job_id for job_id in self._now.plan.order if job_id in self._now.ahead_of(self._job_id) - preceding]
        for job_id in fresh[:1]:
            other = self._now.queued[job_id]
            own_priority = 0 if self._job is None else self._job.priority
            more = f" and {len(fresh) - 1} more" if len(fresh) > 1 else ""
            name = f"{self._name(other)}{more}"
            if other.priority > own_priority:
                yield "priority", f"{name} of priority {other.priority} came before it in the queue"
            else:
                yield "queue", f"{name} came before it in the queue"

    def _started(self, before: PlannedState, nodes: set[str]) -> Iterator[tuple[str, str]]:
        preceding = before.ahead_of(self._job_id)
        for job_id, view in sorted(self._now.running.items()):
            on = sorted({node for _, node in view.nodes} & nodes)
            if on and job_id not in before.running and job_id not in preceding and not view.is_part:
                yield "started", f"{self._name(view)} was started on {phrases.shortlist(on)}"

    def _longer(self, before: PlannedState, nodes: set[str]) -> Iterator[tuple[str, str]]:
        """Running jobs whose expected end has moved, those on ``nodes`` first, the most delayed first."""
        found = []
        for job_id, view in self._now.running.items():
            earlier = before.running.get(job_id)
            if earlier is None or earlier.estimate is None:
                continue
            if view.estimate is None:
                moved_s = float("inf")
            else:
                past_s = (self._now.snapshot.now - before.snapshot.now).total_seconds()
                moved_s = view.estimate.likely_s + past_s - earlier.estimate.likely_s
            if moved_s > _LATE.total_seconds():
                found.append((nodes.isdisjoint(node for _, node in view.nodes), -moved_s, job_id))
        for _, _, job_id in sorted(found)[:1]:
            yield "running", f"{self._name(self._now.running[job_id])} runs longer than was expected"

    def _name(self, job: QueuedGang | RunningGang) -> str:
        """Events are read by the job's project: other projects' jobs are not named."""
        is_own = self._job is not None and job.project == self._job.project
        return f"job {job.name}" if is_own else "a job of another project"
