"""Errors in MLflow's format: clients read ``error_code`` and ``message``, and retry by the status alone.

https://github.com/mlflow/mlflow/blob/v3.17.2/mlflow/exceptions.py lists the codes and their statuses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.app.token_scopes import Scope
from api.app.unit_of_work import AppContextDep
from api.auth import Caller, attempt_or_caller
from api.protocols.kit.errors import AlreadyExists
from api.protocols.kit.json_values import answer
from api.protocols.kit.protocol_route import ProtocolRoute
from api.protocols.kit.script_access import ReadScope, ScriptAccess, attempt_of, script_or_caller
from core.domain.errors import AttemptEnded, Forbidden, InvalidRequest
from core.domain.ids import AttemptId


@dataclass(frozen=True, slots=True)
class ReadAccess:
    """Read access: of users to their projects, of attempts to their own job."""

    caller: Caller | AttemptId

    def scope(self, session: Session) -> ReadScope:
        if isinstance(self.caller, Caller):
            projects = {member.project_id: member.project for member in self.caller.projects.values()}
            return ReadScope(projects, None)
        attempt, _ = attempt_of(session, self.caller)
        return attempt.scope


async def _script(request: Request, context: AppContextDep) -> ScriptAccess:
    caller = await attempt_or_caller(request, context)
    if isinstance(caller, Caller):
        raise Forbidden("Runs are written by the jobs themselves; a user's token reads them.")
    return ScriptAccess(caller)


async def _reader(request: Request, context: AppContextDep) -> ReadAccess:
    return ReadAccess(await script_or_caller(request, context, Scope.READ))


Script = Annotated[ScriptAccess, Depends(_script)]
Reader = Annotated[ReadAccess, Depends(_reader)]


class MlflowRoute(ProtocolRoute):
    """Answers errors as MLflow's server does."""

    # The client retries 408, 429 and 5xx for minutes.
    statuses = {AlreadyExists: 400, AttemptEnded: 403, InvalidRequest: 400}  # noqa: RUF012 (a ClassVar of its base)
    codes = {  # noqa: RUF012
        400: "INVALID_PARAMETER_VALUE",
        401: "UNAUTHENTICATED",
        403: "PERMISSION_DENIED",
        404: "RESOURCE_DOES_NOT_EXIST",
        409: "RESOURCE_CONFLICT",
        413: "INVALID_PARAMETER_VALUE",
        500: "INTERNAL_ERROR",
        503: "TEMPORARILY_UNAVAILABLE",
        507: "RESOURCE_EXHAUSTED",
    }
    codes_of_errors = {AlreadyExists: "RESOURCE_ALREADY_EXISTS"}  # noqa: RUF012

    @classmethod
    def error_response(cls, status: int, code: str, message: str) -> Response:
        return answer({"error_code": code, "message": message}, status)
