"""Optuna's storage over HTTP: the messages of its gRPC proxy, one request each, and the storages that answer them.

The client is ``trainmaster_train.optuna`` (docs/howto/optuna.md); the routes are not part of the API's description.
Each project has a storage with tables of its own that other projects' tokens cannot reach: on PostgreSQL a schema
``optuna_<project id>`` of the platform's database, embedded an SQLite file under ``<home>/optuna``. Optuna creates and
migrates its tables itself, so they are not in our migrations.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

from anyio import to_thread
from fastapi import APIRouter, Path, Query, Request, Response
from sqlalchemy import text
from sqlalchemy.engine import URL, make_url
from trainmaster.wire.base import Problem

from api.app.token_scopes import Scope
from api.app.unit_of_work import AppContext, AppContextDep
from api.auth import Caller, attempt_or_caller
from api.http.problems import problem_response
from api.protocols.kit.script_access import ScriptAccess
from api.protocols.kit.streams import limiter_of
from core.domain.errors import Forbidden, InvalidRequest
from core.domain.ids import AttemptId
from core.storage.optuna_tables import (
    WAITS,
    drop_tables,
    exclusive_connection,
    file_of,
    folder_of,
    psycopg_of,
    schema_of,
)

if TYPE_CHECKING:
    from optuna.storages._cached_storage import _CachedStorage

    from core.settings import Settings


router = APIRouter(include_in_schema=False)

STATUS_HEADER: Final = "Optuna-Status"
# Calls block on a database, so they have their own thread limit.
_CALLS: Final = 6
# HTTP statuses for clients that do not know our header.
_HTTP: Final = {"NOT_FOUND": 404, "ALREADY_EXISTS": 409, "FAILED_PRECONDITION": 409, "INVALID_ARGUMENT": 422}
# Open storages of one API process (LRU), each with a few connections.
_OPEN: Final = 16
_CONNECTIONS: Final = 1
_MORE_CONNECTIONS: Final = 2
_IDLE_S: Final = 300  # older connections are replaced
_SQLITE_WAIT_S: Final = 10


@router.post("/optuna/{method}")
async def call(
    method: Annotated[str, Path(max_length=100)],
    request: Request,
    context: AppContextDep,
    project: Annotated[str | None, Query(max_length=100)] = None,
) -> Response:
    """Jobs use their attempt's token, which fixes the project; users name the project."""
    caller = await attempt_or_caller(request, context)
    body = await request.body()
    storages: Storages = request.app.state.optuna
    work = partial(_answer, storages, context, caller, project, method, body)
    return await to_thread.run_sync(work, limiter=limiter_of(request.app.state, "optuna_calls", _CALLS))


def _answer(
    storages: Storages, context: AppContext, caller: AttemptId | Caller, project: str | None, method: str, body: bytes
) -> Response:
    from api.protocols.optuna.calls import Refused, perform, reads  # Optuna takes half a second to import

    project_id = _project_of(context, caller, project, is_reading=reads(method))
    try:
        message = perform(partial(storages.get, project_id), method, body)
        return Response(message, media_type="application/x-protobuf")
    except Refused as refused:
        status = _HTTP.get(refused.status, 400)
        problem = Problem(title=refused.status, status=status, code=refused.status.lower(), detail=refused.details)
        return problem_response(problem, {STATUS_HEADER: refused.status})


def _project_of(context: AppContext, caller: AttemptId | Caller, project: str | None, *, is_reading: bool) -> str:
    with context.read() as work:
        if not isinstance(caller, Caller):
            attempt = ScriptAccess(caller).load(work.session, work.now)
            if project not in (None, attempt.project):
                raise Forbidden(f"project: the token is that of a job in {attempt.project}; leave the project out.")
            return attempt.project_id
        if project is None:
            raise InvalidRequest("project: name the project whose studies these are.", field="project")
        caller.demand(Scope.READ if is_reading else Scope.WRITE)
        return caller.member_of(work.session, project, "viewer" if is_reading else "member").project_id


class Storages:
    """Cache of open storages. Thread-safe."""

    def __init__(self, settings: Settings) -> None:
        self._url = make_url(settings.resolved_database_url)
        self._folder = folder_of(settings)
        self._open: OrderedDict[str, _CachedStorage] = OrderedDict()
        self._making: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()  # guards both dicts, held briefly

    def get(self, project_id: str) -> _CachedStorage:
        """The project's storage; creates its tables on first use.

        Raises:
            sqlalchemy.exc.SQLAlchemyError: the database is unavailable, or refuses to create a schema.
        """
        with self._lock:
            if project_id in self._open:
                self._open.move_to_end(project_id)
                return self._open[project_id]
            making = self._making.setdefault(project_id, threading.Lock())
        with making:
            with self._lock:
                storage = self._open.get(project_id)
            if storage is None:
                storage = self._make(project_id)
                self._keep(project_id, storage)
            return storage

    def _keep(self, project_id: str, storage: _CachedStorage) -> None:
        with self._lock:
            self._open[project_id] = storage
            while len(self._open) > _OPEN:
                old_id, old = self._open.popitem(last=False)
                self._making.pop(old_id, None)
                _close(old)

    def delete(self, project_id: str) -> None:
        """Delete the storage with its data; no error if there is none."""
        with self._lock:
            storage = self._open.pop(project_id, None)
            if storage is not None:
                _close(storage)
        drop_tables(self._url, self._folder, project_id)

    def close(self) -> None:
        with self._lock:
            while self._open:
                _close(self._open.popitem()[1])

    @property
    def _is_sqlite(self) -> bool:
        return self._url.get_backend_name() == "sqlite"

    def _make(self, project_id: str) -> _CachedStorage:
        # Imported lazily: it takes half a second.
        from optuna.storages import RDBStorage
        from optuna.storages._cached_storage import _CachedStorage  # caches finished trials

        if self._is_sqlite:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = file_of(self._folder, project_id)
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            waiting = {"connect_args": {"timeout": _SQLITE_WAIT_S}}
            return _CachedStorage(
                RDBStorage(URL.create("sqlite", database=str(path)).render_as_string(), engine_kwargs=waiting)
            )
        url = psycopg_of(self._url)
        options = f"{url.query.get('options', '')} {WAITS} -csearch_path={schema_of(project_id)}".strip()
        pooled: dict[str, Any] = {
            "pool_size": _CONNECTIONS,
            "max_overflow": _MORE_CONNECTIONS,
            "pool_pre_ping": True,
            "pool_recycle": _IDLE_S,
            "hide_parameters": True,
            "connect_args": {"options": options, "connect_timeout": 3},
        }
        # Serialise: two API processes that create the tables at once would see half of them.
        with exclusive_connection(self._url, project_id) as connection:
            connection.execute(text(f'CREATE SCHEMA IF NOT EXISTS "{schema_of(project_id)}"'))
            connection.commit()
            return _CachedStorage(RDBStorage(url.render_as_string(hide_password=False), engine_kwargs=pooled))


def _close(storage: _CachedStorage) -> None:
    storage._backend.engine.dispose()  # noqa: SLF001 (there is no public way to close it)
