"""Garbage collection in the executor, the database and on the disk, of checkpoints by their jobs' retention rules. Each
step may be repeated; none depends on another. Orphaned attempts in the executor are left alone for a while: of which
database they are, and since when they are known, is written down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

import structlog
from sqlalchemy import delete, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from core.db.bootstrap import ensure_database_id
from core.db.engine import UntypedRow, unit_of_work
from core.db.repositories import forecast_records, vertex_records
from core.db.repositories.checkpoints import complete_of, forget, pinned_paths, used_paths
from core.db.repositories.events import append_event
from core.db.repositories.job_speeds import delete_of_deleted_jobs
from core.db.repositories.metrics import writes
from core.db.repositories.metrics.steps import values_at
from core.db.repositories.outgoing import notifications, webhooks
from core.db.tables import (
    Attempt,
    Event,
    IdempotencyKey,
    Job,
    Lease,
    LoginCode,
    MetricStream,
    MlflowModel,
    MlflowModelVersion,
    MlflowRun,
    Orphan,
    Retention,
    TensorBoardLink,
    Token,
)
from core.domain.errors import ExecutorTryAgain, TrainmasterError
from core.domain.ids import AttemptId
from core.domain.jobs.retention import RetentionCandidate, RetentionRule, checkpoints_to_delete
from core.domain.jobs.states import JobState
from core.inspection.discovery import CheckpointFiles
from core.settings import Settings
from core.storage.archives import ArchiveStore, gc_archives
from core.storage.optuna_tables import gc_tables
from core.storage.tree import Tree
from core.storage.volumes import job_output
from scheduler.control import fence
from scheduler.control.attempts.launching.commands import log_unkilled
from scheduler.control.context import ControlContext
from scheduler.control.journal import SCHEDULER, Journal
from scheduler.control.maintenance.audit import cut_audit
from scheduler.control.maintenance.retention import apply_policies, check_disks
from scheduler.control.planning.plan_log import prune
from scheduler.control.planning.quarantine_updates import delete_old_failures

log = structlog.get_logger(__name__)

GC_LEASE: Final = "gc"
# Attempts that this database created and does not know any more were lost to a restored backup: an administrator may
# still want to keep them.
ORPHAN_GRACE: Final = timedelta(minutes=10)
ORPHAN_FORGOTTEN: Final = "orphans.forgotten"
FOREIGN: Final = "orphans.foreign"
_NAMES_IN_EVENT: Final = 10
# Longer than any client retries a request.
_IDEMPOTENCY_AGE: Final = timedelta(days=1)
_LOGIN_CODE_AGE: Final = timedelta(hours=1)
# Lists show expired and revoked tokens for so long; their events stay.
_TOKEN_AGE: Final = timedelta(days=30)
_LEASE_AGE: Final = timedelta(days=1)
BATCH_SIZE: Final = 500
# Events are deleted in small transactions, and one run deletes only so many: the next one is minutes away.
EVENT_BATCH_SIZE: Final = 500
_EVENT_BATCHES: Final = 40
_METRIC_BATCH: Final = 20  # jobs whose metrics are deleted at once
_TERMINAL: Final = tuple(state.value for state in JobState if state.is_terminal)
# An ended job writes no more: its rule is applied for so long after its end, or after the rule was set.
_APPLY_AFTER_END: Final = timedelta(days=1)
# Of one job at once: the next run is minutes away, and other jobs wait.
_MAX_DELETED: Final = 100


def gc_executor(control: ControlContext) -> int:
    """Remove from the executor what no live attempt owns; returns the number of removed attempts.

    An attempt is in the database before anything of it is created, so what has ended there has no owner. What is not
    there at all, an orphan, may be lost to an empty, wrong or restored database: see :func:`_note_orphans`.
    """
    in_engine = control.executor.attempts()  # before the database is read, which then contains all of them
    database_id = ensure_database_id(control.sessions)
    known: set[str] = set()
    live: set[str] = set()
    names = sorted(in_engine)
    with unit_of_work(control.sessions, read_only=True) as session:
        for begin in range(0, len(names), BATCH_SIZE):
            chunk = names[begin : begin + BATCH_SIZE]
            for name, ended_at in session.execute(select(Attempt.id, Attempt.ended_at).where(Attempt.id.in_(chunk))):
                known.add(name)
                if ended_at is None:
                    live.add(name)
    orphans = {name: database for name, database in in_engine.items() if name not in known}
    overdue = _note_orphans(control, orphans, database_id)
    removed = 0
    for attempt_id in sorted((in_engine.keys() & known) - live | overdue):
        try:
            control.executor.remove(attempt_id)
        except ExecutorTryAgain:
            continue  # until the next run
        log_unkilled(control.executor, attempt_id)
        removed += 1
        log.info("attempt.removed", attempt=attempt_id)
    return removed


def _note_orphans(control: ControlContext, orphans: Mapping[AttemptId, str], database_id: str) -> frozenset[AttemptId]:
    """Update the table of orphans and report new ones; returns those whose patience is over, which may be removed.

    Another database's attempts are never among them: they are left alone.

    Args:
        orphans: attempt -> the database that the engine names; empty where it names none (a platform of a version that
            wrote no id, or a driver whose engine is not shared): such attempts count as this database's.
        database_id: this database's.
    """
    with unit_of_work(control.sessions, read_only=True) as session:
        known = {row.attempt_id: row for row in session.scalars(select(Orphan))}
    now = control.clock()
    removed = sorted(known.keys() - orphans.keys())
    fresh = sorted(orphans.keys() - known.keys())[:BATCH_SIZE]
    if removed or fresh:
        with unit_of_work(control.sessions) as session:
            for begin in range(0, len(removed), BATCH_SIZE):
                session.execute(delete(Orphan).where(Orphan.attempt_id.in_(removed[begin : begin + BATCH_SIZE])))
            foreign = {name: orphans[name] not in ("", database_id) for name in fresh}
            rows = {
                name: Orphan(attempt_id=name, database_id=orphans[name], is_foreign=foreign[name], found_at=now)
                for name in fresh
            }
            new = [name for name, row in rows.items() if _add_orphan(session, row)]
            _add_orphan_event(session, [name for name in new if not foreign[name]], (), now)
            others = [name for name in new if foreign[name]]
            _add_orphan_event(session, others, sorted({orphans[name] for name in others}), now)
    return frozenset(
        AttemptId(name)
        for name, row in known.items()
        if name in orphans and not row.is_foreign and now - row.found_at >= ORPHAN_GRACE
    )


def _add_orphan(session: Session, orphan: Orphan) -> bool:
    """False when another scheduler wrote it at the same moment, and reports it."""
    try:
        with session.begin_nested():
            session.add(orphan)
    except IntegrityError:
        return False
    return True


def _add_orphan_event(session: Session, names: Sequence[str], databases: Sequence[str], now: datetime) -> None:
    """One event for ``names``: attempts that this database has forgotten, or that belong to other ``databases``."""
    if not names:
        return
    count = f"{len(names)} attempt{'s' if len(names) > 1 else ''}"
    if databases:
        kind = FOREIGN
        reason = (
            f"The executor holds {count} of another database ({', '.join(databases)}) under this platform's "
            "TRAINMASTER_INSTANCE. They are left alone and keep what they have: start the platform with their "
            "database, or remove them by their label trainmaster/database."
        )
    else:
        kind = ORPHAN_FORGOTTEN
        reason = (
            f"The executor holds {count} that this database does not know any more, as after a backup was restored. "
            f"They are removed in {ORPHAN_GRACE.total_seconds() / 60:.0f} minutes; stop the schedulers to keep them."
        )
    data = {"count": len(names), "attempts": list(names[:_NAMES_IN_EVENT]), "databases": list(databases)}
    append_event(session, at=now, kind=kind, actor=SCHEDULER, reason=reason, data=data)
    log.error(kind, **data)


def gc_jobs(control: ControlContext) -> int:
    """Mark jobs as deleted whose ``ttl`` after their end is over; returns how many. Their files stay.

    Reads all ended jobs with a ttl, in pages: many jobs with a long ttl must not hide one with a short ttl.
    """
    now = control.clock()
    ttl = Job.spec["ttl"].as_float()
    query = (
        select(Job.id, Job.project_id, Job.finished_at, ttl.label("ttl"))
        .where(Job.state.in_(_TERMINAL), Job.deleted_at.is_(None), ttl.is_not(None), Job.finished_at <= now)
        .order_by(Job.id)
        .limit(BATCH_SIZE)
    )
    deleted = 0
    last_id = ""
    while True:
        with unit_of_work(control.sessions, read_only=True) as session:
            page = session.execute(query.where(Job.id > last_id)).all()
        expired = [row for row in page if row.finished_at + timedelta(seconds=row.ttl) <= now]
        if expired:
            with unit_of_work(control.sessions) as session:
                deleted += sum(_delete_job(session, row, now) for row in expired)
        if len(page) < BATCH_SIZE:
            return deleted
        last_id = page[-1].id


def _delete_job(session: Session, row: UntypedRow, now: datetime) -> bool:
    """False when it was deleted by another process meanwhile."""
    hit = session.execute(
        update(Job)
        .where(Job.id == row.id, Job.deleted_at.is_(None))
        .values(deleted_at=now, updated_at=now, generation=Job.generation + 1)
        .returning(Job.id)
        .execution_options(synchronize_session=False)
    ).first()
    if hit is not None:
        Journal(session, row.project_id, row.id).add(
            "job.deleted", f"Its ttl of {row.ttl:g} s after the end is over.", at=now
        )
    return hit is not None


def gc_events(control: ControlContext, retention: timedelta) -> int:
    """Delete the events of deleted jobs that ended longer ago than ``retention``; returns how many."""
    # From jobs to events, by the index on events.job_id: most events belong to live jobs.
    batch = (
        select(Event.id)
        .join(Job, Job.id == Event.job_id)
        .where(Job.deleted_at.is_not(None), Job.state.in_(_TERMINAL), Job.finished_at < control.clock() - retention)
        .limit(EVENT_BATCH_SIZE)
    )
    dropped = 0
    for _ in range(_EVENT_BATCHES):
        # Short transactions: other writers wait for one batch at most.
        with unit_of_work(control.sessions) as session:
            ids = session.scalars(batch).all()
            if ids:
                session.execute(delete(Event).where(Event.id.in_(ids)))
        dropped += len(ids)
        if len(ids) < EVENT_BATCH_SIZE:
            break
    return dropped


def gc_metrics(control: ControlContext) -> int:
    """Delete the metrics of deleted jobs; returns the number of jobs."""
    batch = (
        select(MetricStream.owner_id)
        .join(Job, Job.id == MetricStream.owner_id)
        .where(Job.deleted_at.is_not(None), Job.state.in_(_TERMINAL))
        .distinct()
        .limit(_METRIC_BATCH)
    )
    dropped = 0
    while True:
        with unit_of_work(control.sessions) as session:
            ids = session.scalars(batch).all()
            writes.delete_metrics(session, ids)
        dropped += len(ids)
        if len(ids) < _METRIC_BATCH:
            return dropped


def gc_speeds(control: ControlContext) -> int:
    """Delete the measured speeds of deleted jobs; returns how many."""
    with unit_of_work(control.sessions) as session:
        return delete_of_deleted_jobs(session)


def gc_runs(control: ControlContext) -> int:
    """Delete the MLflow runs of deleted jobs; returns the number of rows. Names of models stay, as others may use
    them.
    """
    deleted = select(Job.id).where(Job.deleted_at.is_not(None), Job.state.in_(_TERMINAL))
    dropped = 0
    for table in (MlflowModelVersion, MlflowModel, MlflowRun):
        with unit_of_work(control.sessions) as session:
            result = session.execute(delete(table).where(table.job_id.in_(deleted)))
            dropped += result.rowcount  # type: ignore[attr-defined]
    return dropped


def gc_records(control: ControlContext) -> int:
    """Delete what clients of Vertex AI stored in deleted projects; returns the number of records."""
    dropped = 0
    while True:
        with unit_of_work(control.sessions) as session:
            batch = vertex_records.delete_records(session, BATCH_SIZE)
        dropped += batch
        if batch < BATCH_SIZE:
            return dropped


def gc_expired(control: ControlContext) -> None:
    """Delete expired idempotency keys, login codes, tokens (browser sessions included), TensorBoard links and
    leases.
    """
    now = control.clock()
    with unit_of_work(control.sessions) as session:
        session.execute(delete(IdempotencyKey).where(IdempotencyKey.created_at < now - _IDEMPOTENCY_AGE))
        session.execute(delete(LoginCode).where(LoginCode.expires_at < now - _LOGIN_CODE_AGE))
        session.execute(delete(TensorBoardLink).where(TensorBoardLink.expires_at < now))
        for over in (Token.expires_at, Token.revoked_at):
            old = over < now - _TOKEN_AGE
            session.execute(delete(TensorBoardLink).where(TensorBoardLink.token_id.in_(select(Token.id).where(old))))
            session.execute(delete(Token).where(old))
        # A day after its last use no process can still hold a token of the lease.
        session.execute(
            delete(Lease).where(
                or_(
                    Lease.name.startswith("attempt:"),
                    Lease.name.startswith("study:"),
                    Lease.name.startswith("endpoint:"),
                    Lease.name.startswith("storage:"),
                ),
                Lease.expires_at < now - _LEASE_AGE,
            )
        )


def gc_plan_records(control: ControlContext, settings: Settings) -> int:
    """Delete plan records that are too old or take too much space; returns how many."""
    with unit_of_work(control.sessions) as session:
        return prune(
            session,
            now=control.clock(),
            keep=timedelta(days=settings.plan_record_days),
            max_bytes=settings.plan_record_bytes,
        )


def gc_node_failures(control: ControlContext) -> int:
    """Delete failures that are too old to quarantine a node; returns how many."""
    with unit_of_work(control.sessions) as session:
        return delete_old_failures(session, control.clock())


def gc_forecasts(control: ControlContext) -> None:
    """Delete all but the newest scores of start forecasts."""
    with unit_of_work(control.sessions) as session:
        forecast_records.prune(session)


def gc_deliveries(control: ControlContext, keep: timedelta) -> int:
    """Delete the oldest finished deliveries of webhooks, and notifications; returns how many."""
    old, limit = control.clock() - keep, EVENT_BATCH_SIZE * _EVENT_BATCHES
    with unit_of_work(control.sessions) as session:
        deleted = webhooks.delete_deliveries(session, finished_before=old, limit=limit)
        return deleted + notifications.delete_notifications(session, finished_before=old, limit=limit)


def collect_garbage(control: ControlContext, settings: Settings) -> None:
    """Every slow step; a failure is logged and does not affect the others."""
    with fence.leased(control, GC_LEASE) as lease:
        if lease is None:
            return
        for name, step in _steps(control, settings).items():
            try:
                step()
            except Exception:
                log.exception("gc.failed", step=name)


def _steps(control: ControlContext, settings: Settings) -> Mapping[str, Callable[[], object]]:
    store = ArchiveStore(settings.archive_dir, limit_bytes=settings.archive_limit_bytes)
    return {
        "ttl": lambda: gc_jobs(control),
        "retention": lambda: apply_policies(control),
        "disks": lambda: check_disks(control, settings),
        "events": lambda: gc_events(control, timedelta(days=settings.event_retention_days)),
        "audit": lambda: cut_audit(control, timedelta(days=settings.audit_retention_days)),
        "deliveries": lambda: gc_deliveries(control, timedelta(days=settings.webhook_retention_days)),
        "plans": lambda: gc_plan_records(control, settings),
        "failures": lambda: gc_node_failures(control),
        "forecasts": lambda: gc_forecasts(control),
        "metrics": lambda: gc_metrics(control),
        "speeds": lambda: gc_speeds(control),
        "runs": lambda: gc_runs(control),
        "records": lambda: gc_records(control),
        "optuna": lambda: gc_tables(control.sessions, settings),
        "expired": lambda: gc_expired(control),
        "checkpoints": lambda: apply_retention(control),
        "archives": lambda: gc_archives(control.sessions, store, now=control.clock()),
    }


def apply_retention(control: ControlContext) -> int:
    """Delete the checkpoints that the rules give up; returns how many.

    The newest checkpoint, pinned ones and those in use stay, whatever a rule says.
    """
    recent = control.clock() - _APPLY_AFTER_END
    query = (
        select(Retention.job_id)
        .join(Job, Job.id == Retention.job_id)
        .where(
            Job.deleted_at.is_(None),
            or_(Job.state.not_in(_TERMINAL), Job.finished_at > recent, Retention.updated_at > recent),
        )
        .order_by(Retention.job_id)
    )
    with unit_of_work(control.sessions, read_only=True) as session:
        job_ids = session.scalars(query).all()
    deleted = 0
    for job_id in job_ids:
        try:
            deleted += _apply_rule(control, job_id)
        except (TrainmasterError, OSError) as error:
            log.warning("retention.failed", job=job_id, why=str(error))
    return deleted


def _apply_rule(control: ControlContext, job_id: str) -> int:
    with unit_of_work(control.sessions, read_only=True) as session:
        job, retention = session.get(Job, job_id), session.get(Retention, job_id)
        if job is None or retention is None:
            return 0
        rule = RetentionRule.from_json(retention.rule)
        tree = job_output(session, job)
        found = complete_of(session, job, tree)
        candidates = _with_metric(session, job, rule, [candidate for candidate, _ in found])
        protected = pinned_paths(session, job) | used_paths(session, job)
    parts = {candidate.path: landed for candidate, landed in found}
    expired = checkpoints_to_delete(rule, candidates, protected)
    deleted = 0
    for candidate in expired[:_MAX_DELETED]:
        deleted += _delete_checkpoint(control, job_id, tree, parts[candidate.path])
    return deleted


def _with_metric(
    session: Session, job: Job, rule: RetentionRule, found: Sequence[RetentionCandidate]
) -> list[RetentionCandidate]:
    """With the rule's metric as the job's processes reported it at the checkpoints' steps, where it came separately."""
    metric = rule.metric
    if metric is None:
        return list(found)
    steps = [candidate.step for candidate in found if candidate.step is not None and metric not in candidate.metrics]
    values = values_at(session, job.id, steps, [metric])
    return [
        candidate
        if candidate.step is None or metric in candidate.metrics
        else replace(candidate, metrics=values[candidate.step])
        for candidate in found
    ]


def _delete_checkpoint(control: ControlContext, job_id: str, tree: Tree, landed: CheckpointFiles) -> bool:
    """Whether it was deleted: since the rule was applied, a user may have pinned it, or a job gone on from it."""
    with unit_of_work(control.sessions) as session:
        job = session.get(Job, job_id)
        if job is None or landed.path in pinned_paths(session, job) | used_paths(session, job):
            return False
        forget(session, job, landed.path)
        Journal(session, job.project_id, job.id).add(
            "checkpoint.deleted", f"{landed.path}, by the job's retention", at=control.clock()
        )
    for part in landed.parts:
        tree.delete(part)
    return True
