"""Callers of the MLflow API: job scripts (attempt tokens) write, users read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from sqlalchemy.orm import Session

from api.app.unit_of_work import AppContextDep
from api.auth import Caller, Scope, attempt_or_caller
from api.protocols.kit.script_access import ReadScope, ScriptAccess, attempt_of, script_or_caller
from core.domain.errors import Forbidden
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
