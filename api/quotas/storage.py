"""Storage quotas at requests: what would store more is refused at 100 %, and uploads count at once."""

from __future__ import annotations

from typing import Final

from sqlalchemy.orm import Session

from api.app.unit_of_work import AppContext
from api.auth import Caller, ProjectMembership, has_role
from core.db.repositories import storage_usage
from core.domain.errors import StorageQuotaExceeded

# An upload is added to its project's usage in steps, as its length may be unknown.
STEP_BYTES: Final = 64 * 2**20


def demand_storage(session: Session, project_id: str, size_bytes: int = 0) -> None:
    """Raises ``StorageQuotaExceeded`` unless the project may store ``size_bytes`` more."""
    storage_usage.read_state(session, project_id).demand_room(size_bytes)


def charged_project(session: Session, caller: Caller, name: str | None, size_bytes: int) -> str | None:
    """The id of the project whose storage an upload that belongs to no project counts against.

    That is the project ``name`` or, without it, the first one of the caller's own that has room. ``None``: an
    administrator without projects.

    Raises:
        NotFound, Forbidden: the caller may not write in the project ``name``.
        StorageQuotaExceeded: it has no room, nor has any project of the caller's.
    """
    if name is not None:
        members = [caller.member_of(session, name, "member")]
    else:
        members = sorted(_writable(caller), key=lambda member: member.project)
    refusal: StorageQuotaExceeded | None = None
    for member in members:
        try:
            demand_storage(session, member.project_id, size_bytes)
        except StorageQuotaExceeded as refused:
            refusal = refusal or refused
        else:
            return member.project_id
    if refusal is not None:
        raise refusal
    return None


def _writable(caller: Caller) -> list[ProjectMembership]:
    return [member for member in caller.projects.values() if has_role(member.role, "member")]


class UploadCharge:
    """Adds the bytes of one upload to its project's usage. Methods block on the database.

    Args:
        project: its name; without such a project nothing is counted.
        is_refused: whether a used up quota refuses it; a running job's uploads are never refused.
    """

    def __init__(self, context: AppContext, project: str, *, is_refused: bool) -> None:
        self._context = context
        self._project = project
        self._is_refused = is_refused
        self._pending_bytes = 0

    def announce(self, size_bytes: int) -> None:
        """Call before the first write; ``size_bytes``: what is still to come, 0 if unknown.

        Raises:
            StorageQuotaExceeded: with what to do.
        """
        if not self._is_refused:
            return
        with self._context.read() as work:
            project_id = storage_usage.find_project(work.session, self._project)
            if project_id is not None:
                demand_storage(work.session, project_id, size_bytes)

    def count(self, size_bytes: int) -> None:
        """Call for each piece. Raises as ``announce``, for uploads that are larger than announced."""
        self._pending_bytes += size_bytes
        if self._pending_bytes >= STEP_BYTES:
            self.flush()
            self.announce(0)

    def flush(self) -> None:
        """Call at the end, also of a failed upload whose bytes stay."""
        size_bytes, self._pending_bytes = self._pending_bytes, 0
        if not size_bytes:
            return
        with self._context.write() as work:
            project_id = storage_usage.find_project(work.session, self._project)
            if project_id is not None:
                storage_usage.add_bytes(work.session, project_id, size_bytes, work.now)
