"""The collection of tuning jobs: studies with the client's fields stored in the study's spec; and their JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from api.auth import Role
from api.jobs.service import canonical
from api.protocols.kit.json_values import display_name, timestamp, timestamps
from api.protocols.kit.vertex_table import table_of
from api.protocols.vertex.filters import job_vocabulary
from api.protocols.vertex.long_running import (
    CANCELLED,
    INVALID_ARGUMENT,
    RESOURCE_EXHAUSTED,
    deletion_view,
    error_status,
    operation_not_found,
)
from api.protocols.vertex.names import ANY_LOCATION, Parent, VertexCall
from api.protocols.vertex.paging import Keyset, ListQuery, list_page
from api.protocols.vertex.proto import Message
from api.protocols.vertex.training.custom_jobs import has_web_access, web_access_uris
from api.protocols.vertex.training.jobs import JOB_STATES, check_placement
from api.protocols.vertex.training.mapping import JobOrder, job_spec_of, translated_errors
from api.protocols.vertex.tuning.reading import PATH, read_tuning, study_spec_of
from api.studies import service
from api.studies.access import StudyAccess
from core.db.engine import UntypedRow, UntypedSelect
from core.db.tables import Job, Study, Trial
from core.domain.errors import Conflict, NotFound
from core.domain.jobs.states import JobState
from core.domain.studies.results import values_of
from core.domain.studies.states import StudyEvent, StudyState, TrialState
from core.settings import Settings

_STATES: Final = {
    StudyState.RUNNING: "RUNNING",
    StudyState.PAUSED: "RUNNING",  # Google's client would take PAUSED for completed
    StudyState.STOPPING: "CANCELLING",
    StudyState.SUCCEEDED: "SUCCEEDED",
    StudyState.FAILED: "FAILED",
    StudyState.CANCELLED: "CANCELLED",
}
COLLECTION: Final = "hyperparameterTuningJobs"
KEY: Final = "vertex"  # in a study's spec
_STORED_FIELDS: Final = ("studySpec", "maxTrialCount", "parallelTrialCount", "maxFailedTrialCount", "trialJobSpec")
_NEWEST: Final = Keyset(Study.created_at, Study.id)
_SCANNED: Final = 2_000  # rows that one page may scan
_TRIALS: Final = 10_000  # of all tuning jobs of a page; with more the next page begins


class TuningJobs:
    """See :class:`api.protocols.vertex.collections.Collection`."""

    def create(self, call: VertexCall, raw: Any) -> str:
        call.demand_member("member", verb=f"{COLLECTION}.create")
        message = Message(raw, PATH)
        tuning = read_tuning(message)
        order = JobOrder(tuning.job, tuning.common.display_name, tuning.common.labels)
        template = job_spec_of(call, order, table_of(call.context))
        metrics = tuning.study["metrics"]
        if len(metrics) == 1:
            template["env"]["CLOUD_ML_HP_METRIC_TAG"] = metrics[0]["name"]
        with translated_errors(tuning.job):
            canonical(template)  # mistakes are reported as those of a custom job
        spec = study_spec_of(tuning, display_name(tuning.common.display_name), call.parent.own, template)
        draft = service.check_study(call.context, call.caller, spec)
        if draft.submission is not None:
            check_placement(call, draft.submission)
        client_fields = {
            "location": call.parent.location,
            "displayName": tuning.common.display_name,
            "labels": tuning.common.labels,
            "body": {name: message.raw(name) for name in _STORED_FIELDS if message.raw(name) is not None},
        }
        with call.context.write() as work:
            row = service.create(work, call.caller, draft).row
            row.spec = {**row.spec, KEY: client_fields}
            work.session.flush()
            return row.id

    def get(self, call: VertexCall, resource_id: str) -> dict[str, Any]:
        with call.context.read() as work:
            study = _find(work.session, call, resource_id, "viewer", "get")
            return _view(work.session, study, call.parent, call.context.settings)

    def page(self, call: VertexCall, query: ListQuery) -> dict[str, Any]:
        """Newest first."""
        query.demand_newest_first()
        with call.context.read() as work:
            statement = _studies(work.session, call, "list")
            trials = 0

            def view_of(row: UntypedRow) -> tuple[dict[str, Any], dict[str, datetime | None]]:
                nonlocal trials
                (study,) = row
                item = _view(work.session, study, _parent_of(call.parent, study), call.context.settings)
                trials += len(item.get("trials", ()))
                started = item.get("startTime")
                return item, {
                    "create_time": study.created_at,
                    "start_time": None if started is None else datetime.fromisoformat(started),
                    "end_time": study.finished_at,
                    "update_time": study.updated_at,
                }

            return list_page(
                work.session,
                statement,
                _NEWEST,
                query,
                view_of,
                collection=COLLECTION,
                vocabulary=job_vocabulary(JOB_STATES),
                scanned=_SCANNED,
                is_full=lambda: trials >= _TRIALS,
            )

    def cancel(self, call: VertexCall, resource_id: str) -> None:
        with call.context.write() as work:
            study = _find(work.session, call, resource_id, "member", "cancel")
            _lock(work.session, study)
            if StudyState(study.state).is_terminal:
                raise Conflict(f"The resource {_name(call.parent, study)} has ended already ({study.state}).")
            service.request_transition(work, StudyAccess(call.caller, study.id, "member"), StudyEvent.STOP, "")

    def delete(self, call: VertexCall, resource_id: str) -> dict[str, Any]:
        """Deleted at once; the jobs of its trials stay."""
        with call.context.write() as work:
            study = _find(work.session, call, resource_id, "member", "delete")
            name = _name(call.parent, study)
            if not StudyState(study.state).is_terminal:
                raise Conflict(f"The resource {name} is in state {study.state.upper()}; cancel it first.")
            service.delete(work, StudyAccess(call.caller, study.id, "member"))
        return deletion_view(name, is_done=True)

    def poll_deletion(self, call: VertexCall, resource_id: str) -> dict[str, Any]:
        with call.context.read() as work:
            statement = _studies(work.session, call, "get", is_deleted=True).where(Study.id == resource_id)
            name = call.parent.name_of(COLLECTION, resource_id)
            if work.session.scalars(statement).one_or_none() is None:
                raise operation_not_found(name)
        return deletion_view(name, is_done=True)


def _studies(session: Session, call: VertexCall, what: str, *, is_deleted: bool = False) -> UntypedSelect:
    """Studies that Vertex AI's clients created in the location."""
    member = call.member_of(session, "viewer", verb=f"{COLLECTION}.{what}")
    location = Study.spec[KEY]["location"].as_string()
    query = select(Study).where(
        Study.project_id == member.project_id,
        Study.deleted_at.is_not(None) if is_deleted else Study.deleted_at.is_(None),
    )
    here = call.parent.location
    return query.where(location.is_not(None) if here == ANY_LOCATION else location == here)


def _find(session: Session, call: VertexCall, resource_id: str, role: Role, what: str) -> Study:
    """Raises ``NotFound`` (none, deleted, or of another project or location) or ``Forbidden``."""
    call.member_of(session, role, verb=f"{COLLECTION}.{what}")
    statement = _studies(session, call, what).where(Study.id == resource_id)
    study: Study | None = session.scalars(statement).one_or_none()
    if study is None:
        raise NotFound(f"{COLLECTION} {call.parent.name_of(COLLECTION, resource_id)} is not found.")
    return study


def _lock(session: Session, study: Study) -> None:
    """Lock the row until the transaction ends, and reload it: the control loop updates studies in every pass, and a
    client that gets a conflict retries at once.
    """
    hold = update(Study).where(Study.id == study.id).values(id=Study.id)
    session.execute(hold.execution_options(synchronize_session=False))
    session.refresh(study)


def _name(parent: Parent, study: Study) -> str:
    return parent.name_of(COLLECTION, study.id)


def _parent_of(parent: Parent, study: Study) -> Parent:
    return Parent(parent.project, study.spec[KEY]["location"], parent.own)


# --- views -----------------------------------------------------------------------------------------------------------


def _view(session: Session, study: Study, parent: Parent, settings: Settings) -> dict[str, Any]:
    """The tuning job with its trials."""
    rows = _trials(session, study.id)
    client_fields: Mapping[str, Any] = study.spec[KEY]
    metrics = [metric["name"] for metric in study.spec["metrics"]]
    started = min((row.started_at for row in rows if row.started_at is not None), default=None)
    error = _error_of(study)
    roles = (study.spec.get("template") or {}).get("roles", {})
    pools = roles if has_web_access(client_fields["body"].get("trialJobSpec") or {}) else None
    trials = [_trial(row, metrics, pools, parent, settings) for row in rows]
    return {
        "name": _name(parent, study),
        "displayName": client_fields["displayName"],
        **client_fields["body"],
        "state": f"JOB_STATE_{_state_of(study, rows)}",
        **({"trials": trials} if trials else {}),
        **({} if error is None else {"error": error}),
        **timestamps(
            createTime=study.created_at, startTime=started, endTime=study.finished_at, updateTime=study.updated_at
        ),
        **({"labels": client_fields["labels"]} if client_fields["labels"] else {}),
    }


def _trials(session: Session, study_id: str) -> Sequence[UntypedRow]:
    """In order of their numbers."""
    query = (
        select(
            Trial.number, Trial.state, Trial.parameters, Trial.result, Trial.reason, Trial.stop,
            # Only this field of the curve: studies have thousands of curves of hundreds of points.
            Trial.curve["counted"].as_integer().label("counted"),
            Trial.job_id, Trial.created_at, Trial.ended_at, Job.state.label("job_state"), Job.started_at,
        )
        .outerjoin(Job, Job.id == Trial.job_id)
        .where(Trial.study_id == study_id)
        .order_by(Trial.number)
    )  # fmt: skip
    return session.execute(query).all()


def _state_of(study: Study, rows: Sequence[UntypedRow]) -> str:
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
            return error_status(INVALID_ARGUMENT, study.reason)
        case StudyState.CANCELLED:
            return error_status(CANCELLED, study.reason or "The study was stopped.")
        case StudyState.RUNNING if study.note:
            return error_status(RESOURCE_EXHAUSTED, study.note)
    return None


def _trial(
    row: UntypedRow, metrics: Sequence[str], pools: Mapping[str, Any] | None, parent: Parent, settings: Settings
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


def _trial_state(row: UntypedRow) -> str:
    state = TrialState(row.state)
    if state.is_terminal:
        return "SUCCEEDED" if state.has_result else "INFEASIBLE"
    if row.stop is not None:
        return "STOPPING"
    waits = row.job_state in (JobState.QUEUED, JobState.STARTING)
    return "REQUESTED" if waits else "ACTIVE"


def _final(row: UntypedRow, names: Sequence[str]) -> dict[str, Any] | None:
    values = values_of(row.result, names)
    if values is None:
        return None
    metrics = [{"metricId": name, "value": value} for name, value in zip(names, values, strict=True)]
    return {**({"stepCount": str(row.counted)} if row.counted else {}), "metrics": metrics}
