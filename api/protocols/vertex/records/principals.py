"""Principals that access records: users (their tokens) and job scripts (attempt tokens)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import Depends, Request
from sqlalchemy.orm import Session

from api.app.token_scopes import Scope
from api.app.unit_of_work import AppContextDep, UnitOfWork
from api.auth import Caller, Role, attempt_or_caller
from api.protocols.kit.script_access import ScriptAccess, ScriptAttempt
from api.protocols.vertex.names import ANY_LOCATION, Parent, member_of
from core.db.repositories.vertex_records import RecordScope
from core.db.tables import VertexRecord
from core.domain.errors import Forbidden, InvalidRequest
from core.domain.ids import AttemptId

# The token scope that each project role needs.
_SCOPES: Final[dict[Role, Scope]] = {"viewer": Scope.READ, "member": Scope.WRITE, "admin": Scope.WRITE}


@dataclass(frozen=True, slots=True)
class RecordTransaction:
    """A transaction over the records of one project and location. ``attempt``: of the calling script; ``None``: a
    user.
    """

    work: UnitOfWork
    parent: Parent
    scope: RecordScope
    attempt: ScriptAttempt | None

    @property
    def session(self) -> Session:
        return self.work.session

    def name_of(self, path: str) -> str:
        """The full resource name for ``path``."""
        return self.parent.name_of(path)

    def name_of_record(self, record: VertexRecord) -> str:
        return self.name_of(f"{record.collection}/{record.name}")

    def path_of(self, name: str) -> str | None:
        """The path in a full resource name; ``None`` if it is of another project or location."""
        own = self.parent.name_of("")
        return name.removeprefix(own) if name.startswith(own) else None


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller. A job's script reads and writes records of its project, but deletes nothing."""

    caller: Caller | AttemptId

    def open(
        self, work: UnitOfWork, parent: Parent, role: Role, *, verb: str, deletes: bool = False
    ) -> RecordTransaction:
        """Check access and open the records.

        Raises:
            Forbidden
            AttemptEnded: the script's attempt ended more than a minute ago.
            InvalidRequest: no location is given.
        """
        if parent.location == ANY_LOCATION:
            raise InvalidRequest("A location is needed; write one such as us-central1.", field="location")
        if isinstance(self.caller, Caller):
            self.caller.demand(_SCOPES[role])
            member = member_of(work.session, self.caller, parent, role, verb=verb)
            return RecordTransaction(work, parent, RecordScope(member.project_id, parent.location), None)
        attempt = ScriptAccess(self.caller).load(work.session, work.now)
        if attempt.project != parent.own:
            raise Forbidden(
                f"Permission 'aiplatform.{verb}' denied on '{parent.name_of()}': this is the token of a job of project "
                f"{attempt.project}, which writes to its own project alone."
            )
        if deletes:
            raise Forbidden("A job's own token deletes nothing; use a user's.")
        return RecordTransaction(work, parent, RecordScope(attempt.project_id, parent.location), attempt)


async def _principal(request: Request, context: AppContextDep) -> Principal:
    return Principal(await attempt_or_caller(request, context))


PrincipalDep = Annotated[Principal, Depends(_principal)]
