"""Artifacts: files in the folder ``mlflow/`` of a job's output, never outside of it.

Their routes are the scheme ``mlflow-artifacts:`` of MLflow's clients, through this server.
"""

from __future__ import annotations

import heapq
import os
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.concurrency import contextmanager_in_threadpool
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from api.app.unit_of_work import AppContext, AppContextDep
from api.http.ranges import OpenFileResponse
from api.protocols.kit.json_values import answer
from api.protocols.kit.script_access import ReadScope, ScriptAccess
from api.protocols.kit.streams import large_blocks, write_all
from api.protocols.mlflow.answers import MlflowRoute, Reader, Script
from api.protocols.mlflow.models import find_model
from api.protocols.mlflow.runs import artifact_uri, find_run
from core.db.tables import Job
from core.domain.errors import InvalidRequest, NotFound, TrainmasterError
from core.storage.tree import PATH_LIMIT_BYTES, Tree, split_path
from core.storage.volumes import job_output

_FILES: Final = "/mlflow/api/2.0/mlflow-artifacts/artifacts"
router = APIRouter(route_class=MlflowRoute, include_in_schema=False)
_Path = Annotated[str, Path(max_length=PATH_LIMIT_BYTES)]
_FOLDER: Final = "mlflow"  # under the output
_LIMIT: Final = 10_000  # entries of one folder that are listed


@router.get(_FILES)
def list_files(
    reader: Reader, context: AppContextDep, path: Annotated[str, Query(max_length=PATH_LIMIT_BYTES)] = ""
) -> Response:
    with context.read() as work:
        tree, path_in_output = _open_artifacts(work.session, reader.scope(work.session), path)
    return answer({"files": _list_artifacts(tree, path_in_output)})


@router.get(f"{_FILES}/{{path:path}}")
def download(path: _Path, reader: Reader, context: AppContextDep) -> Response:
    """The bytes of a file. `Range` is honoured."""
    with context.read() as work:
        tree, path_in_output = _open_artifacts(work.session, reader.scope(work.session), path)
    name = path.rstrip("/").rpartition("/")[2]
    return OpenFileResponse(tree.open_file(path_in_output), media_type="application/octet-stream", name=name)


@router.put(f"{_FILES}/{{path:path}}")
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
        tree, path_in_output = _open_artifacts(work.session, scope, f"runs/{run.id}/{path}")
    inside = f"{path.strip('/')}/" if path.strip("/") else ""
    files = [{**file, "path": f"{inside}{file['path']}"} for file in _list_artifacts(tree, path_in_output)]
    return answer({"root_uri": artifact_uri("runs", run.id), "files": files})


def _open_own(context: AppContext, script: ScriptAccess, path: str) -> tuple[Tree, str]:
    with context.read() as work:
        tree, path_in_output = _open_artifacts(work.session, script.load(work.session, work.now).scope, path)
    if len(split_path(path)) <= len(("runs", "<run id>")):
        raise InvalidRequest("path names a run's folder itself; name a file in it.", field="path")
    return tree, path_in_output


def _open_artifacts(session: Session, scope: ReadScope, path: str) -> tuple[Tree, str]:
    """The output of the job that owns ``path``, and the path inside it.

    Args:
        path: ``runs/<run id>/…`` or ``models/<model id>/…``, as in our artifact URIs.

    Raises:
        NotFound: no visible run or model.
    """
    names = split_path(path)
    match names:
        case ("runs", run_id, *_):
            job_id = find_run(session, scope, run_id).job_id
        case ("models", model_id, *_):
            job_id = find_model(session, scope, model_id).job_id
        case _:
            raise NotFound("There are artifacts of runs and of models alone: runs/<run id>/… and models/<model id>/….")
    job = session.get_one(Job, job_id)
    return job_output(session, job), "/".join((_FOLDER, *names))


def _list_artifacts(tree: Tree, path: str) -> list[dict[str, Any]]:
    """Entries of a folder by name; empty if it does not exist. ``path``: the name in the folder."""
    try:
        with tree.open_folder(path) as fd:
            names = heapq.nsmallest(_LIMIT, (name for name in os.listdir(fd) if _is_shown(name)))  # noqa: PTH208
    except NotFound:
        return []
    entries = []
    for name in names:
        try:
            entry = tree.stat(f"{path}/{name}")
        except TrainmasterError:
            continue  # a link that leaves the volume, or a file that was deleted since
        size = {} if entry.is_dir else {"file_size": entry.size_bytes}
        entries.append({"path": name, "is_dir": entry.is_dir, **size})
    return entries


def _is_shown(name: str) -> bool:
    """False for unfinished uploads, and for names that are not valid UTF-8."""
    is_draft = name.startswith(".") and name.endswith(".part")
    return not is_draft and name.encode("utf-8", "ignore") == os.fsencode(name)
