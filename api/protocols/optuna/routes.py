"""Optuna's storage over HTTP: the messages of its gRPC proxy, one request each.

The client is ``trainmaster_train.optuna`` (docs/howto/optuna.md); the routes are not part of the API's description.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

from anyio import to_thread
from fastapi import APIRouter, Path, Query, Request, Response
from trainmaster.wire.base import Problem

from api.app.unit_of_work import AppContext, AppContextDep
from api.auth import Caller, Scope, attempt_or_caller
from api.http.problems import problem_response
from api.protocols.kit.streams import limiter_of
from api.protocols.mlflow.callers import ScriptAccess
from api.protocols.optuna.storages import Storages
from core.domain.errors import Forbidden, InvalidRequest
from core.domain.ids import AttemptId

router = APIRouter(include_in_schema=False)

STATUS_HEADER: Final = "Optuna-Status"
# Calls block on a database, so they have their own thread limit.
_CALLS: Final = 6
# HTTP statuses for clients that do not know our header.
_HTTP: Final = {"NOT_FOUND": 404, "ALREADY_EXISTS": 409, "FAILED_PRECONDITION": 409, "INVALID_ARGUMENT": 422}


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
        found = perform(partial(storages.get, project_id), method, body)
        return Response(found, media_type="application/x-protobuf")
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
        if not caller.may(Scope.READ if is_reading else Scope.WRITE):
            raise Forbidden("This needs a token of scope write; log in with another one.")
        return caller.member_of(work.session, project, "viewer" if is_reading else "member").project_id
