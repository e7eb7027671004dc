"""Jobs, attempts, replicas and events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any
from uuid import uuid4

from trainmaster.client.calls.build import params, path, typed, without_content
from trainmaster.client.steps import Call
from trainmaster.spec import JobSpec
from trainmaster.wire.base import Page
from trainmaster.wire.jobs import (
    AttemptView,
    CloneRequest,
    EventView,
    JobDetail,
    JobView,
    ReasonRequest,
    ReplicaView,
    ResumeRequest,
    SubmitRequest,
)


def submit_job(
    spec: Mapping[str, Any] | JobSpec | None = None,
    *,
    spec_text: str | None = None,
    idempotency_key: str | None = None,
) -> Call[JobDetail]:
    """Submit a job from a spec as users write it (with shorthands), a ``JobSpec``, or YAML text.

    By default an idempotency key is generated, so that a retried request never creates two jobs.
    """
    return typed(
        JobDetail,
        "submit_job",
        "POST",
        "/jobs",
        body=_submit_request(spec, spec_text, dry_run=False),
        headers={"Idempotency-Key": idempotency_key or str(uuid4())},
        is_repeatable=True,
    )


def check_spec(spec: Mapping[str, Any] | JobSpec | None = None, *, spec_text: str | None = None) -> Call[JobSpec]:
    """The canonical spec, validated by the server like a submission; nothing is submitted."""
    body = _submit_request(spec, spec_text, dry_run=True)
    return typed(JobSpec, "submit_job", "POST", "/jobs", body=body, is_repeatable=True)


def _submit_request(spec: Mapping[str, Any] | JobSpec | None, spec_text: str | None, *, dry_run: bool) -> SubmitRequest:
    return SubmitRequest(**_spec_fields(spec, spec_text), dry_run=dry_run)


def _spec_fields(spec: Mapping[str, Any] | JobSpec | None, spec_text: str | None) -> dict[str, Any]:
    if isinstance(spec, JobSpec):
        spec = spec.model_dump(mode="json", exclude_unset=True)
    return {"spec_text": spec_text} if spec is None else {"spec": dict(spec)}


def get_job(job: str) -> Call[JobDetail]:
    """The job of this id, or the newest visible one of this name."""
    return typed(JobDetail, "get_job", "GET", path("/jobs/{job}", job=job))


def list_jobs_page(
    *,
    project: str | None = None,
    state: Iterable[str] = (),
    label: Iterable[str] = (),
    role: str | None = None,
    name: str | None = None,
    user: str | None = None,
    study: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    search: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[Page[JobView]]:
    """One page of jobs, newest first. ``label``: ``key=value``, all must match; ``state``: any of them.

    ``study``: ID or name of a study, for the jobs of its trials.
    """
    query = params(
        project=project,
        state=state,
        label=label,
        role=role,
        name=name,
        user=user,
        study=study,
        since=since,
        until=until,
        search=search,
        limit=limit,
        cursor=cursor,
    )
    return typed(Page[JobView], "list_jobs", "GET", "/jobs", query=query)


def _verb(operation: str, verb: str, job: str, reason: str) -> Call[JobDetail]:
    # These set the desired state, so they are idempotent.
    at = path("/jobs/{job}/" + verb, job=job)
    return typed(JobDetail, operation, "POST", at, body=ReasonRequest(reason=reason), is_repeatable=True)


def cancel_job(job: str, *, reason: str = "") -> Call[JobDetail]:
    """Cancel the job: its replicas get SIGTERM, and SIGKILL after the grace period."""
    return _verb("cancel_job", "cancel", job, reason)


def pause_job(job: str, *, reason: str = "") -> Call[JobDetail]:
    """Stop the job until ``resume_job``; it then continues from its newest checkpoint."""
    return _verb("pause_job", "pause", job, reason)


def resume_job(job: str, *, reason: str = "", checkpoint: str | None = None) -> Call[JobDetail]:
    """Put a paused job back into the queue.

    Args:
        checkpoint: path of the checkpoint to resume from instead of the newest; a running job is restarted.
    """
    fields = {} if checkpoint is None else {"checkpoint": checkpoint}
    body = ResumeRequest(reason=reason, **fields)
    return typed(JobDetail, "resume_job", "POST", path("/jobs/{job}/resume", job=job), body=body, is_repeatable=True)


def clone_job(
    job: str,
    *,
    changes: Mapping[str, Any] | None = None,
    resume: bool = False,
    checkpoint: str | None = None,
    idempotency_key: str | None = None,
) -> Call[JobDetail]:
    """A new job from the spec of ``job``; idempotent like ``submit_job``.

    Args:
        changes: merge patch for the spec (RFC 7396); ``None`` removes a key. Without a ``name``, the clone gets the
        next
            free name, such as ``digits-2``.
        resume: start from the newest checkpoint of the original.
        checkpoint: path of another checkpoint of the original to start from.
    """
    fields = {} if checkpoint is None else {"checkpoint": checkpoint}
    body = CloneRequest(changes=dict(changes or {}), resume=resume, **fields)
    return typed(
        JobDetail,
        "clone_job",
        "POST",
        path("/jobs/{job}/clone", job=job),
        body=body,
        headers={"Idempotency-Key": idempotency_key or str(uuid4())},
        is_repeatable=True,
    )


def delete_job(job: str, *, files: bool = False) -> Call[None]:
    """Delete an ended job; ``files``: also its output, if that is its own folder."""
    query = params(files=True) if files else ()
    return without_content("delete_job", "DELETE", path("/jobs/{job}", job=job), query=query)


def list_attempts_page(
    job: str, *, after: int | None = None, limit: int | None = None, cursor: str | None = None
) -> Call[Page[AttemptView]]:
    """One page of the job's attempts, oldest first, with their replicas. ``after``: only larger numbers."""
    query = params(after=after, limit=limit, cursor=cursor)
    return typed(Page[AttemptView], "list_attempts", "GET", path("/jobs/{job}/attempts", job=job), query=query)


def get_attempt(job: str, number: int) -> Call[AttemptView]:
    return typed(AttemptView, "get_attempt", "GET", path("/jobs/{job}/attempts/{number}", job=job, number=number))


def list_replicas_page(
    job: str, number: int, *, limit: int | None = None, cursor: str | None = None
) -> Call[Page[ReplicaView]]:
    """One page of the replicas of an attempt, in rank order."""
    at = path("/jobs/{job}/attempts/{number}/replicas", job=job, number=number)
    return typed(Page[ReplicaView], "list_replicas", "GET", at, query=params(limit=limit, cursor=cursor))


def get_replica(job: str, number: int, name: str) -> Call[ReplicaView]:
    """A replica of an attempt; ``name`` is ``<role>-<index>``."""
    at = path("/jobs/{job}/attempts/{number}/replicas/{name}", job=job, number=number, name=name)
    return typed(ReplicaView, "get_replica", "GET", at)


def list_job_events_page(
    job: str, *, after: int | None = None, limit: int | None = None, cursor: str | None = None
) -> Call[Page[EventView]]:
    """One page of the job's events, oldest first. ``after``: only events with larger IDs."""
    query = params(after=after, limit=limit, cursor=cursor)
    return typed(Page[EventView], "list_job_events", "GET", path("/jobs/{job}/events", job=job), query=query)


def list_events_page(
    *, project: str | None = None, after: int | None = None, limit: int | None = None, cursor: str | None = None
) -> Call[Page[EventView]]:
    """One page of the events of all visible jobs."""
    query = params(project=project, after=after, limit=limit, cursor=cursor)
    return typed(Page[EventView], "list_events", "GET", "/events", query=query)
