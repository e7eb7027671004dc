"""Job scripts as callers: what an attempt's token may read and change."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from fastapi import Request
from sqlalchemy import select
from sqlalchemy.orm import Session

from api.app.audit import note_project
from api.app.token_scopes import Scope
from api.app.unit_of_work import AppContext
from api.auth import Caller, attempt_or_caller
from core.db.tables import Attempt, Job, Project
from core.domain.errors import AttemptEnded, NotFound
from core.domain.ids import AttemptId

# Grace period after the attempt's end, as for the runtime's reports: scripts log their last values while they end.
_LATE: Final = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class ScriptAttempt:
    """The attempt whose script calls. ``roles``: of its gang in rank order -> maximal number of replicas."""

    attempt_id: str
    number: int
    job_id: str
    job_name: str
    project_id: str
    project: str
    user_id: str
    roles: dict[str, int]

    @property
    def scope(self) -> ReadScope:
        """The attempt may read and change only its own job."""
        return ReadScope({self.project_id: self.project}, self)


@dataclass(frozen=True, slots=True)
class ScriptAccess:
    """An attempt's access to its job's data; ``load`` checks it."""

    attempt_id: AttemptId

    def load(self, session: Session, now: datetime) -> ScriptAttempt:
        """The attempt.

        Raises:
            NotFound: the attempt no longer exists.
            AttemptEnded: it ended more than a minute ago, or its job or project was deleted.
        """
        attempt, ended_at = attempt_of(session, self.attempt_id)
        if ended_at is not None and now - ended_at > _LATE:
            raise AttemptEnded("The attempt of this token has ended; its scripts log no more.")
        return attempt


@dataclass(frozen=True, slots=True)
class ReadScope:
    """What may be read. ``projects``: id -> name. ``attempt``: if set, only its job."""

    projects: dict[str, str]
    attempt: ScriptAttempt | None

    def has_job(self, project_id: str, job_id: str) -> bool:
        return project_id in self.projects and (self.attempt is None or self.attempt.job_id == job_id)


async def script_or_caller(request: Request, context: AppContext, scope: Scope) -> Caller | AttemptId:
    """A user whose token has ``scope``, or a job's script by its attempt. Raises ``Unauthenticated``, ``Forbidden``."""
    caller = await attempt_or_caller(request, context)
    if isinstance(caller, Caller):
        caller.demand(scope)
    return caller


def roles_of(gang: dict[str, Any]) -> dict[str, int]:
    """Role -> maximal number of replicas, in rank order. ``gang``: as stored in the job's row."""
    return {role[0]: (role[6] if len(role) > 6 else None) or role[1] for role in gang["roles"]}


def attempt_of(session: Session, attempt_id: AttemptId) -> tuple[ScriptAttempt, datetime | None]:
    """The attempt, and when it ended. Raises as ``ScriptAccess.load``."""
    row = session.execute(
        select(Attempt.number, Attempt.ended_at, Job, Project.name, Project.deleted_at)
        .join(Job, Job.id == Attempt.job_id)
        .join(Project, Project.id == Job.project_id)
        .where(Attempt.id == attempt_id)
    ).one_or_none()
    if row is None:
        raise NotFound("There is no attempt of this token any more.")
    number, ended_at, job, project, project_deleted_at = row
    if job.deleted_at is not None:
        raise AttemptEnded("The job of this token was deleted; its scripts log no more.")
    if project_deleted_at is not None:  # records of a late call would have no owner
        raise AttemptEnded("The project of this token's job was deleted; its scripts log no more.")
    attempt = ScriptAttempt(
        attempt_id, number, job.id, job.name, job.project_id, project, job.user_id, roles_of(job.gang)
    )  # fmt: skip
    note_project(attempt.project_id, attempt.project)
    return attempt, ended_at
