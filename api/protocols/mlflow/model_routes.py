"""Logged models, which MLflow 3 stores separately from runs."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Response

from api.app.unit_of_work import AppContextDep
from api.protocols.kit.json_values import answer
from api.protocols.mlflow.answers import MlflowRoute
from api.protocols.mlflow.callers import Reader, Script
from api.protocols.mlflow.models import create_model, finalize, find_model, model_view, own_model, search_models
from api.protocols.mlflow.runs import set_params, set_tags, writable_run
from api.protocols.mlflow.schemas import CreateModel, FinalizeModel, Params, SearchModels, Tags
from core.db.tables import MlflowModel
from core.domain.errors import NotFound

_MODELS: Final = "/mlflow/api/2.0/mlflow/logged-models"
router = APIRouter(route_class=MlflowRoute, include_in_schema=False)

_Model = Annotated[str, Path(max_length=256)]


@router.post(_MODELS)
def post_model(sent: CreateModel, script: Script, context: AppContextDep) -> Response:
    """Create a model of the named run, or of the attempt's run."""
    with context.write() as work:
        attempt = script.load(work.session, work.now)
        run = writable_run(work.session, attempt, sent.source_run_id or attempt.attempt_id)
        return _answer(create_model(work, attempt, run, sent))


@router.post(f"{_MODELS}/search")
def post_search_models(sent: SearchModels, reader: Reader, context: AppContextDep) -> Response:
    with context.read() as work:
        return answer(search_models(work.session, reader.scope(work.session), sent))


@router.get(f"{_MODELS}/{{model_id}}")
def get_model(model_id: _Model, reader: Reader, context: AppContextDep) -> Response:
    with context.read() as work:
        return _answer(find_model(work.session, reader.scope(work.session), model_id))


@router.patch(f"{_MODELS}/{{model_id}}")
def finalize_model(model_id: _Model, sent: FinalizeModel, script: Script, context: AppContextDep) -> Response:
    with context.write() as work:
        model = own_model(work, script.load(work.session, work.now), model_id)
        finalize(model, sent.status)
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
    body: dict[str, Any] = {"model": model_view(model)}
    return answer(body)
