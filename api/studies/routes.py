from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated

from fastapi import Path, Query, Response
from pydantic import Field
from sqlalchemy import or_, select
from trainmaster.studies import StudySpec
from trainmaster.studies.model import MAX_TRIALS
from trainmaster.wire.base import Page
from trainmaster.wire.jobs import ReasonRequest
from trainmaster.wire.studies import (
    StudyBest,
    StudyClone,
    StudyCreate,
    StudyCurves,
    StudyDetail,
    StudyExtend,
    StudyImportance,
    StudyPrediction,
    StudyView,
    Suggestions,
    SuggestRequest,
    TrialColumns,
    TrialComplete,
    TrialView,
)

from api.app.unit_of_work import AppContext, AppContextDep, UnitOfWork
from api.auth import Reader, Writer
from api.http.paging import FILTER_LIMIT, FilterValues, PageParams, PageQuery, make_cursor, newest_rows, read_cursor
from api.http.routing import json_response, new_router
from api.jobs.routes import REPLAYED, IdempotencyKey
from api.jobs.service import digest_of
from api.studies import ask_tell, insight, service
from api.studies.access import StudyAccess, StudyMember, StudyViewer
from api.studies.cloning import cloned_spec
from api.studies.columns import study_curves, trial_columns
from api.studies.views import study_best, study_detail, study_views, trial_views
from core.db.tables import Study, User
from core.domain.studies.states import StudyEvent, StudyState

router = new_router("studies", "/studies")

TrialNumber = Annotated[int, Path(ge=1, le=2**31 - 1, description="The trial's number, from 1.")]


class StudyQuery(PageQuery):
    """The filters of a list of studies. A repeated filter matches any of its values."""

    project: Annotated[FilterValues, Field(description="Names of projects.")] = ()
    state: Annotated[tuple[StudyState, ...], Field(max_length=FILTER_LIMIT)] = ()
    user: FilterValues = ()
    search: Annotated[str, Field(max_length=100, description="Part of the name, or an id.")] = ""


@router.post(
    "",
    operation_id="create_study",
    summary="Create a study",
    status_code=201,
    response_model=StudyDetail,
    responses={200: {"model": StudySpec, "description": "With `dry_run`: the canonical spec; nothing was created."}},
)
def create_study(body: StudyCreate, caller: Writer, context: AppContextDep, key: IdempotencyKey = None) -> Response:
    """Its first trials start at once. All mistakes of the spec are reported at once. Needs the role `member` in the
    project.
    """
    spec = service.read_study(body)
    digest = digest_of("study", spec.model_dump(mode="json"))
    with context.read() as work:
        before = None if body.dry_run else service.created_before(work, caller, key, digest)
        if before is not None:
            return _created(work, before)
    draft = service.check_study(context, caller, spec)
    if not body.wait_for_nodes:
        service.demand_feasible(context, caller, draft)
    if body.dry_run:
        return json_response(spec)
    with context.write() as work:
        return _created(work, service.create(work, caller, draft, key=key, digest=digest))


@router.get("", operation_id="list_studies", summary="Studies, newest first")
def list_studies(query: Annotated[StudyQuery, Query()], caller: Reader, context: AppContextDep) -> Page[StudyView]:
    with context.read() as work:
        rows = select(Study).where(Study.deleted_at.is_(None))
        project_ids = caller.project_ids(work.session, query.project)
        if project_ids is not None:
            rows = rows.where(Study.project_id.in_(project_ids))
        if query.state:
            rows = rows.where(Study.state.in_([state.value for state in query.state]))
        if query.user:
            rows = rows.where(Study.user_id.in_(select(User.id).where(User.name.in_(query.user))))
        wanted = query.search.replace("\0", "").strip()
        if wanted:
            rows = rows.where(or_(Study.name.icontains(wanted, autoescape=True), Study.id == wanted))
        found, cursor = newest_rows(work.session, rows, Study, query)
        return Page(items=study_views(work.session, [row[0] for row in found]), next_cursor=cursor)


@router.get("/{study}", operation_id="get_study", summary="One study with its spec and its best result over time")
def get_study(study: StudyViewer, context: AppContextDep) -> StudyDetail:
    with context.read() as work:
        return study_detail(work.session, study.load(work.session)[0])


@router.get("/{study}/best", operation_id="get_study_best", summary="The best trial, or the Pareto front")
def get_study_best(study: StudyViewer, context: AppContextDep) -> StudyBest:
    with context.read() as work:
        return study_best(work.session, study.load(work.session)[0])


@router.get("/{study}/trials", operation_id="list_trials", summary="A study's trials, by number")
def list_trials(study: StudyViewer, context: AppContextDep, page: PageParams) -> Page[TrialView]:
    with context.read() as work:
        row, _ = study.load(work.session)
        after = int(read_cursor(page.cursor, (int,))[0]) if page.cursor is not None else 0
        found = trial_views(work.session, row.id, after=after, limit=page.limit + 1)
    shown = found[: page.limit]
    return Page(items=shown, next_cursor=make_cursor(shown[-1].number) if len(found) > page.limit else None)


@router.get("/{study}/columns", operation_id="get_trial_columns", summary="A study's trials in columns, for charts")
def get_trial_columns(
    study: StudyViewer,
    context: AppContextDep,
    since: Annotated[
        datetime | None, Query(description="`until` of an earlier response: only changes since then.")
    ] = None,
) -> TrialColumns:
    """Ended trials never change: with the last `until` as `since`, the response has running and newly ended trials
    only.
    """
    with context.read() as work:
        if since is not None and since.tzinfo is None:
            since = since.replace(tzinfo=UTC)
        return trial_columns(work.session, study.load(work.session)[0], since, work.now)


@router.get("/{study}/curves", operation_id="get_study_curves", summary="Learning curves of trials")
def get_study_curves(
    study: StudyViewer,
    context: AppContextDep,
    limit: Annotated[int, Query(ge=1, le=200, description="Maximum number of curves.")] = 60,
) -> StudyCurves:
    """Curves of running, best and newest trials; of the first metric, each thinned to 200 points."""
    with context.read() as work:
        return study_curves(work.session, study.load(work.session)[0], limit)


@router.get("/{study}/importance", operation_id="get_study_importance", summary="Importance of the parameters")
async def get_study_importance(
    study: StudyViewer,
    context: AppContextDep,
    metric: Annotated[
        str | None, Query(max_length=200, description="One of several metrics; unstated: all metrics together.")
    ] = None,
) -> StudyImportance:
    """By PED-ANOVA, conditional parameters included. Cached until another trial has a result."""
    return await insight.importance(context, study, metric)


@router.get(
    "/{study}/prediction", operation_id="get_study_prediction", summary="Prediction of the best after more trials"
)
async def get_study_prediction(
    study: StudyViewer,
    context: AppContextDep,
    more: Annotated[
        int | None,
        Query(
            ge=1,
            le=MAX_TRIALS,
            description="Further trials; unstated: the rest of the budget, or as many as there were.",
        ),
    ] = None,
) -> StudyPrediction:
    """An extrapolation of the best result with an 80 % interval, or the reason why there is none."""
    return await insight.prediction(context, study, more)


@router.post(
    "/{study}/clone",
    operation_id="clone_study",
    summary="Create a study from another one's spec",
    status_code=201,
    response_model=StudyDetail,
    responses={200: {"model": StudySpec, "description": "With `dry_run`: the canonical spec; nothing was created."}},
)
def clone_study(
    body: StudyClone, study: StudyViewer, caller: Writer, context: AppContextDep, key: IdempotencyKey = None
) -> Response:
    """Needs the role `member` in the new study's project, and `viewer` in the original's."""
    with context.read() as work:
        original, _ = study.load(work.session)
        origin, name = original.id, original.name
        digest = digest_of("study clone", {"study": origin, **body.model_dump(mode="json")})
        before = None if body.dry_run else service.created_before(work, caller, key, digest)
        if before is not None:
            return _created(work, before)
        spec = cloned_spec(work.session, caller, original, body)
    draft = replace(service.check_study(context, caller, spec), cloned_from=origin)
    if not body.wait_for_nodes:
        service.demand_feasible(context, caller, draft)
    if body.dry_run:
        return json_response(spec)
    with context.write() as work:
        reason = f"cloned from {name} ({origin})"
        return _created(work, service.create(work, caller, draft, reason, key=key, digest=digest))


@router.post("/{study}/stop", operation_id="stop_study", summary="Stop a study and cancel its trials")
def stop_study(study: StudyMember, context: AppContextDep, body: ReasonRequest | None = None) -> StudyDetail:
    """The results of its trials stay."""
    return _apply(context, study, StudyEvent.STOP, body)


@router.post("/{study}/pause", operation_id="pause_study", summary="Pause a study")
def pause_study(study: StudyMember, context: AppContextDep, body: ReasonRequest | None = None) -> StudyDetail:
    """No new trials start; running trials continue."""
    return _apply(context, study, StudyEvent.PAUSE, body)


@router.post("/{study}/resume", operation_id="resume_study", summary="Resume a paused study")
def resume_study(study: StudyMember, context: AppContextDep, body: ReasonRequest | None = None) -> StudyDetail:
    return _apply(context, study, StudyEvent.RESUME, body)


@router.post("/{study}/extend", operation_id="extend_study", summary="Add to a study's budget")
def extend_study(body: StudyExtend, study: StudyMember, context: AppContextDep) -> StudyDetail:
    """A study that has ended continues."""
    with context.write() as work:
        return study_detail(work.session, service.extend(work, study, body))


@router.delete("/{study}", operation_id="delete_study", summary="Delete an ended study", status_code=204)
def delete_study(study: StudyMember, context: AppContextDep) -> None:
    """The jobs of its trials stay."""
    with context.write() as work:
        service.delete(work, study)


@router.post("/{study}/suggestions", operation_id="suggest_trials", summary="Ask for trials to run yourself")
async def suggest_trials(
    study: StudyMember,
    context: AppContextDep,
    response: Response,
    body: SuggestRequest | None = None,
    key: IdempotencyKey = None,
) -> Suggestions:
    """For a study without a template. Each trial runs until it is completed, or until it gets no heartbeat for the
    study's `lost_after`.
    """
    request = ask_tell.SuggestionRequest(key=key)
    if body is not None:
        request = ask_tell.SuggestionRequest(body.count, body.client, key)
    answer = await ask_tell.suggest(context, study, request)
    if not answer.is_new:
        response.headers[REPLAYED] = "true"
    return answer.suggestions


@router.post(
    "/{study}/trials/{number}/heartbeat", operation_id="heartbeat_trial", summary="Send a heartbeat of a trial"
)
def heartbeat_trial(number: TrialNumber, study: StudyMember, context: AppContextDep) -> TrialView:
    """For a study without a template. Restarts the trial's timeout (`lost_after`); `state` says whether it still
    runs.
    """
    with context.write() as work:
        return ask_tell.heartbeat(work, study, number)


@router.post("/{study}/trials/{number}/complete", operation_id="complete_trial", summary="Tell the result of a trial")
def complete_trial(body: TrialComplete, number: TrialNumber, study: StudyMember, context: AppContextDep) -> TrialView:
    """For a study without a template. Without a `result` the trial has failed."""
    with context.write() as work:
        return ask_tell.complete(work, study, number, body)


def _apply(context: AppContext, study: StudyAccess, event: StudyEvent, body: ReasonRequest | None) -> StudyDetail:
    with context.write() as work:
        return study_detail(work.session, service.request_transition(work, study, event, body.reason if body else ""))


def _created(work: UnitOfWork, made: service.StudyCreated) -> Response:
    headers = {} if made.is_new else {REPLAYED: "true"}
    return json_response(study_detail(work.session, made.row), 201, headers)
