"""Logged models as in MLflow 3: separate from runs, with files, tags and metrics; and their routes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Response
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from api.app.unit_of_work import AppContextDep, UnitOfWork
from api.protocols.kit.json_values import answer, json_double, milliseconds
from api.protocols.kit.script_access import ReadScope, ScriptAttempt
from api.protocols.mlflow.answers import MlflowRoute, Reader, Script
from api.protocols.mlflow.filters import ValueReader, in_order, matching, parse_filter, parse_order
from api.protocols.mlflow.runs import RunFacts, artifact_uri, bounded_inputs, pairs, set_params, set_tags, writable_run
from api.protocols.mlflow.schemas import CreateModel, FinalizeModel, LoggedMetric, Params, SearchModels, Tags
from api.protocols.mlflow.search import page_of
from core.db.tables import MlflowModel
from core.domain.errors import Forbidden, InvalidRequest, NotFound
from core.ids import new_id

_MODELS: Final = "/mlflow/api/2.0/mlflow/logged-models"
router = APIRouter(route_class=MlflowRoute, include_in_schema=False)
_Model = Annotated[str, Path(max_length=256)]
_STATUSES: Final = ("", "LOGGED_MODEL_PENDING", "LOGGED_MODEL_READY", "LOGGED_MODEL_UPLOAD_FAILED")
_MODELS_OF_JOB: Final = 10_000
_METRICS_OF_MODEL: Final = 1_000
_SCANNED: Final = 2_000
_KEYS: Final = frozenset(
    {"name", "model_id", "model_type", "status", "source_run_id", "creation_timestamp", "last_updated_timestamp"}
)


def _create_model(work: UnitOfWork, attempt: ScriptAttempt, run: RunFacts, sent: CreateModel) -> MlflowModel:
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


def _finalize(model: MlflowModel, status: str | int) -> None:
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


def _search_models(session: Session, scope: ReadScope, sent: SearchModels) -> dict[str, Any]:
    filters = parse_filter(sent.filter, _KEYS)
    orders = parse_order(
        [f"{order.field_name} {'ASC' if order.ascending else 'DESC'}" for order in sent.order_by], _KEYS
    )
    projects = [project for project in sent.experiment_ids if project in scope.projects]
    query = select(MlflowModel).where(MlflowModel.project_id.in_(projects))
    if scope.attempt is not None:
        query = query.where(MlflowModel.job_id == scope.attempt.job_id)
    query = query.order_by(MlflowModel.created_at.desc(), MlflowModel.id.desc()).limit(_SCANNED)
    models = in_order(matching(session.execute(query).scalars(), filters, _reader_of), orders, _reader_of)
    page = page_of("models", models, sent)
    return {**page, "models": [_model_view(model) for model in page["models"]]}


def _model_view(model: MlflowModel) -> dict[str, Any]:
    return {
        "info": {
            "model_id": model.id,
            "experiment_id": model.project_id,
            "name": model.name,
            "creation_timestamp_ms": milliseconds(model.created_at),
            "last_updated_timestamp_ms": milliseconds(model.updated_at),
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
                values = [float(metric["value"]) for metric in model.metrics if metric["key"] == key]
                return values or None
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
                    "creation_timestamp": milliseconds(model.created_at),
                    "last_updated_timestamp": milliseconds(model.updated_at),
                }[key]

    return read


# --- routes ----------------------------------------------------------------------------------------------------------


@router.post(_MODELS)
def post_model(sent: CreateModel, script: Script, context: AppContextDep) -> Response:
    """Create a model of the named run, or of the attempt's run."""
    with context.write() as work:
        attempt = script.load(work.session, work.now)
        run = writable_run(work.session, attempt, sent.source_run_id or attempt.attempt_id)
        return _answer(_create_model(work, attempt, run, sent))


@router.post(f"{_MODELS}/search")
def post_search_models(sent: SearchModels, reader: Reader, context: AppContextDep) -> Response:
    with context.read() as work:
        return answer(_search_models(work.session, reader.scope(work.session), sent))


@router.get(f"{_MODELS}/{{model_id}}")
def get_model(model_id: _Model, reader: Reader, context: AppContextDep) -> Response:
    with context.read() as work:
        return _answer(find_model(work.session, reader.scope(work.session), model_id))


@router.patch(f"{_MODELS}/{{model_id}}")
def finalize_model(model_id: _Model, sent: FinalizeModel, script: Script, context: AppContextDep) -> Response:
    with context.write() as work:
        model = own_model(work, script.load(work.session, work.now), model_id)
        _finalize(model, sent.status)
        return _answer(model)


@router.post(f"{_MODELS}/{{model_id}}/params")
def log_model_params(model_id: _Model, sent: Params, script: Script, context: AppContextDep) -> Response:
    with context.write() as work:
        set_params(own_model(work, script.load(work.session, work.now), model_id), sent.params)
    return answer({})


@router.patch(f"{_MODELS}/{{model_id}}/tags")
def set_model_tags(model_id: _Model, sent: Tags, script: Script, context: AppContextDep) -> Response:
    with context.write() as work:
        model = own_model(work, script.load(work.session, work.now), model_id)
        set_tags(model, sent.tags)
        return _answer(model)


@router.delete(f"{_MODELS}/{{model_id}}/tags/{{key:path}}")
def delete_model_tag(
    model_id: _Model, key: Annotated[str, Path(max_length=250)], script: Script, context: AppContextDep
) -> Response:
    with context.write() as work:
        model = own_model(work, script.load(work.session, work.now), model_id)
        if key not in model.tags:
            raise NotFound(f"No tag with name: {key} in model with id {model_id}.")
        model.tags = {name: value for name, value in model.tags.items() if name != key}
    return answer({})


def _answer(model: MlflowModel) -> Response:
    return answer({"model": _model_view(model)})
