"""Logged models as in MLflow 3: separate from runs, with files, tags and metrics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from api.app.unit_of_work import UnitOfWork
from api.protocols.kit.json_values import json_double
from api.protocols.mlflow.callers import ReadScope, ScriptAttempt
from api.protocols.mlflow.filters import ValueReader, in_order, parse_filter, parse_order
from api.protocols.mlflow.runs import RunFacts, bounded_inputs, set_params, set_tags
from api.protocols.mlflow.schemas import CreateModel, LoggedMetric, SearchModels
from api.protocols.mlflow.search import page_start
from api.protocols.mlflow.views import artifact_uri, ms, pairs
from core.db.tables import MlflowModel
from core.domain.errors import Forbidden, InvalidRequest, NotFound
from core.ids import new_id

_STATUSES: Final = ("", "LOGGED_MODEL_PENDING", "LOGGED_MODEL_READY", "LOGGED_MODEL_UPLOAD_FAILED")
_MODELS_OF_JOB: Final = 10_000
_METRICS_OF_MODEL: Final = 1_000
_SCANNED: Final = 2_000
_KEYS: Final = frozenset(
    {"name", "model_id", "model_type", "status", "source_run_id", "creation_timestamp", "last_updated_timestamp"}
)


def create_model(work: UnitOfWork, attempt: ScriptAttempt, run: RunFacts, sent: CreateModel) -> MlflowModel:
    count = select(func.count()).where(MlflowModel.job_id == attempt.job_id)
    if work.session.execute(count).scalar_one() >= _MODELS_OF_JOB:
        raise Forbidden(f"This job has logged {_MODELS_OF_JOB} models already; delete none of them, but log fewer.")
    model_id = new_id("m")
    model = MlflowModel(
        id=model_id,
        project_id=attempt.project_id,
        job_id=attempt.job_id,
        run_id=run.id,
        name=sent.name or f"model-{model_id[-6:]}",
        kind=sent.model_type,
        status=_STATUSES[1],
        params={},
        tags={},
        metrics=[],
        created_at=work.now,
        updated_at=work.now,
    )
    set_params(model, sent.params)
    set_tags(model, sent.tags)
    work.session.add(model)
    work.session.flush()
    return model


def find_model(session: Session, scope: ReadScope, model_id: str, *, is_locked: bool = False) -> MlflowModel:
    """A readable model. Raises ``NotFound``."""
    query = select(MlflowModel).where(MlflowModel.id == model_id)
    model = session.execute(query.with_for_update() if is_locked else query).scalar_one_or_none()
    if model is None or not scope.has_job(model.project_id, model.job_id):
        raise NotFound(f"There is no logged model {model_id!r} that you may see.")
    return model


def own_model(work: UnitOfWork, attempt: ScriptAttempt, model_id: str) -> MlflowModel:
    """A model of the attempt's job, locked for an update. Raises ``NotFound``."""
    model = find_model(work.session, attempt.scope, model_id, is_locked=True)
    model.updated_at = work.now
    return model


def finalize(model: MlflowModel, status: str | int) -> None:
    name = _STATUSES[status] if isinstance(status, int) and 0 < status < len(_STATUSES) else status
    if name not in _STATUSES[1:]:
        raise InvalidRequest(f"status {status!r} is none of {', '.join(_STATUSES[1:])}.", field="status")
    model.status = str(name)


def record_metrics(work: UnitOfWork, attempt: ScriptAttempt, run: RunFacts, metrics: Iterable[LoggedMetric]) -> None:
    """Store the last values of models' metrics; the run has all of them."""
    by_model: dict[str, list[LoggedMetric]] = {}
    for metric in metrics:
        if metric.model_id:
            by_model.setdefault(metric.model_id, []).append(metric)
    for model_id, measured in by_model.items():
        model = own_model(work, attempt, model_id)
        last_metrics = {
            (stored["key"], stored.get("dataset_name", ""), stored.get("dataset_digest", "")): stored
            for stored in model.metrics
        }
        for metric in measured:
            name, digest = metric.dataset_name or "", metric.dataset_digest or ""
            last_metrics[metric.key, name, digest] = {
                "key": metric.key,
                "value": json_double(metric.value),
                "timestamp": metric.timestamp,
                "step": metric.step,
                "run_id": run.id,
                "model_id": model_id,
                **({"dataset_name": name, "dataset_digest": digest} if name else {}),
            }
        if len(last_metrics) > _METRICS_OF_MODEL:
            raise InvalidRequest(f"A model has at most {_METRICS_OF_MODEL} metrics.", field="metrics")
        model.metrics = bounded_inputs(list(last_metrics.values()), "metrics")


def search_models(session: Session, scope: ReadScope, sent: SearchModels) -> dict[str, Any]:
    filters = parse_filter(sent.filter, _KEYS)
    orders = parse_order(
        [f"{order.field_name} {'ASC' if order.ascending else 'DESC'}" for order in sent.order_by], _KEYS
    )
    start = page_start(sent.page_token)
    wanted = [project for project in sent.experiment_ids if project in scope.projects]
    query = select(MlflowModel).where(MlflowModel.project_id.in_(wanted))
    if scope.attempt is not None:
        query = query.where(MlflowModel.job_id == scope.attempt.job_id)
    query = query.order_by(MlflowModel.created_at.desc(), MlflowModel.id.desc()).limit(_SCANNED)
    models = [
        model
        for model in session.execute(query).scalars()
        if all(item.holds(_reader_of(model)) for item in filters)
    ]  # fmt: skip
    found = in_order(models, orders, _reader_of)
    end = start + sent.max_results
    return {
        "models": [model_view(model) for model in found[start:end]],
        **({"next_page_token": str(end)} if end < len(found) else {}),
    }


def model_view(model: MlflowModel) -> dict[str, Any]:
    return {
        "info": {
            "model_id": model.id,
            "experiment_id": model.project_id,
            "name": model.name,
            "creation_timestamp_ms": ms(model.created_at),
            "last_updated_timestamp_ms": ms(model.updated_at),
            "artifact_uri": artifact_uri("models", model.id),
            "status": model.status,
            "model_type": model.kind,
            "source_run_id": model.run_id,
            "tags": pairs(model.tags),
        },
        "data": {"params": pairs(model.params), "metrics": model.metrics},
    }


def _reader_of(model: MlflowModel) -> ValueReader:
    def read(kind: str, key: str) -> Any:
        match kind:
            case "metrics":
                found = [float(metric["value"]) for metric in model.metrics if metric["key"] == key]
                return found or None
            case "params":
                return model.params.get(key)
            case "tags":
                return model.tags.get(key)
            case "datasets":
                return [
                    metric.get(f"dataset_{key}") for metric in model.metrics if metric.get(f"dataset_{key}")
                ] or None
            case _:
                return {
                    "name": model.name,
                    "model_id": model.id,
                    "model_type": model.kind,
                    "status": model.status,
                    "source_run_id": model.run_id,
                    "creation_timestamp": ms(model.created_at),
                    "last_updated_timestamp": ms(model.updated_at),
                }[key]

    return read
