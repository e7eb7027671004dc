"""Writing wait reasons: for a shape of gang, for one user's jobs of it where the reason differs, and for single jobs.

Numbers in the reasons change with nearly every start. A queue of ten thousand jobs has a handful of shapes and some
users, so a tick writes only some rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, cast

from sqlalchemy import Table, bindparam, delete, insert, update
from sqlalchemy.orm import Session

from core.db.tables import Job, WaitReason
from core.domain.ids import JobId
from core.domain.jobs.states import JobState
from scheduler.control.planning.snapshot import PlannerInputs, reason_to_json
from scheduler.planning.model import Plan, Reason

_ROWS_PER_WRITE: Final = 500

_jobs, _reasons = cast("Table", Job.__table__), cast("Table", WaitReason.__table__)
_CHANGE: Final = update(_reasons).where(_reasons.c.shape == bindparam("row_shape"))
_ADD: Final = insert(_reasons)
_DROP: Final = delete(_reasons).where(_reasons.c.shape.in_(bindparam("shapes", expanding=True)))
_CHANGE_OWN: Final = update(_jobs).where(
    _jobs.c.id == bindparam("row_id"), _jobs.c.state == JobState.QUEUED.value
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReasonChanges:
    """Differences to what is written. ``shapes`` and ``obsolete``: rows by their key; ``own``: of single jobs, ``None``
    where a job has no reason of its own any more.
    """

    shapes: Mapping[str, Reason]
    obsolete: tuple[str, ...]
    own: Mapping[JobId, Reason | None]

    def parts(self) -> Iterator[dict[JobId, Reason | None]]:
        """``own`` in parts of the size of a transaction."""
        items = list(self.own.items())
        for begin in range(0, len(items), _ROWS_PER_WRITE):
            yield dict(items[begin : begin + _ROWS_PER_WRITE])


def changed_reasons(inputs: PlannerInputs, new_plan: Plan) -> ReasonChanges:
    """A reason per shape, and others only where they differ from it."""
    shapes = {gang.job_id: gang.shape for gang in inputs.snapshot.queued}
    keys, written, preemptions = inputs.reason_keys, inputs.shape_reasons, inputs.preempted
    firsts: dict[str, Reason] = {}
    by_key: dict[str, Reason] = {}
    own: dict[JobId, Reason] = {}
    of_shape: dict[str, dict[str, Reason]] = {}
    for job_id, reason in new_plan.waits.items():
        if job_id in preemptions:
            own[job_id] = _with_preemption(reason, preemptions[job_id])
            continue
        key = keys[job_id]
        first = firsts.get(key)
        if first is None:  # a user's first job speaks for all of them
            firsts[key] = of_shape.setdefault(shapes[job_id], {})[key] = reason
        elif first is not reason and first != reason:
            own[job_id] = reason
    for shape, of_user in of_shape.items():
        common = _common(list(of_user.values()), written.get(shape))
        if common is not None:
            by_key[shape] = common
        by_key |= {key: reason for key, reason in of_user.items() if reason is not common and reason != common}
    changes: dict[JobId, Reason | None] = {
        job_id: reason for job_id, reason in own.items() if inputs.own_reasons.get(job_id) != reason
    }
    changes |= {job_id: None for job_id in inputs.own_reasons if job_id not in own and job_id in new_plan.waits}
    return ReasonChanges(
        {key: reason for key, reason in by_key.items() if written.get(key) != reason},
        # No job waits for these reasons any more. A reason left behind would show the next job of its shape another
        # job's reason.
        tuple(key for key in written if key not in by_key),
        changes,
    )


def _common(reasons: Sequence[Reason], written: Reason | None) -> Reason | None:
    """The reason for the shape, also for jobs to come; ``None``: each user's reason is for that user alone.

    A reason with a quota or share in it is never shown to another project. What is written stays while it is still the
    reason of any user: users come and go at the head of the queue.
    """
    common = [reason for reason in reasons if "project" not in reason.numbers]
    if written is not None and written in common:
        return written
    return common[0] if common else None


def _with_preemption(reason: Reason, preemption: str) -> Reason:
    """A preempted job's reason also says why it was preempted, as long as it waits."""
    return replace(
        reason,
        sentence=f"{reason.sentence.rstrip('.')}. {preemption}",
        numbers={**reason.numbers, "preempted": preemption},
    )


def write_shapes(session: Session, changes: ReasonChanges, inputs: PlannerInputs, now: datetime) -> None:
    """Only the holder of the tick's lease inserts or deletes here."""
    connection = session.connection()
    changed: list[dict[str, Any]] = []
    fresh: list[dict[str, Any]] = []
    for key, reason in changes.shapes.items():
        values = {**reason_to_json(reason), "updated_at": now}
        if key in inputs.shape_reasons:
            changed.append({"row_shape": key, **values})
        else:
            fresh.append({"shape": key, **values})
    if changed:
        connection.execute(_CHANGE, changed)
    if fresh:
        connection.execute(_ADD, fresh)
    for begin in range(0, len(changes.obsolete), _ROWS_PER_WRITE):
        connection.execute(_DROP, {"shapes": list(changes.obsolete[begin : begin + _ROWS_PER_WRITE])})


def write_own(session: Session, changes: Mapping[JobId, Reason | None]) -> None:
    """Of jobs that still wait; in the order of their ids, as always when many jobs are locked."""
    rows = [
        {"row_id": job_id, "wait_reason": None if reason is None else reason_to_json(reason)}
        for job_id, reason in sorted(changes.items(), key=lambda item: item[0])
    ]
    session.connection().execute(_CHANGE_OWN, rows)
