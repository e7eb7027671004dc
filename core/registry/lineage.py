"""Lineage of a model version, recorded at its registration: the job itself may be deleted later."""

from __future__ import annotations

import math
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.orm import Session
from trainmaster.spec.enums import role_order
from trainmaster.wire.models import ModelLineage

from core.db.repositories.metrics.reads import SeriesFilter, StoredSeries, find_names, find_series
from core.db.repositories.metrics.steps import values_at
from core.db.tables import Attempt, Checkpoint, Job, MlflowRun, Trial, User
from core.domain.metrics.points import SYSTEM

_SERIES: Final = 500
_NAMES: Final = 200
_PARAMETERS: Final = 500


def lineage_of(session: Session, job: Job, *, checkpoint: str | None, step: int | None, user: str) -> ModelLineage:
    """The job as it is now. ``checkpoint``: its path; then the metrics are those of its step. ``user``: who registers
    it.
    """
    spec: dict[str, Any] = job.spec
    roles: dict[str, Any] = spec.get("roles") or {}
    attempt = job.attempt_count or None
    metrics: dict[str, float] = {}
    if checkpoint is not None:
        job_spec = session.execute(
            select(Checkpoint, Attempt.number)
            .join(Attempt, Attempt.id == Checkpoint.attempt_id)
            .where(Checkpoint.job_id == job.id, Checkpoint.path == checkpoint)
        ).one_or_none()
        if job_spec is not None:
            attempt, step = job_spec[1], job_spec[0].step if job_spec[0].step is not None else step
            metrics = _finite(job_spec[0].metrics)
        if step is not None and not metrics:
            metrics = _metrics_at(session, job.id, step)
    else:
        metrics = _last_metrics(session, job.id)
    trial = job.trial or {}
    if trial and checkpoint is None:
        row = session.get(Trial, (trial["study_id"], trial["number"]))
        if row is not None and row.job_id == job.id:  # not the rerun of the best trial, which has its own
            metrics |= _finite(row.result or {})
    return ModelLineage(
        job=job.id,
        job_name=job.name,
        job_state=job.state,
        attempt=attempt,
        user=user or session.scalars(select(User.name).where(User.id == job.user_id)).first() or "",
        code=spec.get("code"),
        images={name: image for name, role in roles.items() if (image := role.get("image") or spec.get("image"))},
        commands={
            name: _line(role.get("command") or spec.get("command"), role.get("args") or spec.get("args"))
            for name, role in roles.items()
        },
        data=_data(spec),
        parameters=_parameters(session, job),
        metrics=metrics,
        step=step,
        study=trial.get("study"),
        study_id=trial.get("study_id"),
        trial=trial.get("number"),
        cloned_from=job.cloned_from,
        spec=spec,
    )


def lineage_of_upload(location: str, *, user: str) -> ModelLineage:
    """The training is unknown. ``location``: volume/path."""
    return ModelLineage(job="", job_name="", user=user, data=[location])


def _line(command: Any, args: Any) -> str:
    words = [command] if isinstance(command, str) else [str(word) for word in command or ()]
    return " ".join([*words, *(str(arg) for arg in args or ())])


def _data(spec: dict[str, Any]) -> list[str]:
    mounts = [f"{mount['volume']}/{mount.get('path') or ''}".rstrip("/") for mount in spec.get("mounts") or ()]
    return [*([str(spec["input"])] if spec.get("input") else []), *mounts]


def _parameters(session: Session, job: Job) -> dict[str, Any]:
    """Of its trial, and as logged to MLflow in the newest run."""
    query = select(MlflowRun.params).where(MlflowRun.job_id == job.id, MlflowRun.is_deleted.is_(False))
    run = session.scalars(query.order_by(MlflowRun.started_at.desc(), MlflowRun.id).limit(1)).first()
    found = {**(run or {}), **(job.trial or {}).get("parameters", {})}
    return dict(list(found.items())[:_PARAMETERS])


def _metrics_at(session: Session, job_id: str, step: int) -> dict[str, float]:
    names = [
        row.name
        for row in find_names(session, job_id, SeriesFilter(kind="scalar", without_prefix=SYSTEM), limit=_NAMES)
    ]
    return values_at(session, job_id, [step], names, replicas=2).get(step, {}) if names else {}


def _last_metrics(session: Session, job_id: str) -> dict[str, float]:
    """The last value of each: of the newest attempt, the chief before a worker, the first replica of a role."""
    best: dict[str, StoredSeries] = {}
    for series in find_series(session, [job_id], SeriesFilter(kind="scalar", without_prefix=SYSTEM), limit=_SERIES):
        if series.last_value is None or not math.isfinite(series.last_value):
            continue
        known = best.get(series.name)
        if known is None or _weight(series) < _weight(known):
            best[series.name] = series
    return {name: series.last_value for name, series in sorted(best.items())[:_NAMES] if series.last_value is not None}


def _weight(series: StoredSeries) -> tuple[Any, ...]:
    return (-series.attempt, role_order(series.role), series.index)


def _finite(values: Any) -> dict[str, float]:
    return {
        str(name): float(value)
        for name, value in dict(values).items()
        if isinstance(value, (int, float)) and math.isfinite(value)
    }
