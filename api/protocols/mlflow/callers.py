"""Callers of the MLflow API: job scripts (attempt tokens) write, users read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

from fastapi import Depends, Request
from sqlalchemy import select
from sqlalchemy.orm import Session

from api.app.unit_of_work import AppContextDep
from api.auth import Caller, Scope, attempt_or_caller
from core.db.tables import Attempt, Job, Project
from core.domain.errors import AttemptEnded, Forbidden, NotFound
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
        attempt, ended_at = _attempt_of(session, self.attempt_id)
        if ended_at is not None and now - ended_at > _LATE:
            raise AttemptEnded("The attempt of this token has ended; its scripts log no more.")
        return attempt


@dataclass(frozen=True, slots=True)
class ReadAccess:
    """Read access: of users to their projects, of attempts to their own job."""

    caller: Caller | AttemptId

    def scope(self, session: Session) -> ReadScope:
        if isinstance(self.caller, Caller):
            projects = {member.project_id: member.project for member in self.caller.projects.values()}
            return ReadScope(projects, None)
        attempt, _ = _attempt_of(session, self.caller)
        return attempt.scope


@dataclass(frozen=True, slots=True)
class ReadScope:
    """What may be read. ``projects``: id -> name. ``attempt``: if set, only its job."""

    projects: dict[str, str]
    attempt: ScriptAttempt | None

    def has_job(self, project_id: str, job_id: str) -> bool:
        return project_id in self.projects and (self.attempt is None or self.attempt.job_id == job_id)


async def _script(request: Request, context: AppContextDep) -> ScriptAccess:
    caller = await attempt_or_caller(request, context)
    if isinstance(caller, Caller):
        raise Forbidden("Runs are written by the jobs themselves; a user's token reads them.")
    return ScriptAccess(caller)


async def _reader(request: Request, context: AppContextDep) -> ReadAccess:
    caller = await attempt_or_caller(request, context)
    if isinstance(caller, Caller):
        caller.demand(Scope.READ)
    return ReadAccess(caller)


Script = Annotated[ScriptAccess, Depends(_script)]
Reader = Annotated[ReadAccess, Depends(_reader)]


def roles_of(gang: dict[str, Any]) -> dict[str, int]:
    """Role -> maximal number of replicas, in rank order. ``gang``: as stored in the job's row."""
    return {role[0]: role[6] if len(role) > 6 else role[1] for role in gang["roles"]}


def _attempt_of(session: Session, attempt_id: AttemptId) -> tuple[ScriptAttempt, datetime | None]:
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
    return attempt, ended_at
