"""Why a job waited at a moment: the same planner, run again on its input of that time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from core.domain.ids import JobId
from core.domain.sharing.wait_phrases import addressed_to
from scheduler.control.planning.snapshot import reason_to_json
from scheduler.planning.explain import phrases
from scheduler.planning.explain.queue_position import explain_position
from scheduler.planning.forecast.start_times import positions
from scheduler.planning.model import Placement, Plan, Snapshot


def explanation(
    at: datetime, seen: Snapshot, made: Plan, job_id: JobId, name: str, *, logged_plan: Plan | None = None
) -> dict[str, Any]:
    """What ``made``, the plan of ``seen``, says of the job, as JSON.

    ``verdict``: ``waits``, ``starts``, ``stops`` (it is preempted), ``runs`` or ``absent``. ``then``: what
    ``logged_plan`` says of the job, where that differs. ``order``: of a waiting job, the explanation of its queue
    position.
    """
    verdict, sentence, placements = _verdict(job_id, made, seen)
    reason = made.waits.get(job_id)
    if reason is not None:
        reason = replace(reason, sentence=addressed_to(job_id, name, reason.sentence, reason.numbers))
        sentence = reason.sentence
    return {
        "at": at.isoformat(),
        "verdict": verdict,
        "sentence": sentence,
        "reason": None if reason is None else reason_to_json(reason),
        "position": positions(made).get(job_id),
        "places": places_to_json(placements),
        "waiting": len(seen.queued),
        "running": len(seen.running),
        "nodes": len(seen.nodes),
        "then": "" if logged_plan is None else _otherwise(job_id, name, made, logged_plan, seen),
        "order": explain_position(seen, made, job_id),
    }


def places_to_json(placements: Sequence[Placement]) -> list[dict[str, Any]]:
    """Replicas of a role with the same place are counted: a gang may have thousands."""
    places = Counter((p.role, p.node, p.gpu_model) for p in placements)
    return [
        {"role": role, "node": node, "gpu_model": model, "replicas": count}
        for (role, node, model), count in places.items()
    ]


def _verdict(job_id: JobId, made: Plan, seen: Snapshot) -> tuple[str, str, tuple[Placement, ...]]:
    for start in made.starts:
        if start.job_id == job_id:
            on = phrases.some_of(sorted({placement.node for placement in start.placements}))
            return "starts", f"is started on {on}", start.placements
    if job_id in made.waits:
        return "waits", "", ()
    for preempt in made.preempts:
        if preempt.job_id == job_id:
            return "stops", preempt.sentence, ()
    running = next((view for view in seen.running if view.job_id == job_id), None)
    if running is not None:
        on = phrases.some_of(sorted({node for _, node in running.nodes}))
        return "runs", f"{'is being stopped' if running.is_stopping else 'runs'} on {on}", ()
    return "absent", "neither waits for a place nor runs at that time", ()


def _otherwise(job_id: JobId, name: str, made: Plan, logged_plan: Plan, seen: Snapshot) -> str:
    """What the logged plan says of the job; empty if it does the same with it for the same kind of reason."""
    verdict, sentence, placements = _verdict(job_id, logged_plan, seen)
    reason, now = logged_plan.waits.get(job_id), made.waits.get(job_id)
    now_verdict, _, now_placements = _verdict(job_id, made, seen)
    is_same_reason = (None if reason is None else reason.code) == (None if now is None else now.code)
    if (verdict, placements) == (now_verdict, now_placements) and is_same_reason:
        return ""
    return sentence if reason is None else addressed_to(job_id, name, reason.sentence, reason.numbers)
