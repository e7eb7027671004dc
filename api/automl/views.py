"""An AutoML study as the wire shows it: its leaderboard, and the test of what was registered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.orm import Session
from trainmaster.studies import StudySpec
from trainmaster.wire.automl import AutomlDetail, AutomlRow, AutomlTest

from api.studies.views import study_view, winner_view
from core.db.repositories import studies
from core.db.repositories.metrics.reads import Filter, find_series
from core.db.tables import Event, Study
from core.domain.automl.columns import LEAKED
from core.domain.automl.space import FAMILY
from core.domain.automl.study import options_of
from core.domain.errors import NotFound
from core.domain.studies.results import values_of
from core.domain.studies.states import TrialState

_SERIES: Final = 2_000
_NOTE: Final = "train.note"  # of a job's own program, in its history
_NOTES: Final = 20
_TEST: Final = "test_"
_NO_INTERVAL: Final = (
    "No interval of 95 % is told: the tested rows, drawn again and again, all score the same, or have no score. That does not make "
    "it certain; more rows would tell."
)


def plan_view(spec: StudySpec) -> AutomlDetail:
    """Of a study that is not there yet."""
    return _about(spec.model_dump(mode="json"), spec)


def automl_detail(session: Session, row: Study, limit: int) -> AutomlDetail:
    """``limit``: lines of the leaderboard. Raises ``NotFound``: it is another study."""
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
    """Raises ``NotFound`` also where a study only has the label: anybody may write one, with any options."""
    options = options_of(raw)
    other = NotFound(f"Study {spec.name!r} is no AutoML study; `GET /api/v1/studies/{spec.name}` shows it.")
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
            families=[str(one) for one in spec.parameters[FAMILY].values or ()],
            notes=list(options.get("notes") or ()),
        )
    except (KeyError, TypeError, ValueError) as error:  # pydantic's is a ValueError
        raise other from error


def _leaderboard(session: Session, row: Study, spec: StudySpec, limit: int) -> list[AutomlRow]:
    metric = spec.metrics[0]
    found = []
    for trial in studies.ended_trials(session, row.id):
        values = values_of(trial.result, [metric.name])
        if values is not None:
            found.append((metric.sign * values[0], trial))
    ranked = sorted(found, key=lambda one: (one[0], one[1].number))[:limit]
    jobs = studies.jobs_of(session, row.id, [trial.number for _, trial in ranked])
    figures = _figures(session, [job for job in jobs.values() if job], metric.name)
    rows = []
    for rank, (cost, trial) in enumerate(ranked, start=1):
        job = jobs.get(trial.number)
        told = figures.get(job or "", {})
        rows.append(
            AutomlRow(
                rank=rank,
                trial=trial.number,
                family=str(trial.parameters.get(FAMILY, "")),
                score=metric.sign * cost,
                spread=told.get(f"{metric.name}_spread"),
                seconds=told.get("seconds"),
                is_whole=trial.state == TrialState.SUCCEEDED,
                parameters={name: value for name, value in trial.parameters.items() if name != FAMILY},
                job=job,
            )
        )
    return rows


def _leaks(session: Session, job_ids: Sequence[str]) -> list[str]:
    """What the trials found that nobody could see when the study was created, as in Parquet."""
    if not job_ids:
        return []
    told = select(Event.reason).where(Event.job_id.in_(job_ids), Event.kind == _NOTE, Event.reason.contains(LEAKED))
    return list(session.scalars(told.order_by(Event.id).limit(_NOTES)))


def _figures(session: Session, job_ids: Sequence[str], metric: str) -> dict[str, dict[str, float]]:
    if not job_ids:
        return {}
    only = Filter(names=[f"{metric}_spread", "seconds"], kind="scalar")
    found: dict[str, dict[str, float]] = {}
    for series in find_series(session, list(job_ids), only, limit=_SERIES):
        if series.last_value is not None:
            found.setdefault(series.owner_id, {})[series.name] = series.last_value
    return found


def _test(session: Session, job_id: str, about: AutomlDetail) -> AutomlTest | None:
    """``None``: it has not been tested yet."""
    metric = about.metric
    only = Filter(kind="scalar", without_prefix="system/")
    told = {
        series.name.removeprefix(_TEST): series.last_value
        for series in find_series(session, [job_id], only, limit=_SERIES)
        if series.name.startswith(_TEST) and series.last_value is not None
    }
    if metric not in told or "rows" not in told:
        return None
    own = {f"{metric}_low", f"{metric}_high", f"{metric}_baseline", "rows"}
    low, high, baseline = (told.get(f"{metric}_{what}") for what in ("low", "high", "baseline"))
    if low == high:  # also of runs from before such an interval was left out
        low = high = None
    return AutomlTest(
        score=told[metric],
        low=low,
        high=high,
        rows=int(told["rows"]),
        baseline=baseline,
        hint=_unsure(told[metric], baseline, about.goal)
        if low is None or high is None
        else _doubt(low if about.goal == "maximize" else high, baseline, about.goal),
        metrics={name: value for name, value in sorted(told.items()) if name not in own},
    )


def _unsure(score: float, baseline: float | None, goal: str) -> str:
    """Of a test without an interval."""
    if baseline is None or (score > baseline if goal == "maximize" else score < baseline):
        return _NO_INTERVAL
    return f"Not better than the baseline, which says the same of every row and scores {baseline:.4g} on these. {_NO_INTERVAL}"


def _doubt(nearest: float, baseline: float | None, goal: str) -> str:
    """Whether the baseline lies within the interval, or beyond it. ``nearest``: the interval's end on the baseline's side."""
    if baseline is None or (nearest > baseline if goal == "maximize" else nearest < baseline):
        return ""
    return (
        f"Not surely better than the baseline, which says the same of every row and scores {baseline:.4g} on these: the "
        "interval does not exclude that. More data would tell."
    )
