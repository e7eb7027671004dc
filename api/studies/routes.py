from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from fastapi import Path, Query, Response
from pydantic import Field
from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session
from trainmaster.spec import SpecError, with_changes
from trainmaster.spec.enums import role_order
from trainmaster.studies import StudySpec, parse_study
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
    TrialCurve,
    TrialView,
)

from api.app import audit
from api.app.unit_of_work import AppContext, AppContextDep, UnitOfWork
from api.auth import Caller, Reader, Writer
from api.http.paging import FILTER_LIMIT, FilterValues, PageParams, PageQuery, make_cursor, newest_rows, read_cursor
from api.http.routing import json_response, new_router
from api.jobs.routes import REPLAYED, IdempotencyKey
from api.jobs.service import clone_name, digest_of, invalid_spec
from api.studies import ask_tell, service
from api.studies.access import StudyAccess, StudyMember, StudyViewer
from api.studies.views import results, study_best, study_detail, study_views, trial_views
from core.db.repositories.metrics.reads import SeriesFilter, StoredSeries, find_series, read_points
from core.db.tables import Study, Trial, User
from core.domain.studies.curves import make_curve, thinned
from core.domain.studies.states import StudyEvent, StudyState, TrialState

# The row of an ended trial may be committed later than its ``ended_at``.
_OVERLAP: Final = timedelta(seconds=30)
_REASON_CHARS: Final = 300  # characters; the trial itself has the full text
_RUNNING_LIMIT: Final = 50
_POINT_LIMIT: Final = 5_000


def trial_columns(session: Session, row: Study, since: datetime | None, now: datetime) -> TrialColumns:
    """All trials; with ``since``, the running ones and those that ended after it."""
    spec = StudySpec.model_validate(row.spec)
    query = select(
        Trial.number, Trial.state, Trial.parameters, Trial.result, Trial.reason, Trial.job_id, Trial.created_at,
        Trial.ended_at,
    ).where(Trial.study_id == row.id)  # fmt: skip
    if since is not None:
        query = query.where(or_(Trial.ended_at.is_(None), Trial.ended_at >= since - _OVERLAP))
    rows = session.execute(query.order_by(Trial.number)).all()
    return TrialColumns(
        number=[trial.number for trial in rows],
        state=[trial.state for trial in rows],
        job=[trial.job_id for trial in rows],
        reason=[trial.reason[:_REASON_CHARS] for trial in rows],
        created_at=[trial.created_at for trial in rows],
        ended_at=[trial.ended_at for trial in rows],
        parameters={name: [trial.parameters.get(name) for trial in rows] for name in spec.parameters},
        metrics={metric.name: [(trial.result or {}).get(metric.name) for trial in rows] for metric in spec.metrics},
        until=now,
    )


def study_curves(session: Session, row: Study, limit: int) -> StudyCurves:
    """Up to ``limit`` curves: of running trials, and of ended trials half the best and half the newest ones."""
    spec = StudySpec.model_validate(row.spec)
    metric = spec.metrics[0]
    with_curve = (Trial.study_id == row.id, Trial.curve.is_not(None))
    running = _running_curves(session, row.id, metric.name, min(limit, _RUNNING_LIMIT))
    total = session.execute(select(func.count()).where(*with_curve)).scalar_one() + len(running)
    room = max(0, limit - len(running))
    ranked = sorted(results(session, row.id, spec), key=lambda item: (metric.sign * item.values[0], item.number))
    chosen = {item.number for item in ranked[: room // 2]}
    newest = select(Trial.number).where(*with_curve, Trial.number.not_in(chosen)).order_by(Trial.number.desc())
    chosen |= set(session.scalars(newest.limit(room - len(chosen))))
    query = select(Trial.number, Trial.state, Trial.job_id, Trial.curve).where(*with_curve, Trial.number.in_(chosen))
    over = [
        TrialCurve(number=item.number, state=item.state, job=item.job_id, **_finite(item.curve))
        for item in session.execute(query)
    ]
    shown = sorted([*over, *running], key=lambda item: item.number)
    return StudyCurves(metric=metric.name, curves=[item for item in shown if item.steps], total=total)


def _running_curves(session: Session, study_id: str, metric: str, limit: int) -> list[TrialCurve]:
    """Curves of the newest running trials: the first replica's reports, over all attempts."""
    query = select(Trial.number, Trial.job_id).where(
        Trial.study_id == study_id, Trial.state == TrialState.RUNNING.value, Trial.job_id.is_not(None)
    )
    numbers = {item.job_id: item.number for item in session.execute(query.order_by(Trial.number.desc()).limit(limit))}
    if not numbers:
        return []
    first: dict[tuple[str, int], StoredSeries] = {}
    for series in find_series(
        session, list(numbers), SeriesFilter(names=[metric], kind="scalar"), limit=20 * _RUNNING_LIMIT
    ):
        known = first.get((series.owner_id, series.attempt))
        if known is None or _weight(series) < _weight(known):
            first[series.owner_id, series.attempt] = series
    points: dict[str, list[tuple[int, float]]] = {}
    for (job, _), series in sorted(first.items(), key=lambda item: item[0]):
        read = read_points(session, series, max(0, series.count - _POINT_LIMIT), _POINT_LIMIT)
        points.setdefault(job, []).extend(zip(read.steps, read.values, strict=True))
    found = []
    for job, reported in points.items():
        curve = thinned(make_curve(numbers[job], reported))
        found.append(
            TrialCurve(
                number=numbers[job], state="running", job=job, steps=list(curve.steps), values=list(curve.values)
            )
        )
    return [item for item in found if item.steps]


def _finite(curve: Any) -> dict[str, Any]:
    return {"steps": curve["steps"], "values": curve["values"]}


def _weight(series: StoredSeries) -> tuple[tuple[int, str], int]:
    return role_order(series.role), series.index


def cloned_spec(session: Session, caller: Caller, original: Study, body: StudyClone) -> StudySpec:
    """The canonical spec of the clone. Without a ``name`` among the changes it gets the next free one.

    Raises:
        InvalidSpec: all mistakes in it.
    """
    # Fields that other protocols, such as Vertex AI's, store next to the spec belong to the original alone.
    spec = {key: item for key, item in original.spec.items() if key in StudySpec.model_fields}
    raw = changed_spec(spec, body.changes)
    if body.changes.get("name") is None:
        raw["name"] = clone_name(session, caller, original)
    if body.warm_start:
        raw["warm_start"] = _with_study(raw.get("warm_start"), original.id)
    try:
        return parse_study(raw)
    except SpecError as error:
        raise invalid_spec(error) from error


def changed_spec(spec: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``changes`` merged into ``spec`` as a JSON merge patch (RFC 7396): null removes, objects merge, the rest
    replaces.

    Shorthands apply, too: those of jobs below ``template``, and ``metric`` and ``goal``. The template's name and output
    are dropped: the clone's trials would write to the original's output. ``changes`` may state an output.
    """
    raw = with_changes(spec, {key: item for key, item in changes.items() if key != "template"})
    if "template" in changes or isinstance(raw.get("template"), dict):
        raw["template"] = _template(raw.get("template"), changes.get("template", {}))
    if changes.keys() & {"metric", "goal"} and "metrics" not in changes:
        (first, *_) = raw.pop("metrics")
        raw = {"metric": first["name"], "goal": first["goal"], **raw}
    parameters = changes.get("parameters")
    # A value that is not a mapping is reported when the whole spec is parsed.
    for name, parameter in parameters.items() if isinstance(parameters, Mapping) else ():
        # A parameter of another type keeps no field of the original.
        if isinstance(parameter, Mapping) and "type" in parameter and name in spec["parameters"]:
            raw["parameters"][name] = dict(parameter)
    return {key: item for key, item in raw.items() if item is not None}


def _with_study(earlier: Any, study_id: str) -> Any:
    """The studies to warm-start from, with ``study_id`` added. An invalid value is kept, and refused by the parser."""
    named = [earlier] if isinstance(earlier, str) else [] if earlier is None else earlier
    if not isinstance(named, list | tuple) or study_id in named:
        return named
    return [*named, study_id]


def _template(spec: Any, changes: Any) -> Any:
    if not isinstance(changes, Mapping):
        return changes  # null: no template; the parser refuses anything else
    inherited = {key: item for key, item in (spec or {}).items() if key not in ("name", "output", "project")}
    return with_changes(inherited, changes)


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
        audit.skip()
        service.demand_room(context, draft)
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
        return study_detail(work.session, study.load(work.session)[0], work.now)


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
    return await service.importance(context, study, metric)


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
    return await service.prediction(context, study, more)


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
        audit.skip()
        service.demand_room(context, draft)
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
        return study_detail(work.session, service.extend(work, study, body), work.now)


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
        changed = service.request_transition(work, study, event, body.reason if body else "")
        return study_detail(work.session, changed, work.now)


def _created(work: UnitOfWork, made: service.StudyCreated) -> Response:
    headers = {} if made.is_new else {REPLAYED: "true"}
    return json_response(study_detail(work.session, made.row, work.now), 201, headers)
