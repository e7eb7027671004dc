"""Access to one study, like ``api.auth.JobAccess`` for jobs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import Depends, Path
from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from api.app import audit
from api.app.token_scopes import Scope
from api.auth import Caller, ProjectMembership, Role, require
from core.db.tables import Study
from core.domain.errors import NotFound

# Built once: constructing the statement takes longer than executing it.
_BY_ID: Final = select(Study).where(Study.id == bindparam("ref"), Study.deleted_at.is_(None))
# FOR NO KEY UPDATE: trials, which reference the study, may be inserted meanwhile.
_LOCKED: Final = _BY_ID.with_for_update(key_share=True)


@dataclass(frozen=True, slots=True)
class StudyAccess:
    """Access to one study with at least ``role`` in its project; ``load`` checks it.

    ``ref``: its id, or its name: then the newest of that name that the caller may see.
    """

    caller: Caller
    ref: str
    role: Role

    def load(self, session: Session, *, is_locked: bool = False) -> tuple[Study, ProjectMembership]:
        """The row, and the caller's membership in its project. Raises ``NotFound`` or ``Forbidden``.

        ``is_locked``: lock the row until the end of the transaction.
        """
        what = f"study {self.ref!r} that you may see; `GET /api/v1/studies` lists yours"
        study = session.execute(_LOCKED if is_locked else _BY_ID, {"ref": self.ref}).scalar_one_or_none()
        if study is None:
            named = select(Study).where(Study.name == self.ref, Study.deleted_at.is_(None))
            if not self.caller.is_admin:
                named = named.where(Study.project_id.in_(list(self.caller.projects)))
            newest = named.order_by(Study.created_at.desc(), Study.id.desc()).limit(1)
            study = session.execute(
                newest.with_for_update(key_share=True) if is_locked else newest
            ).scalar_one_or_none()
        if study is None:
            raise NotFound(f"There is no {what}.")
        audit.note_object("study", study.id)
        return study, self.caller.member_of_id(session, study.project_id, self.role, what=what)


def study_of(role: Role) -> Callable[..., Awaitable[StudyAccess]]:
    """A dependency for ``{study}`` routes; roles above viewer need a token of scope write."""
    authenticated = require(Scope.READ if role == "viewer" else Scope.WRITE)

    async def access(
        study: Annotated[
            str, Path(description="The study's id, or its name: the newest of that name.", max_length=100)
        ],
        caller: Caller = Depends(authenticated),  # noqa: B008 (an annotation cannot see the local name)
    ) -> StudyAccess:
        return StudyAccess(caller, study, role)

    return access


StudyViewer = Annotated[StudyAccess, Depends(study_of("viewer"))]
StudyMember = Annotated[StudyAccess, Depends(study_of("member"))]
