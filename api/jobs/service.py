"""Submitting jobs: check everything outside the transaction, then write in few statements."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select, update
from trainmaster.spec import JobSpec, SpecError, parse_spec, parse_spec_text
from trainmaster.spec.priorities import priority_words
from trainmaster.wire.forecasts import ForecastRequest
from trainmaster.wire.jobs import SubmitRequest

from api.app.unit_of_work import AppContext, UnitOfWork
from api.auth import Caller, ProjectMembership
from api.jobs.places import Output, check_places
from core.db.json import dump_json
from core.db.repositories.new_jobs import JobSubmission, new_job
from core.db.repositories.submission import KeyClaim, NewJob, write_job
from core.db.tables import Archive, Job, Project, Secret
from core.domain.errors import Conflict, InvalidRequest, InvalidSpec
from core.ids import new_id
from core.wakeups import TOPIC_TICK


@dataclass(frozen=True, slots=True)
class Submission:
    """A job that may be submitted: its spec, checked, and where its output goes."""

    spec: JobSpec
    member: ProjectMembership
    output: Output
    cloned_from: str | None = None
    resume_from: str | None = None


@dataclass(frozen=True, slots=True)
class Submitted:
    """``row``: what was written, ``None`` for a job that was there."""

    job_id: str
    row: dict[str, Any] | None


def read_spec(request: SubmitRequest | ForecastRequest) -> JobSpec:
    """The canonical spec. Raises ``InvalidRequest`` (none, or two) or ``InvalidSpec`` (every mistake in it)."""
    if (request.spec is None) == (request.spec_text is None):
        raise InvalidRequest(
            "Give the job as `spec` (an object) or as `spec_text` (YAML), one of the two.", field="spec"
        )
    if request.spec is not None:
        return canonical(request.spec)
    assert request.spec_text is not None  # noqa: S101 (one of the two)
    try:
        return parse_spec_text(request.spec_text)
    except SpecError as error:
        raise invalid_spec(error) from error


def canonical(raw: Mapping[str, Any]) -> JobSpec:
    try:
        return parse_spec(raw)
    except SpecError as error:
        raise invalid_spec(error) from error


def invalid_spec(error: SpecError) -> InvalidSpec:
    first = error.mistakes[0]
    count = len(error.mistakes)
    more = f" (and {count - 1} more, see `errors`)" if count > 1 else ""
    told = [{"path": mistake.path, "message": mistake.message, "hint": mistake.hint} for mistake in error.mistakes]
    sentence = f"{first}{more}"
    return InvalidSpec(
        sentence if sentence.endswith((".", ")")) else f"{sentence}.", field=first.path or None, errors=told
    )


def check_submission(context: AppContext, caller: Caller, spec: JobSpec) -> Submission:
    """Prove, without an open transaction, that ``spec`` can run here for this caller."""
    member = _membership(context, caller, spec.project)
    _check_images(context, spec)
    return Submission(spec, member, check_places(context, caller, member, spec))


def _membership(context: AppContext, caller: Caller, project: str) -> ProjectMembership:
    known = next((member for member in caller.projects.values() if member.project == project), None)
    if known is not None and known.role != "viewer":
        return known
    with context.read() as work:  # the cache is seconds old: before saying no, look again
        return caller.member_of(work.session, project, "member")


def _check_images(context: AppContext, spec: JobSpec) -> None:
    if context.settings.executor != "process":
        return
    images = [("image", spec.image)] + [(f"roles.{name}.image", role.image) for name, role in spec.roles.items()]
    mistakes: list[dict[str, str | None]] = [
        {
            "path": field,
            "message": f"this platform runs plain processes (TRAINMASTER_EXECUTOR=process) and cannot run image {image}",
            "hint": "leave out `image`, or use a platform that runs containers",
        }
        for field, image in images
        if image is not None
    ]
    if mistakes:
        first = mistakes[0]
        raise InvalidSpec(
            f"{first['path']}: {first['message']}; {first['hint']}.", field=first["path"], errors=mistakes
        )


def submit(work: UnitOfWork, caller: Caller, submission: Submission, *, key: str | None, digest: str) -> Submitted:
    """Write the job, queued; or find the one that an equal request with this ``key`` made.

    Raises:
        InvalidSpec: a secret or the code archive is missing.
        IdempotencyMismatch: the key was used for another request.
    """
    check_in_transaction(work, submission)
    new = _new_job(work, caller, submission)
    claim = None if key is None else KeyClaim(caller.user_id, key, digest)
    earlier = write_job(work.session, new, claim)
    if earlier is not None:
        _demand_present(work, earlier)
        return Submitted(earlier, None)
    work.notify(TOPIC_TICK)
    row = dict(new.job)
    return Submitted(row["id"], row)


def check_in_transaction(work: UnitOfWork, submission: Submission) -> None:
    """What only the database knows: the archive is there (and is kept from the sweep), the secrets are, the priority is allowed.

    Raises:
        InvalidSpec: one of them is not.
    """
    _check_code(work, submission.spec)
    _check_secrets(work, submission)
    _check_priority(work, submission)


def digest_of(kind: str, content: Mapping[str, Any]) -> str:
    """Equal for requests that ask for the same."""
    return hashlib.sha256(dump_json([kind, content], sorts_keys=True)).hexdigest()


def _new_job(work: UnitOfWork, caller: Caller, submission: Submission) -> NewJob:
    order = JobSubmission(
        id=new_id("job"),
        spec=submission.spec,
        project_id=submission.member.project_id,
        project=submission.member.project,
        user_id=caller.user_id,
        output_volume=submission.output.volume,
        output_path=submission.output.path,
        cloned_from=submission.cloned_from,
        resume_from=submission.resume_from,
    )
    reason = f"Cloned from {submission.cloned_from}." if submission.cloned_from else ""
    return new_job(order, now=work.now, actor=caller.actor, reason=reason)


def _check_code(work: UnitOfWork, spec: JobSpec) -> None:
    if spec.code is None:
        return
    # Noting the use keeps the sweep of old archives away from it.
    found = work.session.execute(
        update(Archive).where(Archive.digest == spec.code, Archive.is_complete).values(used_at=work.now)
    )
    if found.rowcount == 0:  # type: ignore[attr-defined]
        raise InvalidSpec(
            "code: this archive has not been uploaded; upload it first (`trainmaster run` does so by itself).",
            field="code",
            errors=[{"path": "code", "message": "no complete archive has this digest", "hint": "upload it first"}],
        )


def _check_secrets(work: UnitOfWork, submission: Submission) -> None:
    names = submission.spec.secrets
    if not names:
        return
    query = select(Secret.name).where(Secret.project_id == submission.member.project_id, Secret.name.in_(names))
    present = set(work.session.execute(query).scalars())
    missing: list[dict[str, str | None]] = [
        {
            "path": f"secrets.{number}",
            "message": f"project {submission.member.project!r} has no secret {name}",
            "hint": f"keep it there with `trainmaster secrets set {name} --project {submission.member.project}`",
        }
        for number, name in enumerate(names)
        if name not in present
    ]
    if missing:
        raise InvalidSpec(f"{missing[0]['path']}: {missing[0]['message']}.", field=missing[0]["path"], errors=missing)


def _check_priority(work: UnitOfWork, submission: Submission) -> None:
    query = select(Project.max_priority).where(Project.id == submission.member.project_id)
    most = work.session.execute(query).scalar_one_or_none()
    own = submission.spec.priority
    if most is None or own <= most:
        return
    wrong = f"jobs of project {submission.member.project} may have {priority_words(most)} at most, not {priority_words(own)}"
    hint = "a platform admin sets how much"
    told: dict[str, str | None] = {"path": "priority", "message": wrong, "hint": hint}
    raise InvalidSpec(f"priority: {wrong}; {hint}.", field="priority", errors=[told])


def _demand_present(work: UnitOfWork, job_id: str) -> None:
    query = select(Job.id).where(Job.id == job_id, Job.deleted_at.is_(None))
    if work.session.execute(query).scalar_one_or_none() is None:
        raise Conflict("The job that this Idempotency-Key made was deleted; use a fresh key for a new job.")
