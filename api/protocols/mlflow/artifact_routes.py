"""Artifacts through this server: the scheme ``mlflow-artifacts:`` of MLflow's clients."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.concurrency import contextmanager_in_threadpool
from starlette.concurrency import run_in_threadpool

from api.app.unit_of_work import AppContext, AppContextDep
from api.http.ranges import OpenFileResponse
from api.protocols.kit.json_values import answer
from api.protocols.kit.streams import large_blocks, write_all
from api.protocols.mlflow.answers import MlflowRoute
from api.protocols.mlflow.artifacts import list_artifacts, open_artifacts
from api.protocols.mlflow.callers import Reader, Script, ScriptAccess
from api.protocols.mlflow.runs import find_run
from api.protocols.mlflow.views import artifact_uri
from core.domain.errors import InvalidRequest
from core.storage.tree import PATH_LIMIT_BYTES, Tree, split_path

FILES: Final = "/mlflow/api/2.0/mlflow-artifacts/artifacts"
router = APIRouter(route_class=MlflowRoute, include_in_schema=False)

_Path = Annotated[str, Path(max_length=PATH_LIMIT_BYTES)]


@router.get(FILES)
def list_files(
    reader: Reader, context: AppContextDep, path: Annotated[str, Query(max_length=PATH_LIMIT_BYTES)] = ""
) -> Response:
    with context.read() as work:
        tree, path_in_output = open_artifacts(work.session, reader.scope(work.session), path)
    return answer({"files": list_artifacts(tree, path_in_output)})


@router.get(f"{FILES}/{{path:path}}")
def download(path: _Path, reader: Reader, context: AppContextDep) -> Response:
    """The bytes of a file. `Range` is honoured."""
    with context.read() as work:
        tree, path_in_output = open_artifacts(work.session, reader.scope(work.session), path)
    name = path.rstrip("/").rpartition("/")[2]
    return OpenFileResponse(tree.open_file(path_in_output), media_type="application/octet-stream", name=name)


@router.put(f"{FILES}/{{path:path}}")
async def upload(path: _Path, request: Request, script: Script, context: AppContextDep) -> Response:
    """Stream to the disk; the file appears, or is replaced, once it is complete."""
    tree, path_in_output = await run_in_threadpool(_open_own, context, script, path)
    async with contextmanager_in_threadpool(tree.new_file(path_in_output)) as fd:
        async for block in large_blocks(request.stream()):
            await run_in_threadpool(write_all, fd, block)
    return answer({})


@router.get("/mlflow/api/2.0/mlflow/artifacts/list")
def list_of_run(
    reader: Reader,
    context: AppContextDep,
    run_id: Annotated[str, Query(max_length=256)] = "",
    run_uuid: Annotated[str, Query(max_length=256)] = "",
    path: Annotated[str, Query(max_length=PATH_LIMIT_BYTES)] = "",
) -> Response:
    """Paths are relative to the run's folder."""
    with context.read() as work:
        scope = reader.scope(work.session)
        run = find_run(work.session, scope, run_id or run_uuid)
        tree, path_in_output = open_artifacts(work.session, scope, f"runs/{run.id}/{path}")
    inside = f"{path.strip('/')}/" if path.strip("/") else ""
    files = [{**one, "path": f"{inside}{one['path']}"} for one in list_artifacts(tree, path_in_output)]
    return answer({"root_uri": artifact_uri("runs", run.id), "files": files})


def _open_own(context: AppContext, script: ScriptAccess, path: str) -> tuple[Tree, str]:
    with context.read() as work:
        tree, path_in_output = open_artifacts(work.session, script.load(work.session, work.now).scope, path)
    if len(split_path(path)) <= len(("runs", "<run id>")):
        raise InvalidRequest("path names a run's folder itself; name a file in it.", field="path")
    return tree, path_in_output
