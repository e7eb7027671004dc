"""The model registry, for scripts that register the models that they train."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query, Response

from api.app.unit_of_work import AppContextDep
from api.protocols.kit.json_values import answer
from api.protocols.mlflow.answers import MlflowRoute
from api.protocols.mlflow.callers import Reader, Script
from api.protocols.mlflow.registry import (
    create_name,
    create_version,
    download_uri,
    find_name,
    find_version,
    name_view,
    search_names,
    search_versions,
    version_view,
)
from api.protocols.mlflow.schemas import PAGE, CreateRegistered, CreateVersion

_API: Final = "/mlflow/api/2.0/mlflow"
router = APIRouter(route_class=MlflowRoute, include_in_schema=False)

_Name = Annotated[str, Query(max_length=250)]
_Version = Annotated[str, Query(max_length=20)]
_Filter = Annotated[str, Query()]
_Limit = Annotated[int, Query(ge=1, le=PAGE)]
_Order = Annotated[list[str] | None, Query(max_length=20)]
_Token = Annotated[str, Query(max_length=100)]


@router.post(f"{_API}/registered-models/create")
def create_registered_model(sent: CreateRegistered, script: Script, context: AppContextDep) -> Response:
    with context.write() as work:
        name = create_name(work, script.load(work.session, work.now), sent)
        return answer({"registered_model": name_view(work.session, name)})


@router.get(f"{_API}/registered-models/get")
def get_registered_model(reader: Reader, context: AppContextDep, name: _Name) -> Response:
    with context.read() as work:
        found = find_name(work.session, reader.scope(work.session), name)
        return answer({"registered_model": name_view(work.session, found)})


@router.get(f"{_API}/registered-models/search")
def search_registered_models(
    reader: Reader,
    context: AppContextDep,
    filter: _Filter = "",  # noqa: A002 (MLflow's name)
    max_results: _Limit = 100,
    order_by: _Order = None,
    page_token: _Token = "",
) -> Response:
    sent = {"filter": filter, "max_results": max_results, "order_by": order_by or [], "page_token": page_token}
    with context.read() as work:
        return answer(search_names(work.session, reader.scope(work.session), sent))


@router.post(f"{_API}/model-versions/create")
def create_model_version(sent: CreateVersion, script: Script, context: AppContextDep) -> Response:
    with context.write() as work:
        version = create_version(work, script.load(work.session, work.now), sent)
        return answer({"model_version": version_view(version)})


@router.get(f"{_API}/model-versions/get")
def get_model_version(reader: Reader, context: AppContextDep, name: _Name, version: _Version) -> Response:
    with context.read() as work:
        found = find_version(work.session, reader.scope(work.session), name, version)
        return answer({"model_version": version_view(found)})


@router.get(f"{_API}/model-versions/get-download-uri")
def get_download_uri(reader: Reader, context: AppContextDep, name: _Name, version: _Version) -> Response:
    with context.read() as work:
        found = find_version(work.session, reader.scope(work.session), name, version)
        return answer({"artifact_uri": download_uri(found)})


@router.get(f"{_API}/model-versions/search")
def search_model_versions(
    reader: Reader,
    context: AppContextDep,
    filter: _Filter = "",  # noqa: A002 (MLflow's name)
    max_results: _Limit = 1_000,
    order_by: _Order = None,
    page_token: _Token = "",
) -> Response:
    sent = {"filter": filter, "max_results": max_results, "order_by": order_by or [], "page_token": page_token}
    with context.read() as work:
        return answer(search_versions(work.session, reader.scope(work.session), sent))
