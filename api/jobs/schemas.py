"""REST views of jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy.orm import Session
from trainmaster.spec import JobSpec
from trainmaster.wire.jobs import JobDetail, JobView, SpeedView, TrialOf, WaitReasonView

from api.attempts import attempt_view, exit_view
from core.db.engine import UntypedRow
from core.db.repositories.job_speeds import earlier_points, points_of
from core.db.repositories.jobs import NOT_RUN, RunSummary, newest_attempt, runs_of, view_row
from core.db.repositories.queue import number_of
from core.db.repositories.retention import expiry_times
from core.db.repositories.storage_usage import read_state
from core.db.tables import Job
from core.domain.jobs.progress_rate import progress_view
from core.domain.jobs.speed_curve import LEAST_MEASURED_S, SpeedCurve, growth_note
from core.domain.jobs.states import JobState
from core.domain.sharing.resources import as_gpus
from core.domain.sharing.wait_phrases import addressed_to, in_full

# Between the submission and the first tick that sees the job there is no plan yet, but there is a reason.
NEWLY_QUEUED: Final = WaitReasonView(
    code="just_queued", sentence="It has just been queued; the scheduler plans it in its next pass."
)
# A running scheduler has planned a new job within this time.
_PLANNED_WITHIN: Final = timedelta(seconds=10)


def job_fields(row: UntypedRow, *, run: RunSummary, now: datetime) -> dict[str, Any]:
    """The fields of a ``JobView`` from a view row."""
    # core.domain.sharing.resources.Gang.to_json: [role, replicas, cpu, memory, gpus, models], and an elastic role's
    # maximum.
    roles = row.gang["roles"]
    return {
        "id": row.id,
        "name": row.name,
        "project": row.project,
        "user": row.user,
        "state": row.state,
        "wanted": row.desired_state,
        "priority": row.priority,
        "labels": row.labels or {},
        "roles": {role[0]: role[1] for role in roles},
        "most_replicas": _max_replicas(roles),
        "gpu_count": as_gpus(row.gpu_milli),
        "attempt_count": row.attempt_count,
        "restart_count": row.restart_count,
        "wait_reason": wait_reason_of(row, now),
        "exit": exit_view(row.exit),
        "progress": progress_view(run.progress, is_running=row.state == JobState.RUNNING),
        "created_at": row.created_at,
        "queued_at": row.queued_at,
        "started_at": row.started_at,
        "finished_at": row.finished_at,
        "ran_s": run.ran.total_seconds(),
        "running_since": run.since,
        "output": f"{row.output_volume}/{row.output_path}",
        "cloned_from": row.cloned_from,
        "pinned_by": row.pinned_by,
        "expired": expiry_times(row.expired),
        "generation": row.generation,
    }


def job_view(row: UntypedRow, *, run: RunSummary, now: datetime) -> JobView:
    # The platform's own rows: without validation this takes a fifth of the time, and a page has up to 200 rows.
    return JobView.model_construct(**job_fields(row, run=run, now=now))


def load_detail(session: Session, job: Job, now: datetime) -> JobDetail:
    """All details of one job. At most six SQL statements, of an elastic job nine."""
    row = view_row(session, job.id)
    found = newest_attempt(session, job.id) if row.attempt_count else None
    run = runs_of(session, [job.id]).get(job.id, NOT_RUN) if found else NOT_RUN
    fields = job_fields(row, run=run, now=now)
    reason: WaitReasonView | None = fields["wait_reason"]
    position = None
    if row.state == JobState.QUEUED and not (reason is not None and reason.is_infeasible):
        position = number_of(session, job_id=row.id, priority=row.priority, queued_at=row.queued_at)
    return JobDetail.model_construct(
        **fields,
        spec=JobSpec.model_validate(job.spec),
        queue_position=position,
        attempt=attempt_view(*found) if found else None,
        trial=None if job.trial is None else TrialOf(**job.trial),
        warnings=[] if JobState(row.state).is_terminal else read_state(session, job.project_id).warnings(),
        **_measured_speeds(session, job),
    )


def _measured_speeds(session: Session, job: Job) -> dict[str, Any]:
    role = next((role for role in job.gang["roles"] if len(role) > 6 and role[6] is not None), None)
    if role is None:
        return {}
    points = points_of(session, job.id)
    curve = SpeedCurve.measured(points, earlier_points(session, job))
    return {
        "speeds": [
            SpeedView(replicas=point.replicas, steps_per_s=point.work_per_s, measured_s=point.measured_s)
            for point in points
            if point.measured_s >= LEAST_MEASURED_S
        ],
        "growth_note": growth_note(curve, role[0], role[1], role[6]),
    }


def fresh_detail(
    row: Mapping[str, Any], *, project: str, user: str, spec: JobSpec, warnings: Sequence[str] = ()
) -> JobDetail:
    """The details of a job just written as ``row``, without a query, and hence without its position in the queue."""
    return JobDetail.model_construct(
        id=row["id"],
        name=row["name"],
        project=project,
        user=user,
        state=row["state"],
        wanted=row["desired_state"],
        priority=row["priority"],
        labels=spec.labels,
        roles={role[0]: role[1] for role in row["gang"]["roles"]},
        most_replicas=_max_replicas(row["gang"]["roles"]),
        gpu_count=as_gpus(row["gpu_milli"]),
        wait_reason=NEWLY_QUEUED,
        created_at=row["created_at"],
        queued_at=row["queued_at"],
        output=f"{row['output_volume']}/{row['output_path']}",
        cloned_from=row["cloned_from"],
        spec=spec,
        warnings=list(warnings),
    )


def _max_replicas(roles: Sequence[Sequence[Any]]) -> dict[str, int]:
    return {role[0]: role[6] for role in roles if len(role) > 6 and role[6] is not None}


def wait_reason_of(row: UntypedRow, now: datetime) -> WaitReasonView | None:
    """The wait reason of a job: its own, or that of its equivalence class."""
    if row.state not in (JobState.QUEUED, JobState.STARTING):
        return None
    if row.wait_reason is not None:
        own = row.wait_reason
        # The engine's message about a starting replica is passed on unchanged.
        sentence = own["sentence"] if row.state == JobState.STARTING else in_full(own["sentence"])
        return WaitReasonView(code=own["code"], sentence=sentence, numbers=own.get("numbers", {}))
    if row.state == JobState.STARTING:
        return None
    if row.shape_code is not None:
        numbers = row.shape_numbers or {}
        sentence = in_full(addressed_to(row.id, row.name, row.shape_sentence, numbers))
        return WaitReasonView(code=row.shape_code, sentence=sentence, numbers=numbers)
    return NEWLY_QUEUED if now - row.queued_at < _PLANNED_WITHIN else _not_planned(row.ticked_at)


def _not_planned(ticked_at: datetime | None) -> WaitReasonView:
    # A time, not an age: the response (and its ETag) stays the same while nothing changes.
    last = (
        "it has not run yet"
        if ticked_at is None
        else f"its last pass over the queue was at {ticked_at:%Y-%m-%d %H:%M:%S} UTC"
    )
    return WaitReasonView(
        code="scheduler_away",
        sentence=f"The scheduler has not planned it yet: {last}. `trainmaster version --server` shows its state.",
    )
