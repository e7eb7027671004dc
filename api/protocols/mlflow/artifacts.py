"""Artifacts: files in the folder ``mlflow/`` of a job's output, never outside of it."""

from __future__ import annotations

import heapq
import os
from typing import Any, Final

from sqlalchemy.orm import Session

from api.protocols.mlflow.callers import ReadScope
from api.protocols.mlflow.models import find_model
from api.protocols.mlflow.runs import find_run
from core.db.tables import Job
from core.domain.errors import NotFound, TrainmasterError
from core.storage.outputs import job_output
from core.storage.tree import Tree, split_path

FOLDER: Final = "mlflow"  # under the output
_LIMIT: Final = 10_000  # entries of one folder that are listed


def open_artifacts(session: Session, scope: ReadScope, path: str) -> tuple[Tree, str]:
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
    return job_output(session, job), "/".join((FOLDER, *names))


def list_artifacts(tree: Tree, path: str) -> list[dict[str, Any]]:
    """Entries of a folder by name; empty if it does not exist. ``path``: the name in the folder."""
    try:
        with tree.open_folder(path) as fd:
            names = heapq.nsmallest(_LIMIT, (name for name in os.listdir(fd) if _is_shown(name)))  # noqa: PTH208
    except NotFound:
        return []
    found = []
    for name in names:
        try:
            entry = tree.stat(f"{path}/{name}")
        except TrainmasterError:
            continue  # a link that leaves the volume, or a file that was deleted since
        size = {} if entry.is_dir else {"file_size": entry.size_bytes}
        found.append({"path": name, "is_dir": entry.is_dir, **size})
    return found


def _is_shown(name: str) -> bool:
    """False for unfinished uploads, and for names that are not valid UTF-8."""
    is_draft = name.startswith(".") and name.endswith(".part")
    return not is_draft and name.encode("utf-8", "ignore") == os.fsencode(name)
