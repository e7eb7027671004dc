"""Why a job waited at a moment: the same planner, run again on its input of that time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from core.domain.ids import JobId
from core.domain.sharing.wait_phrases import addressed_to
from scheduler.planning.explain import phrases
from scheduler.planning.explain.queue_position import explain_position
from scheduler.planning.forecast.start_times import positions
from scheduler.planning.model import Placement, Plan, Reason, Snapshot


@dataclass(frozen=True, slots=True)
class PlannerRecord:
    """The planner's input and, where it was logged, its plan."""

    at: datetime
    snapshot: Snapshot
    logged_plan: Plan | None


class PlanVerdict(StrEnum):
    """What the plan does with a job."""

    WAITS = "waits"
    STARTS = "starts"
    STOPS = "stops"  # it is preempted
    RUNS = "runs"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Explanation:
    """``then``: what the logged plan sentence of the job, where that differs."""

    at: datetime
    verdict: PlanVerdict
    sentence: str
    reason: Reason | None = None
    position: int | None = None
    placements: tuple[Placement, ...] = ()
    waiting: int = 0
    running: int = 0
    nodes: int = 0
    then: str = ""
    order: str = ""  # of a waiting job: the explanation of its queue position


def explanation(record: PlannerRecord, job_id: JobId, name: str, made: Plan) -> Explanation:
    """What ``made``, the plan of the record's snapshot, says of the job."""
    seen = record.snapshot
    verdict, sentence, placements = _verdict(job_id, made, seen)
    reason = made.waits.get(job_id)
    position = positions(made).get(job_id)
    if reason is not None:
        reason = replace(reason, sentence=addressed_to(job_id, name, reason.sentence, reason.numbers))
        sentence = reason.sentence
    return Explanation(
        at=record.at,
        verdict=verdict,
        sentence=sentence,
        reason=reason,
        position=position,
        placements=placements,
        waiting=len(seen.queued),
        running=len(seen.running),
        nodes=len(seen.nodes),
        then="" if record.logged_plan is None else _otherwise(job_id, name, made, record.logged_plan, seen),
        order=explain_position(seen, made, job_id),
    )


def _verdict(job_id: JobId, made: Plan, seen: Snapshot) -> tuple[PlanVerdict, str, tuple[Placement, ...]]:
    for start in made.starts:
        if start.job_id == job_id:
            return PlanVerdict.STARTS, f"is started on {_on(start.placements)}", start.placements
    if job_id in made.waits:
        return PlanVerdict.WAITS, "", ()
    for preempt in made.preempts:
        if preempt.job_id == job_id:
            return PlanVerdict.STOPS, preempt.sentence, ()
    running = next((view for view in seen.running if view.job_id == job_id), None)
    if running is not None:
        on = phrases.some_of(sorted({node for _, node in running.nodes}))
        return PlanVerdict.RUNS, f"{'is being stopped' if running.is_stopping else 'runs'} on {on}", ()
    return PlanVerdict.ABSENT, "neither waits for a place nor runs at that time", ()


def _otherwise(job_id: JobId, name: str, made: Plan, logged_plan: Plan, seen: Snapshot) -> str:
    """What the logged plan says of the job; empty if it does the same with it for the same kind of reason."""
    verdict, sentence, placements = _verdict(job_id, logged_plan, seen)
    reason, now = logged_plan.waits.get(job_id), made.waits.get(job_id)
    now_verdict, _, now_placements = _verdict(job_id, made, seen)
    is_same_reason = (None if reason is None else reason.code) == (None if now is None else now.code)
    if (verdict, placements) == (now_verdict, now_placements) and is_same_reason:
        return ""
    return sentence if reason is None else addressed_to(job_id, name, reason.sentence, reason.numbers)


def _on(placements: Sequence[Placement]) -> str:
    return phrases.some_of(sorted({placement.node for placement in placements}))
