"""TrainJobs: our jobs that were created through Kubeflow's API, identified by name, with their pods and logs.

A reserved label marks them. It is removed when a TrainJob is deleted before its end: the name becomes free, while the
job is cancelled and stays in the platform's history.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import anyio
from anyio import CapacityLimiter
from sqlalchemy import delete as delete_rows
from sqlalchemy import select, update
from sqlalchemy.orm import Session
from trainmaster.spec.fields import NAME_PATTERN
from trainmaster.wire.jobs import WaitReasonView

from api.app.graceful_shutdown import GracefulShutdown
from api.app.unit_of_work import AppContext, UnitOfWork
from api.auth import Caller, Role
from api.jobs import verbs
from api.jobs.schemas import NEWLY_QUEUED, wait_reason_of
from api.jobs.service import canonical, check_submission, submit
from api.protocols.kit.errors import AlreadyExists
from api.protocols.kit.streams import new_log_text
from api.protocols.kubeflow.manifests import GROUP, job_spec_of, read_manifest
from core.db.engine import UntypedSelect
from core.db.repositories.jobs import live_attempt_id, view_rows
from core.db.tables import Attempt, Event, Job, JobLabel, Project, Replica
from core.domain.errors import InvalidRequest, NotFound, TrainmasterError, Unavailable
from core.domain.jobs.states import AttemptState, JobState
from core.storage.logs.files import JobLogs
from core.storage.logs.merge import LogMerge, Selection, newest_position
from core.storage.volumes import job_output

_MARK: Final = ".trainjob"  # users' labels cannot begin with a dot
# Limit of a list: the client requests each job's runtime and pods one by one.
LISTED: Final = 500
EVENTS: Final = 2_000
_NAME_LIMIT: Final = 50
# Seconds between two reads of the file; the attempt's state is read once per so many polls.
_POLL_S: Final = 0.5
_POLLS_PER_STATE_READ: Final = 4


@dataclass(frozen=True, slots=True)
class Pod:
    """A replica of a TrainJob's newest attempt."""

    job: Job
    attempt: Attempt
    replica: Replica

    @property
    def name(self) -> str:
        return f"{self.job.name}-node-0-{self.replica.index}-{self.attempt.number}"


def create(context: AppContext, caller: Caller, namespace: str, body: Mapping[str, Any]) -> str:
    """Submit the job. Returns its name.

    Raises:
        AlreadyExists: a TrainJob with this name exists.
    """
    manifest = read_manifest(body)
    name = manifest.metadata.name
    if len(name) > _NAME_LIMIT:
        raise InvalidRequest(f"metadata.name: at most {_NAME_LIMIT} characters, not {len(name)}.")
    if not re.fullmatch(NAME_PATTERN[1:-1], name):  # as Kubernetes; the platform's own names have also capitals
        raise InvalidRequest(
            f"metadata.name: {name[:100]!r} is not a name: lower-case letters, digits and '-', no '-' at the ends."
        )
    submission = check_submission(context, caller, canonical(job_spec_of(manifest, namespace)))
    project_id = submission.member.project_id
    with context.write() as work:
        # Lock until the commit: of two concurrent requests with one name, the second sees the first.
        work.session.execute(update(Project).where(Project.id == project_id).values(id=Project.id))
        if work.session.execute(_marked(project_id).where(JobLabel.value == name)).first() is not None:
            raise AlreadyExists(f'trainjobs.{GROUP} "{name}" already exists')
        submitted = submit(work, caller, submission, key=None, digest="")
        work.session.flush()
        work.session.add(JobLabel(job_id=submitted.job_id, key=_MARK, value=name))
    return name


def _marked(project_id: str) -> UntypedSelect:
    return (
        select(Job)
        .join(JobLabel, JobLabel.job_id == Job.id)
        .where(JobLabel.key == _MARK, Job.project_id == project_id, Job.deleted_at.is_(None))
    )


def find(session: Session, caller: Caller, namespace: str, name: str, role: Role = "viewer") -> Job:
    """Raises ``NotFound`` or ``Forbidden``."""
    project_id = caller.member_of(session, namespace, role).project_id
    job = session.execute(_marked(project_id).where(JobLabel.value == name)).scalars().first()
    if job is None:
        raise NotFound(f'trainjobs.{GROUP} "{name[:100]}" not found')
    found: Job = job
    return found


def list_all(session: Session, caller: Caller, namespace: str) -> list[Job]:
    """Newest first, ``LISTED`` at most."""
    project_id = caller.member_of(session, namespace).project_id
    query = _marked(project_id).order_by(Job.created_at.desc(), Job.id.desc()).limit(LISTED)
    return list(session.execute(query).scalars())


def reasons_of(session: Session, jobs: Sequence[Job], now: datetime) -> dict[str, WaitReasonView]:
    """Job id -> wait reason, in one statement; without jobs that were queued just now."""
    waiting = [job.id for job in jobs if job.state == JobState.QUEUED]
    reasons = {row.id: wait_reason_of(row, now) for row in view_rows(session, waiting)}
    return {key: reason for key, reason in reasons.items() if reason is not None and reason != NEWLY_QUEUED}


def waiting(session: Session, caller: Caller, namespace: str) -> list[Job]:
    """Queued TrainJobs, oldest first, at most ``LISTED``."""
    query = _marked(caller.member_of(session, namespace).project_id).where(Job.state == JobState.QUEUED.value)
    return list(session.execute(query.order_by(Job.created_at, Job.id).limit(LISTED)).scalars())


def delete(work: UnitOfWork, caller: Caller, namespace: str, name: str) -> Job:
    """Delete an ended TrainJob; a live one is cancelled and loses its mark."""
    job = find(work.session, caller, namespace, name, "member")
    verbs.lock(work.session, job)
    if JobState(job.state).is_terminal and live_attempt_id(work.session, job.id) is None:
        verbs.delete(work, caller, job)
        return job
    if not JobState(job.state).is_terminal:
        verbs.request(work, caller, job, verbs.Verb.CANCEL, "Its TrainJob was deleted.")
    work.session.execute(delete_rows(JobLabel).where(JobLabel.job_id == job.id, JobLabel.key == _MARK))
    return job


def pods_of(session: Session, job: Job) -> list[Pod]:
    """Ordered by index; empty before the first attempt."""
    query = (
        select(Attempt, Replica)
        .join(Replica, Replica.attempt_id == Attempt.id)
        .where(Attempt.job_id == job.id, Attempt.number == job.attempt_count)
        .order_by(Replica.rank)
    )
    return [Pod(job, attempt, replica) for attempt, replica in session.execute(query)]


def find_pod(session: Session, caller: Caller, namespace: str, name: str) -> Pod:
    """Raises ``NotFound``, also for pods of earlier attempts."""
    owner, _, _ = name.rpartition("-node-0-")
    missing = NotFound(f'pods "{name[:100]}" not found; those of a TrainJob\'s newest attempt are there')
    try:
        job = find(session, caller, namespace, owner)
    except NotFound as error:
        caller.member_of(session, namespace)  # an unknown namespace has its own error
        raise missing from error
    pod = next((pod for pod in pods_of(session, job) if pod.name == name), None)
    if pod is None:
        raise missing
    return pod


def events(session: Session, caller: Caller, namespace: str) -> list[tuple[Event, str]]:
    """The newest ``EVENTS`` of all TrainJobs, oldest first, each with its TrainJob's name."""
    project_id = caller.member_of(session, namespace).project_id
    query = (
        select(Event, JobLabel.value)
        .join(JobLabel, JobLabel.job_id == Event.job_id)
        .join(Job, Job.id == Event.job_id)
        .where(JobLabel.key == _MARK, Event.project_id == project_id, Job.deleted_at.is_(None))
        .order_by(Event.id.desc())
        .limit(EVENTS)
    )
    return [(event, name) for event, name in reversed(session.execute(query).all())]


# --- logs ------------------------------------------------------------------------------------------------------------


def open_log(session: Session, pod: Pod, *, tail_lines: int | None) -> LogMerge:
    """The lines of one replica in one attempt. Blocks on the disk.

    Raises:
        Conflict: the control plane does not see the volume.
    """
    logs = JobLogs(job_output(session, pod.job), pod.job.id)
    selection = Selection(attempt=pod.attempt.number, role=pod.replica.role, index=pod.replica.index)
    return LogMerge(logs, selection, newest_position(logs, selection, tail_lines=tail_lines))


def has_ended(session: Session, attempt_id: str) -> bool:
    attempt = session.get(Attempt, attempt_id)
    return attempt is None or attempt.state == AttemptState.ENDED


@dataclass(slots=True)
class PodLog:
    """A stream of log text. ``is_over``: whether the attempt has ended; raises once the caller lost access."""

    merge: LogMerge
    is_over: Callable[[], Awaitable[bool]]
    shutdown: GracefulShutdown
    limiter: CapacityLimiter

    async def chunks(self, *, follow: bool) -> AsyncIterator[str]:
        """The current text; with ``follow`` until the attempt has ended."""
        polls = 0
        is_final = not follow
        while not self.shutdown.is_stopping:
            if follow and polls % _POLLS_PER_STATE_READ == 0:
                try:
                    # Read before the file, so all output of an ended attempt is read.
                    is_final = await self.is_over()
                except Unavailable:
                    pass  # the database is unavailable: keep streaming
                except TrainmasterError:
                    return
            polls += 1
            news = new_log_text(self.merge, is_final=is_final, shutdown=self.shutdown, limiter=self.limiter)
            async for text in news:
                yield text
            if is_final:
                return
            await anyio.sleep(_POLL_S)
