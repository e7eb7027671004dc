"""Plan to a fixpoint: planning again after the plan is applied yields nothing new.

When victims are stopped for a job, their room is held for it from then on. That may move the reservation of another
job, or invalidate a claim. So the plan is applied to the snapshot, as the control loop will do it, and the planner
runs again until it preempts no further job; the results of all rounds form one plan.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Protocol

from core.domain.ids import JobId, NodeId
from core.domain.sharing.resources import Amounts, GangRole, ResourceRequest
from scheduler.planning.model import (
    Grow,
    NodeSnapshot,
    Placement,
    Plan,
    Preempt,
    QueuedGang,
    Reason,
    RunningGang,
    Shrink,
    Snapshot,
    Start,
    WaitReasonCode,
)
from scheduler.planning.placement.capacity import FreeAmounts
from scheduler.planning.placement.partial import subtract

# Every round but the last preempts a job; what is still open after this many rounds is left to the next tick's plan.
_MOST_ROUNDS = 4
# Every failed try finds a hopeless preemptor. When the tries are used up, the plan preempts for no job.
_MOST_TRIES = 4
_Claim = tuple[ResourceRequest, Placement]


class Planning(Protocol):
    """One pass of the planner over the queue of a snapshot."""

    def build_plan(self, hopeless: frozenset[JobId] = frozenset(), preemptors: int = 0) -> Plan:
        """The actions of this pass; of the wait reasons only those of jobs for which victims are stopped.

        Args:
            hopeless: jobs for which nothing is preempted. preemptors: how many jobs caused preemptions in earlier
            rounds of the same plan.
        """
        ...

    def reasons(self) -> Mapping[JobId, Reason]:
        """Why the other jobs wait."""
        ...


def plan_to_fixpoint(snapshot: Snapshot, start_pass: Callable[[Snapshot], Planning]) -> Plan:
    """Plan, apply, and plan again until the plan preempts nothing.

    No victim is stopped for a job that would not get the room afterwards because another job has the better claim to
    it.
    """
    first = start_pass(snapshot)  # does not depend on ``hopeless``
    hopeless: frozenset[JobId] = frozenset()
    for _ in range(_MOST_TRIES):
        total, lost = _plan_rounds(snapshot, first, start_pass, hopeless)
        if not lost:
            return total
        hopeless |= lost
    return _plan_rounds(snapshot, first, start_pass, hopeless | {job.job_id for job in snapshot.queued})[0]


def _plan_rounds(
    snapshot: Snapshot, first: Planning, start_pass: Callable[[Snapshot], Planning], hopeless: frozenset[JobId]
) -> tuple[Plan, frozenset[JobId]]:
    """The plan, and the jobs for which victims were stopped in vain."""
    last = first
    total = newest = first.build_plan(hopeless)
    for _ in range(_MOST_ROUNDS):
        if not newest.preempts and not newest.shrinks:
            break
        for_jobs = {preempt.for_job for preempt in total.preempts} | {shrink.for_job for shrink in total.shrinks}
        snapshot = apply_plan(snapshot, newest)
        last = start_pass(snapshot)
        newest = last.build_plan(hopeless, len(for_jobs))
        total = _combined(total, newest)
        # A preemptor that starts already only needed the room that its nomination held.
        lost = {job_id for job_id in for_jobs if job_id is not None and not _is_nominated(newest, job_id)}
        if lost:
            return total, frozenset(lost)
    return replace(total, waits={**last.reasons(), **total.waits}), frozenset()


def _is_nominated(plan: Plan, job_id: JobId) -> bool:
    reason = plan.waits.get(job_id)
    return reason is not None and reason.code is WaitReasonCode.PREEMPTING


def _combined(first: Plan, second: Plan) -> Plan:
    grown: dict[JobId, tuple[Placement, ...]] = {grow.job_id: grow.placements for grow in first.grows}
    for grow in second.grows:
        grown[grow.job_id] = (*grown.get(grow.job_id, ()), *grow.placements)
    starts = len(first.starts)
    return Plan(
        starts=(*first.starts, *second.starts),
        # Which victims stop, and which only give replicas back, is known best by the round that decided it.
        waits={
            **second.waits,
            **{job_id: first.waits[job_id] for job_id in second.waits if _is_nominated(first, job_id)},
        },
        grows=tuple(Grow(job_id, placements) for job_id, placements in sorted(grown.items())),
        preempts=(*first.preempts, *second.preempts),
        shrinks=(*first.shrinks, *second.shrinks),
        moves=second.moves,
        order=(*first.order[:starts], *second.order),
    )


def apply_plan(snapshot: Snapshot, plan: Plan) -> Snapshot:
    """The snapshot just after ``plan`` was applied: stopping jobs and leaving replicas still hold their resources."""
    waiting = {job.job_id: job for job in snapshot.queued}
    # Replicas that leave a job are listed as a separate gang that stops.
    running = {gang.job_id: gang for gang in sorted(snapshot.running, key=lambda gang: not gang.is_stopping)}
    stopping_parts = [gang for gang in snapshot.running if running[gang.job_id] is not gang]
    claims: list[_Claim] = []
    for start in plan.starts:
        job = waiting.pop(start.job_id)
        running[job.job_id] = _started(job, start, snapshot)
        claims += _claims(job.gang.roles, start.placements)
    for preempt in plan.preempts:
        running[preempt.job_id] = _stopping(running[preempt.job_id], preempt, snapshot)
    for shrink in plan.shrinks:
        staying, leaving = _divided(running[shrink.job_id], shrink, snapshot)
        running[shrink.job_id] = staying
        stopping_parts.append(leaving)
    for grow in plan.grows:
        gang = running[grow.job_id]
        running[grow.job_id] = _grown(gang, grow)
        claims += _claims(gang.gang.roles, grow.placements)
    for_jobs = {preempt.for_job for preempt in plan.preempts} | {shrink.for_job for shrink in plan.shrinks}
    for job in list(waiting.values()):
        if job.job_id in for_jobs and job.room_since is None:
            waiting[job.job_id] = replace(job, room_since=snapshot.now)
    changed = {preempt.job_id for preempt in plan.preempts} | {shrink.job_id for shrink in plan.shrinks}
    changed |= {grow.job_id for grow in plan.grows}
    return replace(
        snapshot,
        nodes=_without_claims(snapshot.nodes, claims),
        queued=tuple(waiting.values()),
        running=(*running.values(), *stopping_parts),
        growing=tuple(gang for gang in snapshot.growing if gang.job_id not in changed),
    )


def _started(job: QueuedGang, start: Start, snapshot: Snapshot) -> RunningGang:
    end = None if job.max_run_time_s is None else snapshot.now + timedelta(seconds=job.max_hold_s)
    return job.running(start.placements, expected_end=end)


def _stopping(gang: RunningGang, preempt: Preempt, snapshot: Snapshot) -> RunningGang:
    end = snapshot.now + timedelta(seconds=snapshot.policy.grace_s)
    return replace(gang, is_stopping=True, stopping_for=preempt.for_job, expected_end=end)


def _divided(gang: RunningGang, shrink: Shrink, snapshot: Snapshot) -> tuple[RunningGang, RunningGang]:
    """The gang without the replicas that leave, and the leaving replicas as a gang that stops."""
    counts: defaultdict[str, int] = defaultdict(int)
    numbers: list[int] = []
    for position, (role, _) in enumerate(gang.nodes):
        numbers.append(gang.indices[position] if len(gang.indices) == len(gang.nodes) else counts[role])
        counts[role] += 1
    leaving_positions = {
        position
        for position, (role, _) in enumerate(gang.nodes)
        if role == shrink.role and numbers[position] in shrink.indices
    }
    models = gang.gpu_models if len(gang.gpu_models) == len(gang.nodes) else (None,) * len(gang.nodes)

    def part(positions: Iterable[int]) -> RunningGang:
        positions = list(positions)
        return replace(
            gang,
            nodes=tuple(gang.nodes[position] for position in positions),
            gpu_models=tuple(models[position] for position in positions),
            indices=tuple(numbers[position] for position in positions),
        )

    leaving = part(sorted(leaving_positions))
    return (
        part(position for position in range(len(gang.nodes)) if position not in leaving_positions),
        replace(leaving, is_stopping=True, is_part=True, stopping_for=shrink.for_job, expected_end=snapshot.now),
    )


def _grown(gang: RunningGang, grow: Grow) -> RunningGang:
    placements = grow.placements
    has_indices = len(gang.indices) == len(gang.nodes)
    return replace(
        gang,
        nodes=(*gang.nodes, *((placement.role, placement.node) for placement in placements)),
        gpu_models=(*gang.gpu_models, *(placement.gpu_model for placement in placements)) if gang.gpu_models else (),
        indices=(*gang.indices, *(placement.index for placement in placements)) if has_indices else (),
    )


def _claims(roles: Iterable[GangRole], placements: Iterable[Placement]) -> list[_Claim]:
    requests: dict[str, ResourceRequest] = {role.role: role.request for role in roles}
    return [(requests[placement.role], placement) for placement in placements]


def _without_claims(nodes: tuple[NodeSnapshot, ...], claims: list[_Claim]) -> tuple[NodeSnapshot, ...]:
    free_amounts: dict[NodeId, FreeAmounts] = {}
    by_id = {node.id: node for node in nodes}
    for request, placement in sorted(claims, key=lambda item: -item[0].gpu_milli):
        free = by_id[placement.node].free
        amounts = free_amounts.get(placement.node, (free.cpu_milli, free.memory_bytes, free.gpus, free.shares))
        free_amounts[placement.node] = subtract(amounts, request, placement.gpu_model, 1)
    return tuple(
        replace(node, free=Amounts(*free_amounts[node.id])) if node.id in free_amounts else node for node in nodes
    )
