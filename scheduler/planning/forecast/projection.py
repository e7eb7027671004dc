"""Projection of the cluster in virtual time: plans are applied, and jobs end when they are expected to.

A step applies what the control loop would: starts, growth, shrinking, and preemption with its grace period, after
which the victim queues again. Values that go into a snapshot are replaced, never modified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import count
from math import inf
from typing import Final, TypeAlias

from core.domain.ids import JobId, NodeId
from core.domain.sharing.gpus import WHOLE_GPU, accepted_models, after_part
from core.domain.sharing.resources import Amounts, Gang, ResourceRequest
from scheduler.planning.model import (
    Estimate,
    GrowingGang,
    NodeSnapshot,
    Placement,
    Plan,
    QueuedGang,
    RunningGang,
    Snapshot,
)
from scheduler.planning.queue.overtaking import next_overtaken_s
from scheduler.planning.queue.policy_key import BY_LENGTH, next_comparison_s, turns_taken

# Jobs that are overdue end in a moment.
_MOMENT_S: Final = 1.0
# If only the maximum run time is known, one in ten jobs is assumed to end within the first tenth of it.
_EARLY_PART: Final = 0.1
# Ends this close together, in seconds or relative to their distance, are one step.
_TOGETHER_S: Final = 10.0
_TOGETHER: Final = 0.03
# A projection ends after three hundred years: beyond that, dates would overflow the calendar.
_FARTHEST_S: Final = 1e10

_Change: TypeAlias = Callable[[Amounts, ResourceRequest, str | None], Amounts]


class DurationScenario(StrEnum):
    """Which quantile of the run times a projection assumes."""

    EARLY = "early"
    LIKELY = "likely"
    LATE = "late"

    def estimate_s(self, estimate: Estimate) -> float:
        match self:
            case DurationScenario.EARLY:
                return estimate.early_s
            case DurationScenario.LIKELY:
                return estimate.likely_s
            case DurationScenario.LATE:
                return estimate.late_s

    def duration_s(self, estimate: Estimate | None, most_s: float | None) -> float:
        """Assumed remaining seconds; ``inf`` if unknown."""
        if estimate is not None:
            return max(_MOMENT_S, min(self.estimate_s(estimate), inf if most_s is None else most_s))
        if most_s is None:
            return inf
        return max(_MOMENT_S, most_s * _EARLY_PART if self is DurationScenario.EARLY else most_s)


@dataclass(frozen=True, slots=True)
class ProjectedRun:
    """A job that runs in the projection. ``end_s``: its end in seconds from the start of the projection, ``inf`` if
    unknown.

    ``since_s``: when it began in the projection. ``returns``: what queues again if it is preempted.
    """

    view: RunningGang
    end_s: float
    since_s: float = 0.0
    returns: QueuedGang | None = None


class Projection:
    """One possible future of ``snapshot``."""

    def __init__(self, snapshot: Snapshot, scenario: DurationScenario) -> None:
        self.now_s = 0.0
        self.running: dict[JobId, ProjectedRun] = {}
        self.queued = {job.job_id: job for job in snapshot.queued}
        self._from = snapshot
        self._scenario = scenario
        self._nodes: dict[NodeId, NodeSnapshot] = {node.id: node for node in snapshot.nodes}
        self._may_grow = {job.job_id for job in snapshot.growing}
        self._left_s: dict[JobId, float] = {}  # remaining run time of preempted jobs
        for view in snapshot.running:
            self.running[view.job_id] = ProjectedRun(view, self._end_s(view), 0.0, _returning(view))
        self._excess = self._overcommitted()

    @property
    def now(self) -> datetime:
        return self._from.now + timedelta(seconds=self.now_s)

    def at(self, seconds: float) -> datetime | None:
        """The date; ``None`` if infinite or beyond the last year that a date can have."""
        try:
            return self._from.now + timedelta(seconds=seconds)
        except OverflowError:
            return None

    def snapshot(self) -> Snapshot:
        now = self.now
        return replace(
            self._from,
            now=now,
            nodes=tuple(self._nodes.values()),
            queued=tuple(self.queued.values()),
            running=tuple(self._view_now(running) for running in self.running.values()),
            growing=tuple(
                growing
                for job_id in self._may_grow
                if job_id in self.running and (growing := _growing(self.running[job_id].view)) is not None
            ),
            moves_replicas=False,
        )

    def apply(self, plan: Plan) -> None:
        for preempt in plan.preempts:
            self._preempt(preempt.job_id, preempt.for_job)
        for shrink in plan.shrinks:
            self._shrink(shrink.job_id, shrink.role, shrink.indices)
        for start in plan.starts:
            self._start(self.queued.pop(start.job_id), start.placements)
        for grow in plan.grows:
            self._grow(grow.job_id, grow.placements)

    def step(self) -> bool:
        """Advance to the next moment at which a plan may change; ``False`` if there is none that a job waits for."""
        upcoming = sorted(end_s for end_s in self._moments() if end_s < inf)
        if not upcoming:
            return False
        first = upcoming[0]
        together = first + max(_TOGETHER_S, _TOGETHER * first)
        moment = max(end_s for end_s in upcoming if end_s <= together)
        if moment > _FARTHEST_S:
            return False
        self.now_s = moment
        self._open_nodes()
        for job_id in [job_id for job_id, running in self.running.items() if running.end_s <= self.now_s]:
            self._end(job_id)
        return True

    def _moments(self) -> Iterable[float]:
        for running in self.running.values():
            yield running.end_s
        policy, now_s, began = self._from.policy, self.now_s, self._from.now
        for booking in self._from.bookings:
            for edge in (booking.begins_at, booking.ends_at):
                if (at_s := (edge - began).total_seconds()) > now_s:
                    yield at_s
        if not self.queued:
            return
        for opens_at in {node.opens_at for node in self._nodes.values() if node.opens_at is not None}:
            yield max(now_s, (opens_at - began).total_seconds())
        if policy.order in BY_LENGTH:
            yield now_s + next_overtaken_s(self.queued.values(), self.now)
        turns_s = [span for span in (policy.time_slice_s, policy.rotation_s) if span is not None]
        for running in self.running.values():
            view = running.view
            if view.started_at is None or not view.is_preemptible:
                continue
            since_s = (view.started_at - began).total_seconds()
            takes_turns = bool(turns_s) and view.is_resumable
            spans = turns_s if takes_turns else [policy.min_run_time_s]
            moments = [since_s + max(span, policy.min_run_time_s) for span in spans]
            if takes_turns and policy.order in BY_LENGTH and policy.time_slice_s is not None:
                moments.append(since_s + next_comparison_s(now_s - since_s, policy))
            if takes_turns and policy.rotation_s is not None:
                turns = turns_taken(view, policy, self.now)
                moments.append(since_s + (turns + 1) * policy.rotation_s - view.earlier_s)
            yield from (at_s for at_s in moments if now_s < at_s < running.end_s)

    def _open_nodes(self) -> None:
        """Nodes whose quarantine is over take work again."""
        now = self.now
        for name, node in self._nodes.items():
            if node.opens_at is not None and node.opens_at <= now:
                self._nodes[name] = replace(node, is_schedulable=True, why_not="", is_quarantined=False, opens_at=None)

    def _end_s(self, view: RunningGang) -> float:
        stated = None if view.expected_end is None else (view.expected_end - self._from.now).total_seconds()
        if view.is_stopping:
            return self.now_s + max(_MOMENT_S, self._from.policy.grace_s if stated is None else stated)
        return self.now_s + self._scenario.duration_s(view.estimate, stated)

    def _view_now(self, running: ProjectedRun) -> RunningGang:
        """The gang as the planner would see it by now: attained service matters only under time slicing."""
        if not self._from.policy.takes_turns:
            return running.view
        ran_s = self.now_s - running.since_s
        gpus = max(1.0, running.view.gang.gpu_milli / WHOLE_GPU)
        return replace(running.view, attained_gpu_s=running.view.attained_gpu_s + ran_s * gpus)

    def _start(self, job: QueuedGang, placements: Sequence[Placement]) -> None:
        duration_s = self._left_s.pop(job.job_id, None) or self._scenario.duration_s(job.estimate, job.max_run_time_s)
        stated = None if job.max_run_time_s is None else self.at(self.now_s + job.max_hold_s)
        view = job.running(placements, expected_end=stated, started_at=self.now)
        self.running[job.job_id] = ProjectedRun(view, self.now_s + duration_s, self.now_s, job)
        if job.gang.elastic is not None and self._from.growing:
            self._may_grow.add(job.job_id)
        for placement in placements:
            self._move(job.gang, placement.role, placement.node, placement.gpu_model, take)

    def _end(self, job_id: JobId) -> None:
        running = self.running.pop(job_id)
        view = running.view
        for position, (role, node) in enumerate(view.nodes):
            self._move(view.gang, role, node, self._model_of(view, position), give_back)
        # A preempted job waits again.
        if view.is_stopping and view.stopping_for is not None and running.returns is not None:
            ran_s = self.now_s - running.since_s
            self.queued[job_id] = replace(
                running.returns,
                waits_since=self.now,
                attained_gpu_s=view.attained_gpu_s + ran_s * max(1.0, view.gang.gpu_milli / WHOLE_GPU),
                earlier_s=view.earlier_s + (self.now - (view.started_at or self.now)).total_seconds(),
            )

    def _preempt(self, job_id: JobId, for_job: JobId | None) -> None:
        running = self.running.get(job_id)
        if running is None or running.view.is_stopping:
            return
        policy = self._from.policy
        stops_s = self.now_s + max(_MOMENT_S, policy.grace_s)
        if running.end_s < inf:
            self._left_s[job_id] = max(_MOMENT_S, running.end_s - self.now_s) + policy.restart_cost_s
        view = replace(running.view, is_stopping=True, expected_end=self.at(stops_s), stopping_for=for_job or job_id)
        self.running[job_id] = replace(running, view=view, end_s=min(stops_s, running.end_s))

    def _shrink(self, job_id: JobId, role: str, indices: Sequence[int]) -> None:
        running = self.running.get(job_id)
        if running is None:
            return
        view = running.view
        leaving = {(role, index) for index in indices}
        staying = [position for position, member in enumerate(_members(view)) if member not in leaving]
        for position in set(range(len(view.nodes))) - set(staying):
            self._move(
                view.gang, view.nodes[position][0], view.nodes[position][1], self._model_of(view, position), give_back
            )
        self._replace(running, view, staying, ())

    def _grow(self, job_id: JobId, placements: Sequence[Placement]) -> None:
        running = self.running.get(job_id)
        if running is None:
            return
        for placement in placements:
            self._move(running.view.gang, placement.role, placement.node, placement.gpu_model, take)
        self._replace(running, running.view, range(len(running.view.nodes)), placements)

    def _replace(
        self, running: ProjectedRun, view: RunningGang, staying: Iterable[int], added: Sequence[Placement]
    ) -> None:
        staying = list(staying)
        members = _members(view)
        changed = replace(
            view,
            nodes=(
                *(view.nodes[position] for position in staying),
                *((placement.role, placement.node) for placement in added),
            ),
            gpu_models=(
                *(self._model_of(view, position) for position in staying),
                *(placement.gpu_model for placement in added),
            ),
            indices=(*(members[position][1] for position in staying), *(placement.index for placement in added)),
        )
        self.running[view.job_id] = replace(running, view=changed)

    def _model_of(self, view: RunningGang, position: int) -> str | None:
        role, node = view.nodes[position]
        request = _request(view.gang, role)
        if request is None or not request.uses_gpu:
            return None
        recorded = view.gpu_models[position] if position < len(view.gpu_models) else None
        models = sorted(self._nodes[node].allocatable.gpus) if node in self._nodes else []
        return recorded or next(
            iter(accepted_models(request.gpu_models, models) if request.gpu_models else models), None
        )

    def _move(self, gang: Gang, role: str, node_id: NodeId, model: str | None, change: _Change) -> None:
        node, request = self._nodes.get(node_id), _request(gang, role)
        if node is not None and request is not None:
            free = change(node.free, request, model)
            if change is give_back and node_id in self._excess:
                free, self._excess[node_id] = _settled(free, self._excess[node_id])
            self._nodes[node_id] = replace(node, free=free)

    def _overcommitted(self) -> dict[NodeId, Amounts]:
        """What running jobs hold beyond the allocatable amounts of their nodes, for example since a node has shrunk.

        The free amounts of such a node are 0, and ends free nothing there until this excess is gone.
        """
        used: dict[NodeId, Amounts] = {}
        for running in self.running.values():
            view = running.view
            for position, (role, node_id) in enumerate(view.nodes):
                request, model = _request(view.gang, role), self._model_of(view, position)
                if request is not None and node_id in self._nodes:
                    total = used.get(node_id, Amounts())
                    gpus = {**total.gpus, model: total.gpus.get(model, 0) + request.gpu_count} if model else total.gpus
                    used[node_id] = Amounts(
                        total.cpu_milli + request.cpu_milli, total.memory_bytes + request.memory_bytes, gpus
                    )
        found: dict[NodeId, Amounts] = {}
        for node_id, amounts in used.items():
            whole = self._nodes[node_id].allocatable
            excess = Amounts(
                max(0, amounts.cpu_milli - whole.cpu_milli),
                max(0, amounts.memory_bytes - whole.memory_bytes),
                {
                    model: count - whole.gpus.get(model, 0)
                    for model, count in amounts.gpus.items()
                    if count > whole.gpus.get(model, 0)
                },
            )
            if excess.cpu_milli or excess.memory_bytes or excess.gpus:
                found[node_id] = excess
        return found


def take(free: Amounts, request: ResourceRequest, model: str | None) -> Amounts:
    """``free`` without what one replica takes."""
    gpus, shares = free.gpus, free.shares
    if model is not None and request.gpu_milli:
        free_parts, opened = after_part(tuple(shares.get(model, ())), request.gpu_milli)
        gpus, shares = {**gpus, model: gpus.get(model, 0) - opened}, {**shares, model: free_parts}
    elif model is not None:
        gpus = {**gpus, model: gpus.get(model, 0) - request.gpu_count}
    return Amounts(free.cpu_milli - request.cpu_milli, free.memory_bytes - request.memory_bytes, gpus, shares)


def give_back(free: Amounts, request: ResourceRequest, model: str | None) -> Amounts:
    """``free`` with what one replica had. Which device a part was on is not told: the fullest that it may have been
    on is taken to be emptied by it, else the one with the most left.
    """
    gpus, shares = free.gpus, free.shares
    if model is not None and request.gpu_milli:
        free_parts = sorted(shares.get(model, ()))
        fitting = [position for position, amount in enumerate(free_parts) if amount + request.gpu_milli <= WHOLE_GPU]
        if fitting:
            amount = free_parts.pop(fitting[-1]) + request.gpu_milli
            if amount < WHOLE_GPU:
                free_parts.append(amount)
            else:
                gpus = {**gpus, model: gpus.get(model, 0) + 1}
            shares = {**shares, model: tuple(sorted(free_parts))}
    elif model is not None:
        gpus = {**gpus, model: gpus.get(model, 0) + request.gpu_count}
    return Amounts(free.cpu_milli + request.cpu_milli, free.memory_bytes + request.memory_bytes, gpus, shares)


def _settled(free: Amounts, excess: Amounts) -> tuple[Amounts, Amounts]:
    """``free`` without ``excess``, as far as it suffices, and the rest of ``excess``."""
    cpu, memory = min(free.cpu_milli, excess.cpu_milli), min(free.memory_bytes, excess.memory_bytes)
    gpus = {model: min(free.gpus.get(model, 0), over) for model, over in excess.gpus.items()}
    left = {model: count - gpus.get(model, 0) for model, count in free.gpus.items()}
    return (
        Amounts(free.cpu_milli - cpu, free.memory_bytes - memory, left, free.shares),
        Amounts(
            excess.cpu_milli - cpu,
            excess.memory_bytes - memory,
            {model: over - gpus[model] for model, over in excess.gpus.items()},
        ),
    )


def _request(gang: Gang, role: str) -> ResourceRequest | None:
    return next((member.request for member in gang.roles if member.role == role), None)


def _members(view: RunningGang) -> list[tuple[str, int]]:
    """(role, index) of each replica."""
    if len(view.indices) == len(view.nodes):
        return [(role, index) for (role, _), index in zip(view.nodes, view.indices, strict=True)]
    counters: Mapping[str, count[int]] = {role: count() for role, _ in view.nodes}
    return [(role, next(counters[role])) for role, _ in view.nodes]


def _growing(view: RunningGang) -> GrowingGang | None:
    role = view.gang.elastic
    if role is None or view.is_stopping or view.queued_at is None:
        return None
    elastic_members = [(position, index) for position, (name, index) in enumerate(_members(view)) if name == role.role]
    lacking = tuple(sorted(set(range(role.most or 0)) - {index for _, index in elastic_members}))
    models = view.gpu_models or (None,) * len(view.nodes)
    placed = tuple((view.nodes[position][1], models[position]) for position, _ in elastic_members)
    if not lacking:
        return None
    return GrowingGang(view.job_id, view.priority, view.queued_at, view.gang, lacking, placed, view.speed)


def _returning(view: RunningGang) -> QueuedGang | None:
    if view.queued_at is None:
        return None
    return QueuedGang(
        view.job_id, view.name, view.project, view.user, view.priority, view.queued_at, view.gang, view.gang.shape(),
        None, view.attained_gpu_s, view.estimate, earlier_s=view.earlier_s, is_resumable=view.is_resumable,
    )  # fmt: skip
