"""Tuning jobs and trials as JSON resources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.protocols.kit.json_values import timestamp
from api.protocols.vertex.names import Parent
from api.protocols.vertex.training.states import CANCELLED, INVALID_ARGUMENT, RESOURCE_EXHAUSTED
from api.protocols.vertex.web_links import has_web_access, web_access_uris
from core.db.rows import AnyRow
from core.db.tables import Job, Study, Trial
from core.domain.jobs.states import JobState
from core.domain.studies.results import values_of
from core.domain.studies.states import StudyState, TrialState
from core.settings import Settings

_STATES: Final = {
    StudyState.RUNNING: "RUNNING",
    StudyState.PAUSED: "RUNNING",  # Google's client would take PAUSED for completed
    StudyState.STOPPING: "CANCELLING",
    StudyState.SUCCEEDED: "SUCCEEDED",
    StudyState.FAILED: "FAILED",
    StudyState.CANCELLED: "CANCELLED",
}


def view(session: Session, studies: Sequence[Study], parent: Parent, settings: Settings) -> list[dict[str, Any]]:
    """Each with its trials."""
    trials = _trials(session, [study.id for study in studies])
    return [_view(study, trials[study.id], parent, settings) for study in studies]


def _trials(session: Session, study_ids: Sequence[str]) -> dict[str, list[AnyRow]]:
    """By study, in order of their numbers."""
    query = (
        select(
            Trial.study_id, Trial.number, Trial.state, Trial.parameters, Trial.result, Trial.reason, Trial.stop,
            # Only this field of the curve: studies have thousands of curves of hundreds of points.
            Trial.curve["counted"].as_integer().label("counted"),
            Trial.job_id, Trial.created_at, Trial.ended_at, Job.state.label("job_state"), Job.started_at,
        )
        .outerjoin(Job, Job.id == Trial.job_id)
        .where(Trial.study_id.in_(study_ids))
        .order_by(Trial.study_id, Trial.number)
    )  # fmt: skip
    found: dict[str, list[AnyRow]] = {study_id: [] for study_id in study_ids}
    for row in session.execute(query):
        found[row.study_id].append(row)
    return found


def _view(study: Study, rows: Sequence[AnyRow], parent: Parent, settings: Settings) -> dict[str, Any]:
    client_fields: Mapping[str, Any] = study.spec["vertex"]
    metrics = [metric["name"] for metric in study.spec["metrics"]]
    started = min((row.started_at for row in rows if row.started_at is not None), default=None)
    times = {
        "createTime": study.created_at,
        "startTime": started,
        "endTime": study.finished_at,
        "updateTime": study.updated_at,
    }
    error = _error_of(study)
    roles = (study.spec.get("template") or {}).get("roles", {})
    pools = roles if has_web_access(client_fields["body"].get("trialJobSpec") or {}) else None
    trials = [_trial(row, metrics, pools, parent, settings) for row in rows]
    return {
        "name": parent.name_of("hyperparameterTuningJobs", study.id),
        "displayName": client_fields["displayName"],
        **client_fields["body"],
        "state": f"JOB_STATE_{_state_of(study, rows)}",
        **({"trials": trials} if trials else {}),
        **({} if error is None else {"error": error}),
        **{name: timestamp(at) for name, at in times.items() if at is not None},
        **({"labels": client_fields["labels"]} if client_fields["labels"] else {}),
    }


def _state_of(study: Study, rows: Sequence[AnyRow]) -> str:
    """Until a trial has started, the tuning job is pending or queued."""
    state = StudyState(study.state)
    if state in (StudyState.RUNNING, StudyState.PAUSED) and all(
        row.started_at is None and row.ended_at is None for row in rows
    ):
        return "PENDING" if rows else "QUEUED"
    return _STATES[state]


def _error_of(study: Study) -> dict[str, Any] | None:
    """Why it ended without success; while it runs, why none of its trials can ever start."""
    match StudyState(study.state):
        case StudyState.FAILED:
            return {"code": INVALID_ARGUMENT, "message": study.reason}
        case StudyState.CANCELLED:
            return {"code": CANCELLED, "message": study.reason or "The study was stopped."}
        case StudyState.RUNNING if study.note:
            return {"code": RESOURCE_EXHAUSTED, "message": study.note}
    return None


def _trial(
    row: AnyRow, metrics: Sequence[str], pools: Mapping[str, Any] | None, parent: Parent, settings: Settings
) -> dict[str, Any]:
    """``pools``: roles whose replicas get web links; ``None``: no links."""
    state, is_over = TrialState(row.state), TrialState(row.state).is_terminal
    shown: dict[str, Any] = {
        "id": str(row.number),
        "state": _trial_state(row),
        "parameters": [{"parameterId": name, "value": value} for name, value in row.parameters.items()],
    }
    if state.has_result and (measurement := _final(row, metrics)) is not None:
        shown["finalMeasurement"] = measurement
    # A job may end before it was observed running.
    if (started := row.started_at or (row.created_at if state.has_result else None)) is not None:
        shown["startTime"] = timestamp(started)
    if row.ended_at is not None:
        shown["endTime"] = timestamp(row.ended_at)
    if row.job_id is not None:
        shown["customJob"] = parent.name_of("customJobs", row.job_id)
        if pools is not None and not is_over and row.job_state == JobState.RUNNING:
            shown["webAccessUris"] = web_access_uris(settings, row.job_id, pools)
    if is_over and not state.has_result:
        shown["infeasibleReason"] = row.reason or f"The trial is {state.value}."
    return shown


def _trial_state(row: AnyRow) -> str:
    state = TrialState(row.state)
    if state.is_terminal:
        return "SUCCEEDED" if state.has_result else "INFEASIBLE"
    if row.stop is not None:
        return "STOPPING"
    waits = row.job_state in (JobState.QUEUED, JobState.STARTING)
    return "REQUESTED" if waits else "ACTIVE"


def _final(row: AnyRow, names: Sequence[str]) -> dict[str, Any] | None:
    values = values_of(row.result, names)
    if values is None:
        return None
    metrics = [{"metricId": name, "value": value} for name, value in zip(names, values, strict=True)]
    return {**({"stepCount": str(row.counted)} if row.counted else {}), "metrics": metrics}
