"""AutoML studies: their creation, and their REST view with the leaderboard and the test of the registered model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from fastapi import Query, Response
from sqlalchemy import select
from sqlalchemy.orm import Session
from trainmaster.studies import StudySpec
from trainmaster.wire.automl import AutomlCreate, AutomlDetail, AutomlRow, AutomlTest

from api.app import audit
from api.app.unit_of_work import AppContextDep, UnitOfWork
from api.auth import Writer
from api.automl import service
from api.http.routing import json_response, new_router
from api.jobs.routes import REPLAYED, IdempotencyKey
from api.jobs.service import digest_of
from api.studies.access import StudyViewer
from api.studies.service import StudyCreated, create, created_before
from api.studies.views import study_view, winner_view
from core.db.repositories import studies
from core.db.repositories.metrics.reads import SeriesFilter, find_series
from core.db.tables import Event, Study
from core.domain.automl.columns import LEAKED
from core.domain.automl.space import FAMILY
from core.domain.automl.study import options_of
from core.domain.errors import NotFound
from core.domain.studies.results import values_of
from core.domain.studies.states import TrialState

router = new_router("automl", "/automl")

_LINES: Final = 100  # of the leaderboard
_SERIES_LIMIT: Final = 2_000
_NOTE: Final = "train.note"  # event kind of notes that the job's own program reports
_NOTE_LIMIT: Final = 20
_TEST_PREFIX: Final = "test_"
_NO_INTERVAL: Final = (
    "There is no 95 % confidence interval: all bootstrap samples of the test rows have the same score, or no score. "
    "The score is not certain; test with more rows."
)


@router.post(
    "",
    operation_id="create_automl",
    summary="Find the best model for a table or a folder of images",
    status_code=201,
    response_model=AutomlDetail,
    responses={200: {"model": AutomlDetail, "description": "With `dry_run`: the plan; nothing was created."}},
)
def create_automl(body: AutomlCreate, caller: Writer, context: AppContextDep, key: IdempotencyKey = None) -> Response:
    """Profile the data, then create a study that runs by itself. At its end the best model is tested on data that no
    trial used, and registered. Needs the role `member` in the project.
    """
    digest = digest_of("automl", body.model_dump(mode="json", exclude={"wait_for_nodes"}))
    if not body.dry_run:
        with context.read() as work:
            before = created_before(work, caller, key, digest)
            if before is not None:
                return _created(work, before)
    plan = service.plan(context, caller, body)
    if body.dry_run:
        audit.skip()
        return json_response(_plan_view(plan.spec))
    with context.write() as work:
        made = create(work, caller, plan.draft, f"AutoML on {body.data}", key=key, digest=digest)
        return _created(work, made)


@router.get("/{study}", operation_id="get_automl", summary="An AutoML study with its leaderboard and the final test")
def get_automl(
    study: StudyViewer,
    context: AppContextDep,
    limit: Annotated[int, Query(ge=1, le=1000, description="Lines of the leaderboard.")] = _LINES,
) -> AutomlDetail:
    """404 also for a study that AutoML did not create."""
    with context.read() as work:
        return _detail_of(work.session, study.load(work.session)[0], limit)


def _created(work: UnitOfWork, made: StudyCreated) -> Response:
    headers = None if made.is_new else {REPLAYED: "true"}
    return json_response(_detail_of(work.session, made.row, _LINES), 201, headers)


def _plan_view(spec: StudySpec) -> AutomlDetail:
    """The view of a study that does not exist yet."""
    return _about(spec.model_dump(mode="json"), spec)


def _detail_of(session: Session, row: Study, limit: int) -> AutomlDetail:
    """``limit``: rows of the leaderboard. Raises ``NotFound`` if AutoML did not create the study."""
    spec = StudySpec.model_validate(row.spec)
    about = _about(row.spec, spec)
    view = study_view(session, row)
    winner = winner_view(session, row)
    board = _leaderboard(session, row, spec, limit)
    jobs = [board[0].job if board else None, None if winner is None else winner.job]
    return about.model_copy(
        update={
            "notes": list(dict.fromkeys([*about.notes, *_leaks(session, [job for job in jobs if job])])),
            "project": view.project,
            "id": row.id,
            "state": view.state,
            "reason": row.reason or row.note,
            "trials": view.trials,
            "leaderboard": board,
            "winner": winner,
            "test": None if winner is None or winner.job is None else _test(session, winner.job, about),
        }
    )


def _about(raw: Mapping[str, Any], spec: StudySpec) -> AutomlDetail:
    """Raises ``NotFound`` also for a study with only AutoML's label: any user can write that, with any options."""
    options = options_of(raw)
    other = NotFound(f"Study {spec.name!r} is not an AutoML study; `GET /api/v1/studies/{spec.name}` shows it.")
    if options is None or FAMILY not in spec.parameters:
        raise other
    try:
        return AutomlDetail(
            name=spec.name,
            project=spec.project,
            kind=options["kind"],
            task=options["task"],
            metric=spec.metrics[0].name,
            goal=spec.metrics[0].goal.value,
            target=options.get("target"),
            data=str(options.get("data") or (spec.template.input if spec.template else "")),
            families=[str(family) for family in spec.parameters[FAMILY].values or ()],
            notes=list(options.get("notes") or ()),
        )
    except (KeyError, TypeError, ValueError) as error:  # pydantic's ValidationError is a ValueError
        raise other from error


def _leaderboard(session: Session, row: Study, spec: StudySpec, limit: int) -> list[AutomlRow]:
    metric = spec.metrics[0]
    found = []
    for trial in studies.ended_trials(session, row.id):
        values = values_of(trial.result, [metric.name])
        if values is not None:
            found.append((metric.sign * values[0], trial))
    ranked = sorted(found, key=lambda scored: (scored[0], scored[1].number))[:limit]
    jobs = studies.jobs_of(session, row.id, [trial.number for _, trial in ranked])
    scalars_of_jobs = _last_scalars(session, [job for job in jobs.values() if job], metric.name)
    rows = []
    for rank, (cost, trial) in enumerate(ranked, start=1):
        job = jobs.get(trial.number)
        scalars = scalars_of_jobs.get(job or "", {})
        rows.append(
            AutomlRow(
                rank=rank,
                trial=trial.number,
                family=str(trial.parameters.get(FAMILY, "")),
                score=metric.sign * cost,
                spread=scalars.get(f"{metric.name}_spread"),
                seconds=scalars.get("seconds"),
                is_whole=trial.state == TrialState.SUCCEEDED,
                parameters={name: value for name, value in trial.parameters.items() if name != FAMILY},
                job=job,
            )
        )
    return rows


def _leaks(session: Session, job_ids: Sequence[str]) -> list[str]:
    """Target leaks that the trials reported: in Parquet, for example, profiling could not find them."""
    if not job_ids:
        return []
    notes = select(Event.reason).where(Event.job_id.in_(job_ids), Event.kind == _NOTE, Event.reason.contains(LEAKED))
    return list(session.scalars(notes.order_by(Event.id).limit(_NOTE_LIMIT)))


def _last_scalars(session: Session, job_ids: Sequence[str], metric: str) -> dict[str, dict[str, float]]:
    if not job_ids:
        return {}
    only = SeriesFilter(names=[f"{metric}_spread", "seconds"], kind="scalar")
    found: dict[str, dict[str, float]] = {}
    for series in find_series(session, list(job_ids), only, limit=_SERIES_LIMIT):
        if series.last_value is not None:
            found.setdefault(series.owner_id, {})[series.name] = series.last_value
    return found


def _test(session: Session, job_id: str, about: AutomlDetail) -> AutomlTest | None:
    """``None``: the model has not been tested yet."""
    metric = about.metric
    only = SeriesFilter(kind="scalar", without_prefix="system/")
    scalars = {
        series.name.removeprefix(_TEST_PREFIX): series.last_value
        for series in find_series(session, [job_id], only, limit=_SERIES_LIMIT)
        if series.name.startswith(_TEST_PREFIX) and series.last_value is not None
    }
    if metric not in scalars or "rows" not in scalars:
        return None
    own = {f"{metric}_low", f"{metric}_high", f"{metric}_baseline", "rows"}
    low, high, baseline = (scalars.get(f"{metric}_{what}") for what in ("low", "high", "baseline"))
    if low == high:  # older runs reported such an interval
        low = high = None
    return AutomlTest(
        score=scalars[metric],
        low=low,
        high=high,
        rows=int(scalars["rows"]),
        baseline=baseline,
        hint=_hint_without_interval(scalars[metric], baseline, about.goal)
        if low is None or high is None
        else _significance_hint(low if about.goal == "maximize" else high, baseline, about.goal),
        metrics={name: value for name, value in sorted(scalars.items()) if name not in own},
    )


def _hint_without_interval(score: float, baseline: float | None, goal: str) -> str:
    """The hint for a test without a confidence interval."""
    if baseline is None or (score > baseline if goal == "maximize" else score < baseline):
        return _NO_INTERVAL
    return (
        f"Not better than the baseline, which predicts the same for every row and scores {baseline:.4g} on the test "
        f"rows. {_NO_INTERVAL}"
    )


def _significance_hint(nearest: float, baseline: float | None, goal: str) -> str:
    """The hint for a test whose interval does not exclude the baseline.

    ``nearest``: the interval's end on the baseline's side.
    """
    if baseline is None or (nearest > baseline if goal == "maximize" else nearest < baseline):
        return ""
    return (
        f"Not significantly better than the baseline, which predicts the same for every row and scores {baseline:.4g} "
        "on the test rows: the confidence interval includes that. More data would narrow it."
    )
