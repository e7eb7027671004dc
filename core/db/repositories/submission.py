"""From a spec to the rows of a queued job (the one factory for jobs of users and of studies), and their writing: the
job, its labels, its first event and its idempotency key, all of it or none. Idempotency keys of other requests, too.

On PostgreSQL it is one statement. The simple equivalent is the four inserts that SQLite gets (``_write_each``); each of
them costs a round trip and, in Python, more than the database needs for it, while all clients of a busy platform queue
behind it. The parts of one statement do not see each other's rows, hence each checks in ``claim`` whether the key is
ours; foreign keys are checked at the statement's end, when the job is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

from sqlalchemy import (
    Connection,
    Insert,
    String,
    Table,
    bindparam,
    column,
    exists,
    func,
    insert,
    literal,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Session
from trainmaster.spec import JobSpec

from core.db.audit import AUDIT_TABLE, CONTENT_FIELDS
from core.db.engine import UntypedRow, UntypedSelect, insert_into
from core.db.repositories.jobs import ROLE_KEY
from core.db.tables import Event, IdempotencyKey, Job, JobLabel
from core.domain.errors import IdempotencyMismatch
from core.domain.jobs.states import DesiredState, JobState
from core.domain.sharing.resources import gang_of

_JOBS: Final = cast("Table", Job.__table__)
_LABELS: Final = cast("Table", JobLabel.__table__)
_EVENTS: Final = cast("Table", Event.__table__)
_KEYS: Final = cast("Table", IdempotencyKey.__table__)

_JOB_DEFAULTS: Final[dict[str, Any]] = {
    "generation": 1,
    "wait_reason": None,
    "attempt_count": 0,
    "restart_count": 0,
    "not_before": None,
    "exit": None,
    "resume_choice": None,
    "run_s": 0.0,
    "attained_gpu_s": 0.0,
    "preemption": None,
    "trial": None,
    "preempt_count": 0,
    "waiting_since": None,
    "preempting_since": None,
    "started_at": None,
    "finished_at": None,
    "deleted_at": None,
    "pinned_by": None,
    "expired": None,
}
_EVENT_DEFAULTS: Final[dict[str, Any]] = {"attempt_id": None, "reason": "", "data": {}}


@dataclass(frozen=True, slots=True)
class KeyClaim:
    """``request_digest`` is equal for equal requests."""

    user_id: str
    key: str
    request_digest: str


@dataclass(frozen=True, slots=True)
class NewJob:
    """Rows by column name. ``job`` may omit columns with a default; ``event`` is about this job."""

    job: Mapping[str, Any]
    labels: Sequence[tuple[str, str]]
    event: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JobSubmission:
    """A job to be written. ``output_path``: ``None`` for a folder of its own. ``trial``: see ``Job.trial``."""

    id: str
    spec: JobSpec
    project_id: str
    project: str
    user_id: str
    output_volume: str
    output_path: str | None = None
    cloned_from: str | None = None
    resume_from: str | None = None
    trial: Mapping[str, Any] | None = None


def new_job(order: JobSubmission, *, now: datetime, actor: str, reason: str = "") -> NewJob:
    """The rows of a job that is queued at ``now``, for :func:`write_job`."""
    spec, gang = order.spec, gang_of(order.spec)
    row = {
        "id": order.id,
        "project_id": order.project_id,
        "user_id": order.user_id,
        "name": spec.name,
        "spec": spec.model_dump(mode="json"),
        "gang": gang.to_json(),
        "shape": gang.shape(),
        "gpu_milli": gang.gpu_milli,
        "state": JobState.QUEUED.value,
        "desired_state": DesiredState.RUN.value,
        "priority": spec.priority,
        "max_run_time_s": spec.max_run_time,
        "output_volume": order.output_volume,
        "output_path": f"{order.project}/{order.id}" if order.output_path is None else order.output_path,
        "resume_from": order.resume_from,
        "cloned_from": order.cloned_from,
        "trial": None if order.trial is None else dict(order.trial),
        "created_at": now,
        "queued_at": now,
        "updated_at": now,
    }
    event = {
        "at": now,
        "kind": "job.queued",
        "actor": actor,
        "project_id": order.project_id,
        "job_id": order.id,
        "reason": reason,
    }
    labels = [*spec.labels.items(), *((ROLE_KEY, role) for role in spec.roles)]
    return NewJob(row, labels, event)


def write_job(
    session: Session, new: NewJob, claim: KeyClaim | None, audit_entry: Mapping[str, Any] | None = None
) -> str | None:
    """Write everything and return ``None``; or the job's id if an equal request claimed the key before.

    ``audit_entry``: of the request, where no other part of the transaction writes it.

    A second request that arrives during the first one's transaction waits for its end.

    Raises:
        IdempotencyMismatch: the key was used for another request.
    """
    connection = session.connection()
    write = _write_at_once if connection.dialect.name == "postgresql" else _write_each
    if write(connection, new, claim, audit_entry):
        return None
    assert claim is not None  # noqa: S101 (nothing else keeps a job from being written)
    row = connection.execute(_FIND_KEY, {"user_id": claim.user_id, "key": claim.key}).one()
    return _earlier_id(row, claim, "use a fresh key for another job")


_FIND_KEY: Final = select(_KEYS.c.request_digest, _KEYS.c.job_id).where(
    _KEYS.c.user_id == bindparam("user_id"), _KEYS.c.key == bindparam("key")
)
_CLAIM: Final = sqlite.insert(_KEYS).on_conflict_do_nothing().returning(_KEYS.c.job_id)
_INSERT_JOB: Final = insert(_JOBS)
_INSERT_LABELS: Final = insert(_LABELS)
_INSERT_EVENT: Final = insert(_EVENTS).inline()
_INSERT_AUDIT: Final = insert(AUDIT_TABLE).inline()


def _write_each(
    connection: Connection, new: NewJob, claim: KeyClaim | None, audit_entry: Mapping[str, Any] | None
) -> bool:
    job_id = new.job["id"]
    if claim is not None and connection.execute(_CLAIM, _key_row(new, claim)).scalar_one_or_none() is None:
        return False
    connection.execute(_INSERT_JOB, {**_JOB_DEFAULTS, **new.job})
    if new.labels:
        labels = dict.fromkeys(new.labels)
        connection.execute(_INSERT_LABELS, [{"job_id": job_id, "key": key, "value": value} for key, value in labels])
    connection.execute(_INSERT_EVENT, {**_EVENT_DEFAULTS, **new.event})
    if audit_entry is not None:
        connection.execute(_INSERT_AUDIT, audit_entry)
    return True


def _write_at_once(
    connection: Connection, new: NewJob, claim: KeyClaim | None, audit_entry: Mapping[str, Any] | None
) -> bool:
    labels = list(dict.fromkeys(new.labels))
    values = {f"job_{name}": value for name, value in {**_JOB_DEFAULTS, **new.job}.items()}
    values |= {f"event_{name}": value for name, value in {**_EVENT_DEFAULTS, **new.event}.items()}
    values |= {"label_keys": [key for key, _ in labels], "label_values": [value for _, value in labels]}
    if claim is not None:
        values |= {f"key_{name}": value for name, value in _key_row(new, claim).items()}
    if audit_entry is not None:
        values |= {f"audit_{name}": value for name, value in audit_entry.items()}
    statement = _AT_ONCE[claim is not None, audit_entry is not None]
    return connection.execute(statement, values).rowcount == 1


def _key_row(new: NewJob, claim: KeyClaim) -> dict[str, Any]:
    return {
        "user_id": claim.user_id,
        "key": claim.key,
        "request_digest": claim.request_digest,
        "job_id": new.job["id"],
        "created_at": new.job["created_at"],
    }


def _bound(table: Table, prefix: str, names: Sequence[str]) -> list[Any]:
    return [bindparam(f"{prefix}_{name}", type_=table.c[name].type) for name in names]


def _statement(*, with_key: bool, with_audit: bool) -> Insert:
    keys = [name.name for name in _KEYS.columns]
    claim = (
        postgresql.insert(_KEYS)
        .values(dict(zip(keys, _bound(_KEYS, "key", keys), strict=True)))
        .on_conflict_do_nothing()
        .returning(_KEYS.c.job_id)
        .cte("claim")
    )

    def if_claimed(query: UntypedSelect) -> UntypedSelect:
        return query.where(exists(select(literal(1)).select_from(claim))) if with_key else query

    jobs = [name.name for name in _JOBS.columns]
    job = insert(_JOBS).from_select(jobs, if_claimed(select(*_bound(_JOBS, "job", jobs))), include_defaults=False)
    pairs = (
        func.unnest(bindparam("label_keys", type_=ARRAY(String)), bindparam("label_values", type_=ARRAY(String)))
        .table_valued(column("key", String), column("value", String), name="pairs")
        .render_derived()
    )
    label = insert(_LABELS).from_select(
        ["job_id", "key", "value"],
        if_claimed(select(bindparam("job_id", type_=String), pairs.c.key, pairs.c.value)),
        include_defaults=False,
    )
    events = [name.name for name in _EVENTS.columns if name.name != "id"]
    event = insert(_EVENTS).from_select(
        events, if_claimed(select(*_bound(_EVENTS, "event", events))), include_defaults=False
    )
    parts = [job.cte("job"), label.cte("label")]
    if with_audit:
        entry = if_claimed(select(*_bound(AUDIT_TABLE, "audit", CONTENT_FIELDS)))
        parts.append(insert(AUDIT_TABLE).from_select(CONTENT_FIELDS, entry, include_defaults=False).cte("audit_entry"))
    statement = event.add_cte(*([claim, *parts] if with_key else parts)).inline()
    return statement.execution_options(preserve_rowcount=True)  # else SQLAlchemy counts only updates and deletes


_AT_ONCE: Final = {
    (with_key, with_audit): _statement(with_key=with_key, with_audit=with_audit)
    for with_key in (False, True)
    for with_audit in (False, True)
}


def claim_key(session: Session, claim: KeyClaim, made_id: str, now: datetime) -> str | None:
    """Claim the key of a request other than a job's submission for ``made_id`` and return ``None``; or the id that an
    equal earlier request created.

    Raises:
        IdempotencyMismatch: the key was used for another request.
    """
    values = {
        "user_id": claim.user_id,
        "key": claim.key,
        "request_digest": claim.request_digest,
        "job_id": made_id,
        "created_at": now,
    }
    fresh = insert_into(session, _KEYS).values(**values).on_conflict_do_nothing().returning(_KEYS.c.job_id)
    if session.connection().execute(fresh).scalar_one_or_none() is not None:
        return None
    return find_key(session, claim)


def find_key(session: Session, claim: KeyClaim) -> str | None:
    """The id that an equal earlier request created, if any. Raises like ``claim_key``."""
    row = session.execute(_FIND_KEY, {"user_id": claim.user_id, "key": claim.key}).one_or_none()
    return None if row is None else _earlier_id(row, claim, "use a fresh key")


def _earlier_id(row: UntypedRow, claim: KeyClaim, advice: str) -> str:
    if row.request_digest != claim.request_digest:
        raise IdempotencyMismatch(
            f"This Idempotency-Key came before with another request; {advice}.", field="Idempotency-Key"
        )
    return str(row.job_id)
