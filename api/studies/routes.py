from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Response
from sqlalchemy import select, tuple_
from trainmaster.studies import StudySpec
from trainmaster.wire.base import Page
from trainmaster.wire.jobs import ReasonRequest
from trainmaster.wire.studies import (
    StudyBest,
    StudyCreate,
    StudyDetail,
    StudyExtend,
    StudyView,
    Suggestions,
    SuggestRequest,
    TrialComplete,
    TrialView,
)

from api.auth import Reader, Writer
from api.cursors import make_cursor, read_cursor
from api.paging import PageParams, PageQuery, read_position
from api.routing import new_router
from api.studies import asking, service
from api.studies.access import StudyAccess, StudyMember, StudyViewer
from api.studies.views import study_best, study_detail, study_views, trial_views
from api.work import Platform, PlatformDep
from core.db.tables import Study
from core.domain.studies.states import StudyEvent

router = new_router("studies", "/studies")

TrialNumber = Annotated[int, Path(ge=1, le=2**31 - 1, description="The trial's number, from 1.")]


class StudyQuery(PageQuery):
    project: Annotated[str | None, Query(max_length=100)] = None


@router.post(
    "",
    operation_id="create_study",
    summary="Create a study",
    status_code=201,
    response_model=StudyDetail,
    responses={200: {"model": StudySpec, "description": "With `dry_run`: the canonical spec; nothing was created."}},
)
def create_study(body: StudyCreate, caller: Writer, platform: PlatformDep) -> Response:
    """Its first trials begin at once. Every mistake of the spec is told at once. Needs the role `member` in the project."""
    spec = service.read_study(body)
    draft = service.check_study(platform, caller, spec)
    if body.dry_run:
        return _json(spec.model_dump_json())
    with platform.write() as work:
        detail = study_detail(work.session, service.create(work, caller, draft))
    return _json(detail.model_dump_json(), 201)


@router.get("", operation_id="list_studies", summary="Studies, newest first")
def list_studies(query: Annotated[StudyQuery, Query()], caller: Reader, platform: PlatformDep) -> Page[StudyView]:
    with platform.read() as work:
        rows = select(Study).where(Study.deleted_at.is_(None))
        if query.project is not None:
            rows = rows.where(Study.project_id == caller.member_of(work.session, query.project).project_id)
        elif not caller.is_admin:
            rows = rows.where(Study.project_id.in_(list(caller.projects)))
        if query.cursor is not None:
            rows = rows.where(tuple_(Study.created_at, Study.id) < read_position(query.cursor))
        found = work.session.scalars(
            rows.order_by(Study.created_at.desc(), Study.id.desc()).limit(query.limit + 1)
        ).all()
        page = found[: query.limit]
        cursor = make_cursor(page[-1].created_at.isoformat(), page[-1].id) if len(found) > query.limit else None
        return Page(items=study_views(work.session, page), next_cursor=cursor)


@router.get("/{study}", operation_id="get_study", summary="One study with its spec and how its best grew")
def get_study(study: StudyViewer, platform: PlatformDep) -> StudyDetail:
    with platform.read() as work:
        return study_detail(work.session, study.load(work.session)[0])


@router.get("/{study}/best", operation_id="get_study_best", summary="The best trial, or the Pareto front")
def get_study_best(study: StudyViewer, platform: PlatformDep) -> StudyBest:
    with platform.read() as work:
        return study_best(work.session, study.load(work.session)[0])


@router.get("/{study}/trials", operation_id="list_trials", summary="A study's trials, by number")
def list_trials(study: StudyViewer, platform: PlatformDep, page: PageParams) -> Page[TrialView]:
    with platform.read() as work:
        row, _ = study.load(work.session)
        after = int(read_cursor(page.cursor, (int,))[0]) if page.cursor is not None else 0
        found = trial_views(work.session, row.id, after=after, limit=page.limit + 1)
    shown = found[: page.limit]
    return Page(items=shown, next_cursor=make_cursor(shown[-1].number) if len(found) > page.limit else None)


@router.post("/{study}/stop", operation_id="stop_study", summary="Stop a study and cancel its trials")
def stop_study(study: StudyMember, platform: PlatformDep, body: ReasonRequest | None = None) -> StudyDetail:
    """What its trials have found stays."""
    return _ask(platform, study, StudyEvent.STOP, body)


@router.post("/{study}/pause", operation_id="pause_study", summary="Begin no more trials for now")
def pause_study(study: StudyMember, platform: PlatformDep, body: ReasonRequest | None = None) -> StudyDetail:
    """Trials that run go on."""
    return _ask(platform, study, StudyEvent.PAUSE, body)


@router.post("/{study}/resume", operation_id="resume_study", summary="Go on with a paused study")
def resume_study(study: StudyMember, platform: PlatformDep, body: ReasonRequest | None = None) -> StudyDetail:
    return _ask(platform, study, StudyEvent.RESUME, body)


@router.post("/{study}/extend", operation_id="extend_study", summary="Add to a study's budget")
def extend_study(body: StudyExtend, study: StudyMember, platform: PlatformDep) -> StudyDetail:
    """One that has ended goes on."""
    with platform.write() as work:
        return study_detail(work.session, service.extend(work, study, body))


@router.delete("/{study}", operation_id="delete_study", summary="Forget an ended study", status_code=204)
def delete_study(study: StudyMember, platform: PlatformDep) -> None:
    """The jobs of its trials stay."""
    with platform.write() as work:
        service.delete(work, study)


@router.post("/{study}/suggestions", operation_id="suggest_trials", summary="Ask for points to try by yourself")
async def suggest_trials(study: StudyMember, platform: PlatformDep, body: SuggestRequest | None = None) -> Suggestions:
    """Of a study without a template. Each point is a trial that runs until it is told as complete."""
    return await asking.suggest(platform, study, body.count if body else 1)


@router.post("/{study}/trials/{number}/complete", operation_id="complete_trial", summary="Tell what a trial came to")
def complete_trial(body: TrialComplete, number: TrialNumber, study: StudyMember, platform: PlatformDep) -> TrialView:
    """Of a study without a template. Without a `result` the trial has failed."""
    with platform.write() as work:
        return asking.complete(work, study, number, body)


def _ask(platform: Platform, study: StudyAccess, event: StudyEvent, body: ReasonRequest | None) -> StudyDetail:
    with platform.write() as work:
        return study_detail(work.session, service.ask(work, study, event, body.reason if body else ""))


def _json(content: str, status: int = 200) -> Response:
    return Response(content, status, media_type="application/json")
