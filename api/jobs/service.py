"""Submission of jobs, and the name and the spec of a clone.

All slow checks run outside the transaction, which then has few statements.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from socket import gethostname
from typing import Any, Final

from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session
from trainmaster.spec import JobSpec, SpecError, parse_spec, parse_spec_text, with_changes
from trainmaster.spec.priorities import priority_words
from trainmaster.wire.forecasts import ForecastRequest
from trainmaster.wire.jobs import SubmitRequest

from api.app.audit import current, note_object, note_project
from api.app.cache import CachedBudget
from api.app.unit_of_work import AppContext, UnitOfWork
from api.auth import Caller, ProjectMembership
from api.jobs.locations import JobOutput, check_locations
from core.db.json import dump_json
from core.db.repositories.budgets import LOWER_PRIORITY
from core.db.repositories.storage_usage import state_columns, state_of_row
from core.db.repositories.submission import JobSubmission, KeyClaim, NewJob, new_job, write_job
from core.db.tables import Archive, IdempotencyKey, Job, Project, Secret, StorageUsage, Study
from core.domain.errors import BudgetExceeded, Conflict, InvalidRequest, InvalidSpec, NotFound
from core.domain.sharing.costs import amount_of
from core.domain.sharing.storage import StorageState
from core.ids import new_id
from core.wakeups import TOPIC_TICK

_NAME_CHARS: Final = 63  # of a job's name
_NUMBERED_NAME: Final = re.compile(r"(.+)-[0-9]{1,6}")


@dataclass(frozen=True, slots=True)
class Submission:
    """A checked job that may be submitted: its spec and its output."""

    spec: JobSpec
    member: ProjectMembership
    output: JobOutput
    cloned_from: str | None = None
    resume_from: str | None = None


@dataclass(frozen=True, slots=True)
class Submitted:
    """``row``: the row written; ``None`` for the job of an earlier request with the same idempotency key.
    ``warnings``: about the project's storage.
    """

    job_id: str
    row: dict[str, Any] | None
    warnings: Sequence[str] = ()


def read_spec(request: SubmitRequest | ForecastRequest) -> JobSpec:
    """The canonical spec. Raises ``InvalidRequest`` (none, or two) or ``InvalidSpec`` (every mistake in it)."""
    if (request.spec is None) == (request.spec_text is None):
        raise InvalidRequest("State the job as `spec` (an object) or as `spec_text` (YAML), not both.", field="spec")
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
    more = f" (and {count - 1} more)" if count > 1 else ""
    errors = [{"path": mistake.path, "message": mistake.message, "hint": mistake.hint} for mistake in error.mistakes]
    sentence = f"{first}{more}"
    return InvalidSpec(
        sentence if sentence.endswith((".", ")")) else f"{sentence}.", field=first.path or None, errors=errors
    )


def request_field(path: str | None, fields: Mapping[str, str]) -> str:
    """The field of a request from which the job spec's field ``path`` comes. ``fields``: job spec -> request."""
    text = path or ""
    for job, own in fields.items():
        if text == job or text.startswith(f"{job}."):
            return own + text[len(job) :]
    return text


def check_submission(context: AppContext, caller: Caller, spec: JobSpec) -> Submission:
    """Check, without an open transaction, that ``spec`` can run here for this caller.

    Raises:
        BudgetExceeded: the project's budget is spent, and refuses new jobs.
    """
    member = _membership(context, caller, spec.project)
    _check_budget(context, member)
    _check_images(context, spec)
    _check_environment(context, spec)
    return Submission(spec, member, check_locations(context, caller, member, spec))


def _membership(context: AppContext, caller: Caller, project: str) -> ProjectMembership:
    known = next((member for member in caller.projects.values() if member.project == project), None)
    if known is not None and known.role != "viewer":
        return known
    with context.read() as work:  # the cache is seconds old: read the database before a refusal
        return caller.member_of(work.session, project, "member")


def _check_budget(context: AppContext, member: ProjectMembership) -> None:
    budget = context.budgets.find(member.project_id, context.clock())
    if budget is not None and budget.is_spent and budget.action == "refuse":
        raise BudgetExceeded(
            f"{_spent(context, member, budget)}, and new jobs are refused until the next month, or until a platform "
            f"admin raises it: trainmaster budget set {member.project} AMOUNT."
        )


def budget_warnings(context: AppContext, member: ProjectMembership) -> list[str]:
    """A sentence, if four fifths of the project's budget are spent."""
    budget = context.budgets.find(member.project_id, context.clock())
    if budget is None or budget.spent_micros * 5 < budget.micros_per_month * 4:
        return []
    then = "; its waiting jobs come behind those of all other projects"
    is_behind = budget.is_spent and budget.action == LOWER_PRIORITY
    return [f"{_spent(context, member, budget)}{then if is_behind else ''}."]


def _spent(context: AppContext, member: ProjectMembership, budget: CachedBudget) -> str:
    spent, whole = (f"{amount_of(micros):.2f}" for micros in (budget.spent_micros, budget.micros_per_month))
    return f"Project {member.project} has spent {spent} of this month's budget of {whole} {context.settings.currency}"


def _check_images(context: AppContext, spec: JobSpec) -> None:
    if context.settings.executor != "process":
        return
    images = [("image", spec.image)] + [(f"roles.{name}.image", role.image) for name, role in spec.roles.items()]
    mistakes: list[dict[str, str | None]] = [
        {
            "path": field,
            "message": "this platform runs plain processes (TRAINMASTER_EXECUTOR=process) and cannot run "
            f"image {image}",
            "hint": "omit `image`, or use a platform that runs containers",
        }
        for field, image in images
        if image is not None
    ]
    if mistakes:
        first = mistakes[0]
        raise InvalidSpec(
            f"{first['path']}: {first['message']}; {first['hint']}.", field=first["path"], errors=mistakes
        )


def _check_environment(context: AppContext, spec: JobSpec) -> None:
    """Plain processes run on this machine: a Python that is not there is a mistake at once."""
    environment = spec.environment
    if environment is None or context.settings.executor != "process":
        return
    if environment.python is not None and not Path(environment.python).is_file():
        field, path, what = "environment.python", environment.python, "a program"
    elif environment.venv is not None and not Path(environment.venv, "pyvenv.cfg").is_file():
        field, path, what = "environment.venv", environment.venv, "a virtual environment"
    else:
        return
    message = f"{path} is not {what} on the platform's machine {gethostname()}"
    hint = "name one that is there, or its requirements"
    raise InvalidSpec(
        f"{field}: {message}; {hint}.",
        field=field,
        errors=[{"path": field, "message": message, "hint": hint}],
    )


def submit(work: UnitOfWork, caller: Caller, submission: Submission, *, key: str | None, digest: str) -> Submitted:
    """Write the job as queued, or find the job that an equal request with this ``key`` created.

    Raises:
        InvalidSpec: a secret or the code archive is missing.
        IdempotencyMismatch: the key was used for another request.
        StorageQuotaExceeded: the project's quota is used up.
    """
    storage = check_in_transaction(work, submission)
    if storage.is_full and not _is_repeated(work, caller, key):
        storage.demand_room()
    new = _new_job(work, caller, submission)
    claim = None if key is None else KeyClaim(caller.user_id, key, digest)
    note_project(submission.member.project_id, submission.member.project)
    record = current() if work.by_statement else None
    entry = None if record is None else record.entry_of("job", new.job["id"], new.job["name"])
    earlier = write_job(work.session, new, claim, entry)
    if earlier is not None:
        note_object("job", earlier)
        _demand_present(work, earlier)
        return Submitted(earlier, None)
    note_object("job", new.job["id"])
    if record is not None:
        record.is_committed = True
    work.notify(TOPIC_TICK)
    row = dict(new.job)
    return Submitted(row["id"], row, storage.warnings())


def _is_repeated(work: UnitOfWork, caller: Caller, key: str | None) -> bool:
    """Whether the request has an idempotency key that was used before: its job exists, whatever the quota is now."""
    return key is not None and work.session.get(IdempotencyKey, (caller.user_id, key)) is not None


def check_in_transaction(work: UnitOfWork, submission: Submission) -> StorageState:
    """Checks that need the database: the archive (also marked as used now), the secrets, and the priority.

    Returns:
        The project's storage, whose quota may be used up: that refuses jobs and studies, but no deployments.

    Raises:
        InvalidSpec: the archive or a secret does not exist, or the priority is too high.
        NotFound: the project was deleted.
    """
    _check_code(work, submission.spec)
    _check_secrets(work, submission)
    return _check_project(work, submission)


def digest_of(kind: str, content: Mapping[str, Any]) -> str:
    """A digest that is equal for equal requests."""
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
    # The time of use protects the archive from garbage collection.
    found = work.session.execute(
        update(Archive).where(Archive.digest == spec.code, Archive.is_complete).values(used_at=work.now)
    )
    if found.rowcount == 0:  # type: ignore[attr-defined]
        raise InvalidSpec(
            "code: this archive was not uploaded; upload it first (`trainmaster run` does that itself).",
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
            "hint": f"set it with `trainmaster secrets set {name} --project {submission.member.project}`",
        }
        for number, name in enumerate(names)
        if name not in present
    ]
    if missing:
        raise InvalidSpec(f"{missing[0]['path']}: {missing[0]['message']}.", field=missing[0]["path"], errors=missing)


def _check_project(work: UnitOfWork, submission: Submission) -> StorageState:
    """The project's storage, read with its highest priority. Raises ``InvalidSpec``, ``NotFound``."""
    query = select(Project.max_priority, *state_columns()).outerjoin(
        StorageUsage, StorageUsage.project_id == Project.id
    )
    row = work.session.execute(query.where(Project.id == submission.member.project_id)).one_or_none()
    if row is None:
        raise NotFound(f"There is no project {submission.member.project!r} any more.")
    maximum = row.max_priority
    own = submission.spec.priority
    if maximum is None or own <= maximum:
        return state_of_row(row)
    project = submission.member.project
    message = f"jobs of project {project} may have {priority_words(maximum)} at most, not {priority_words(own)}"
    hint = "a platform admin can change the limit"
    error: dict[str, str | None] = {"path": "priority", "message": message, "hint": hint}
    raise InvalidSpec(f"priority: {message}; {hint}.", field="priority", errors=[error])


def _demand_present(work: UnitOfWork, job_id: str) -> None:
    query = select(Job.id).where(Job.id == job_id, Job.deleted_at.is_(None))
    if work.session.execute(query).scalar_one_or_none() is None:
        raise Conflict("The job of this Idempotency-Key was deleted; use a new key for a new job.")


def clone_name(session: Session, caller: Caller, original: Job | Study) -> str:
    """The default name of a clone: ``digits-2`` for ``digits``, or the next free number.

    A name refers to the newest job or study of that name: a clone of the same name would hide its original.
    """
    table = type(original)
    numbered = _NUMBERED_NAME.fullmatch(original.name)
    # Only the number of a job's clone is incremented; in another name of a job, the number may have a meaning.
    is_counted = isinstance(original, Study) or original.cloned_from is not None
    stem = numbered[1] if numbered and is_counted else original.name
    stem = stem[: _NAME_CHARS - 7].rstrip("-")
    named = select(table.name).where(
        or_(table.name == stem, table.name.startswith(f"{stem}-", autoescape=True)), table.deleted_at.is_(None)
    )
    if not caller.is_admin:
        named = named.where(table.project_id.in_(list(caller.projects)))
    taken = set(session.scalars(named))
    return next(name for name in (f"{stem}-{number}" for number in count(2)) if name not in taken)


def changed_spec(spec: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """``changes`` merged into ``spec`` as a JSON merge patch (RFC 7396): null removes, objects merge, the rest
    replaces.

    Shorthands apply, too: ``workers: 4`` replaces the replicas of the role. The original's ``output`` is dropped, since
    the clone would overwrite its checkpoints; ``changes`` may state any output, also the original's.
    """
    return with_changes({key: value for key, value in spec.items() if key != "output"}, changes)
