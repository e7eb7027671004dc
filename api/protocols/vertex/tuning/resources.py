"""The collection of tuning jobs: studies with the client's fields stored in the study's spec."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import partial
from typing import Any, Final

from sqlalchemy import ColumnElement, literal, select, tuple_, update
from sqlalchemy.orm import Session

from api.app.unit_of_work import AppContext
from api.auth import Caller, Role
from api.http.cursors import make_cursor
from api.jobs.service import canonical
from api.protocols.kit.job_fields import slug
from api.protocols.vertex.error_translation import list_position, translated_errors
from api.protocols.vertex.filters import job_vocabulary, parse_filter
from api.protocols.vertex.names import ANY_LOCATION, Parent, member_of
from api.protocols.vertex.operations.deletions import deletion_view
from api.protocols.vertex.proto import Message
from api.protocols.vertex.table import table_of
from api.protocols.vertex.training import jobs
from api.protocols.vertex.training.mapping import JobOrder, job_spec_of
from api.protocols.vertex.training.placement_check import check_placement
from api.protocols.vertex.training.states import JOB_STATES
from api.protocols.vertex.tuning.reading import PATH, read_tuning, study_spec_of
from api.protocols.vertex.tuning.views import view
from api.studies import service
from api.studies.access import StudyAccess
from core.db.rows import AnySelect
from core.db.tables import Study, UtcDateTime
from core.domain.errors import Conflict, NotFound
from core.domain.studies.states import StudyEvent, StudyState

COLLECTION: Final = "hyperparameterTuningJobs"
KEY: Final = "vertex"  # in a study's spec
_STORED_FIELDS: Final = ("studySpec", "maxTrialCount", "parallelTrialCount", "maxFailedTrialCount", "trialJobSpec")
_SCANNED: Final = 2_000  # rows that one page may scan
_TRIALS: Final = 10_000  # of all tuning jobs of a page; with more the next page begins


class TuningJobs:
    """See :class:`api.protocols.vertex.resource_collection.Collection`."""

    def create(self, context: AppContext, caller: Caller, parent: Parent, raw: Any) -> str:
        jobs.demand_member(context, caller, parent, "member", verb=f"{COLLECTION}.create")
        message = Message(raw, PATH)
        tuning = read_tuning(message)
        order = JobOrder(tuning.job, tuning.common.display_name, parent.own, parent.location, tuning.common.labels)
        template = job_spec_of(context, caller, order, table_of(context))
        metrics = tuning.study["metrics"]
        if len(metrics) == 1:
            template["env"]["CLOUD_ML_HP_METRIC_TAG"] = metrics[0]["name"]
        with translated_errors(tuning.job):
            canonical(template)  # mistakes are reported as those of a custom job
        spec = study_spec_of(tuning, slug(tuning.common.display_name), parent.own, template)
        draft = service.check_study(context, caller, spec)
        if draft.submission is not None:
            check_placement(context, caller, draft.submission)
        client_fields = {
            "location": parent.location,
            "displayName": tuning.common.display_name,
            "labels": tuning.common.labels,
            "body": {name: message.raw(name) for name in _STORED_FIELDS if message.raw(name) is not None},
        }
        with context.write() as work:
            row = service.create(work, caller, draft).row
            row.spec = {**row.spec, KEY: client_fields}
            work.session.flush()
            return row.id

    def get(self, context: AppContext, caller: Caller, parent: Parent, resource_id: str) -> dict[str, Any]:
        with context.read() as work:
            study = _find(work.session, caller, parent, resource_id, "viewer", "get")
            return view(work.session, [study], parent, context.settings)[0]

    def page(self, context: AppContext, caller: Caller, parent: Parent, query: jobs.ListQuery) -> dict[str, Any]:
        """Newest first. With a selective filter a page may be short and still have a next page."""
        jobs.demand_newest_first(query.order_by)
        test = parse_filter(query.filter, job_vocabulary(JOB_STATES))
        limit = min(query.page_size or jobs.PAGE, jobs.PAGE_LIMIT)
        with context.read() as work:
            statement = _studies(work.session, caller, parent, "list").order_by(
                Study.created_at.desc(), Study.id.desc()
            )
            if query.page_token:
                statement = statement.where(_after(*list_position(query.page_token)))
            items: list[dict[str, Any]] = []
            last: Study | None = None
            trials = 0
            for number, study in enumerate(_in_batches(work.session, statement, limit)):
                if len(items) == limit or number == _SCANNED or trials >= _TRIALS:
                    assert last is not None  # noqa: S101 (there was one before)
                    return _page(items, make_cursor(last.created_at.isoformat(), last.id))
                item = view(work.session, [study], _parent_of(parent, study), context.settings)[0]
                trials += len(item.get("trials", ()))
                if test(partial(_field, study, item)):
                    items.append(item)
                last = study
        return _page(items, "")

    def cancel(self, context: AppContext, caller: Caller, parent: Parent, resource_id: str) -> None:
        with context.write() as work:
            study = _find(work.session, caller, parent, resource_id, "member", "cancel")
            _lock(work.session, study)
            if StudyState(study.state).is_terminal:
                raise Conflict(f"The resource {_name(parent, study)} has ended already ({study.state}).")
            service.request_transition(work, StudyAccess(caller, study.id, "member"), StudyEvent.STOP, "")

    def delete(self, context: AppContext, caller: Caller, parent: Parent, resource_id: str) -> dict[str, Any]:
        """Deleted at once; the jobs of its trials stay."""
        with context.write() as work:
            study = _find(work.session, caller, parent, resource_id, "member", "delete")
            name = _name(parent, study)
            if not StudyState(study.state).is_terminal:
                raise Conflict(f"The resource {name} is in state {study.state.upper()}; cancel it first.")
            service.delete(work, StudyAccess(caller, study.id, "member"))
        return deletion_view(name, is_done=True)

    def poll_deletion(self, context: AppContext, caller: Caller, parent: Parent, resource_id: str) -> dict[str, Any]:
        with context.read() as work:
            statement = _studies(work.session, caller, parent, "get", is_deleted=True).where(Study.id == resource_id)
            if work.session.scalars(statement).one_or_none() is None:
                name = parent.name_of(COLLECTION, resource_id, "operations", "delete")
                raise NotFound(f"Operation {name} is not found.")
        return deletion_view(parent.name_of(COLLECTION, resource_id), is_done=True)


def _studies(session: Session, caller: Caller, parent: Parent, what: str, *, is_deleted: bool = False) -> AnySelect:
    """Studies that Vertex AI's clients created in the location."""
    member = member_of(session, caller, parent, "viewer", verb=f"{COLLECTION}.{what}")
    location = Study.spec[KEY]["location"].as_string()
    query = select(Study).where(
        Study.project_id == member.project_id,
        Study.deleted_at.is_not(None) if is_deleted else Study.deleted_at.is_(None),
    )
    return query.where(location.is_not(None) if parent.location == ANY_LOCATION else location == parent.location)


def _find(session: Session, caller: Caller, parent: Parent, resource_id: str, role: Role, what: str) -> Study:
    """Raises ``NotFound`` (none, deleted, or of another project or location) or ``Forbidden``."""
    member_of(session, caller, parent, role, verb=f"{COLLECTION}.{what}")
    statement = _studies(session, caller, parent, what).where(Study.id == resource_id)
    study: Study | None = session.scalars(statement).one_or_none()
    if study is None:
        raise NotFound(f"{COLLECTION} {parent.name_of(COLLECTION, resource_id)} is not found.")
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


def _page(items: list[dict[str, Any]], token: str) -> dict[str, Any]:
    return {**({COLLECTION: items} if items else {}), **({"nextPageToken": token} if token else {})}


def _in_batches(session: Session, statement: AnySelect, limit: int) -> Iterator[Study]:
    place: tuple[datetime, str] | None = None
    while True:
        query = statement if place is None else statement.where(_after(*place))
        batch = session.scalars(query.limit(limit + 1)).all()
        yield from batch
        if len(batch) <= limit:
            return
        place = batch[-1].created_at, batch[-1].id


def _after(created_at: datetime, study_id: str) -> ColumnElement[bool]:
    return tuple_(Study.created_at, Study.id) < tuple_(literal(created_at, UtcDateTime), literal(study_id))


def _field(study: Study, item: dict[str, Any], name: str) -> Any:
    match name:
        case "labels":
            return study.spec[KEY]["labels"]
        case "create_time":
            return study.created_at
        case "end_time":
            return study.finished_at
        case "update_time":
            return study.updated_at
        case "start_time":
            return None if "startTime" not in item else datetime.fromisoformat(item["startTime"])
        case "display_name":
            return item["displayName"]
        case _:
            return item.get(name)
