"""The registrar copies registered model versions: each under its lease, file by file, so that it can go on after a
kill.

The rows are the truth: a file has a hash once it is copied whole and synced, and a version is ready once all files are
published. No intermediate state is ever shown as ready.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import structlog
from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session
from trainmaster.studies import Goal, StudySpec
from trainmaster.wire.models import ModelLineage

from core.db import leases
from core.db.engine import unit_of_work
from core.db.leases import HeldLease
from core.db.repositories import models
from core.db.tables import Checkpoint, Job, Model, ModelAlias, ModelFile, ModelHold, ModelVersion, Study, Trial, Volume
from core.domain.errors import Conflict, NotFound, StaleWrite, TrainmasterError, Unavailable
from core.domain.jobs.states import JobState
from core.domain.model_versions import VersionEvent, VersionState
from core.domain.studies.results import values_of
from core.registry.lineage import lineage_of, lineage_of_upload
from core.registry.sources import PlannedSource, SourceRequest, UploadedSource, find_below, find_source
from core.registry.versions import Author, record_change
from core.storage.registry import KnownFile, PlannedFile, VersionDraft, digest_of
from core.storage.tree import Tree
from core.storage.volumes import job_output, tree_of
from scheduler.control.attempts.backoff import copy_delay
from scheduler.control.context import ControlContext
from scheduler.control.fence import RenewedLease
from scheduler.control.leased_loop import PollingWorker
from scheduler.messaging.work_queue import InFlight


@dataclass(frozen=True, slots=True)
class VersionFacts:
    """``job``: ``None`` for an upload. ``checkpoint_paths``: reported by the job. ``planned``: all files; ``known``:
    the copied ones, by path.
    """

    version: ModelVersion
    model: Model
    job: Job | None
    checkpoint_paths: frozenset[str]
    planned: list[PlannedFile]
    known: dict[str, KnownFile]


def load_facts(session: Session, version_id: str) -> VersionFacts | None:
    """``None``: the version is deleted."""
    row = session.execute(
        select(ModelVersion, Model, Job)
        .join(Model, Model.id == ModelVersion.model_id)
        .outerjoin(Job, Job.id == ModelVersion.job_id)
        .where(ModelVersion.id == version_id, ModelVersion.deleted_at.is_(None))
    ).one_or_none()
    if row is None:
        return None
    version, model, job = row
    checkpoint_paths = session.scalars(select(Checkpoint.path).where(Checkpoint.job_id == version.job_id)).all()
    files = session.scalars(select(ModelFile).where(ModelFile.version_id == version_id).order_by(ModelFile.path)).all()
    planned = [PlannedFile(file.path, file.source, file.size_bytes, file.mtime_ns) for file in files]
    known = {file.path: KnownFile(file.path, file.size_bytes, file.sha256) for file in files if file.sha256}
    return VersionFacts(version, model, job, frozenset(checkpoint_paths), planned, known)


def source_tree(session: Session, facts: VersionFacts) -> Tree:
    """The source of its files: the job's output, or the volume that they were uploaded to.

    Raises:
        NotFound: the volume was removed.
        Conflict: the control plane does not see the volume.
    """
    if facts.job is not None:
        return job_output(session, facts.job)
    uploaded = UploadedSource.of_json(facts.version.source)
    volume = session.execute(select(Volume).where(Volume.name == uploaded.volume)).scalar_one_or_none()
    if volume is None:
        raise NotFound(f"The volume {uploaded.volume!r} that it was uploaded to is not registered any more.")
    return tree_of(volume).below(uploaded.base)


def registry_volume(session: Session, name: str) -> Tree:
    """The registry's volume. Raises ``NotFound`` or ``Conflict`` where it cannot be written to."""
    volume = session.execute(select(Volume).where(Volume.name == name)).scalar_one_or_none()
    if volume is None:
        raise NotFound(f"The registry's volume {name!r} is not registered any more.")
    if volume.is_read_only:
        raise Conflict(f"The registry's volume {name!r} is read-only.")
    return tree_of(volume)


class BackoffTracker:
    """Consecutive failures of each key, and when it is due again. Of one process: another process tries at once.

    The delay grows, as a failing disk does not recover from being read. Thread-safe.
    """

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures: dict[Hashable, tuple[int, datetime]] = {}

    def is_due(self, key: Hashable) -> bool:
        with self._lock:
            failure = self._failures.get(key)
        return failure is None or failure[1] <= self._clock()

    def note_failure(self, key: Hashable) -> tuple[int, timedelta]:
        """Count a failure; returns the number of consecutive failures and the delay until the next try."""
        with self._lock:
            count = self._failures[key][0] + 1 if key in self._failures else 1
            wait = copy_delay(count)
            self._failures[key] = count, self._clock() + wait
        return count, wait

    def forget(self, key: Hashable) -> None:
        """The key has made progress, or there is nothing left to do."""
        with self._lock:
            self._failures.pop(key, None)


class _TrialResult(NamedTuple):
    study: str
    metric: str
    goal: Goal
    value: float


def why_better(session: Session, there: ModelVersion, new: ModelVersion) -> str:
    """Why version ``there`` is better than ``new``, without a full stop; empty where it is not, or they do not compare.

    They compare where both come from trials of studies with the same metric and goal, by the trials' results.
    """
    old, own = _result_of(session, there), _result_of(session, new)
    if old is None or own is None or (old.metric, old.goal) != (own.metric, own.goal):
        return ""
    is_better = old.value < own.value if own.goal is Goal.MINIMIZE else old.value > own.value
    if not is_better:
        return ""
    return (
        f"its {old.metric} of {old.value:.6g} (study {old.study}) is better than {own.value:.6g} of study {own.study}"
    )


def _result_of(session: Session, version: ModelVersion) -> _TrialResult | None:
    """The result of the trial that the version's job ran, or ran once more."""
    job = None if version.job_id is None else session.get(Job, version.job_id)
    about = None if job is None else job.trial
    study = None if not about else session.get(Study, about["study_id"])
    trial = None if not about else session.get(Trial, (about["study_id"], about["number"]))
    if study is None or trial is None:
        return None
    spec = StudySpec.model_validate(study.spec)
    first = spec.metrics[0]
    values = values_of(trial.result, [first.name])
    return None if values is None else _TrialResult(study.name, first.name, first.goal, values[0])


log = structlog.get_logger(__name__)

# A version that a dead scheduler left unfinished sends no wake-up, and neither does a job that ends.
_POLL_S: Final = 2.0
# Versions that one process copies at once: a large one does not delay small ones.
_THREADS: Final = 2
# A version that kills its scheduler, or fails unexpectedly, is not tried for ever.
_MAX_TRIES: Final = 5
# Progress is written after so many seconds or files.
NOTE_EVERY_S: Final = 1.0
_NOTE_FILES: Final = 200
_SETTLED: Final = (VersionState.READY.value, VersionState.FAILED.value)
_BUG: Final = "The registration failed, which is a bug; the scheduler's log says where (version.failed)."


class ProcessStopping(Exception):
    """The process is stopping: copied files are left for the next one."""


class Registrar:
    """Registers and deletes model versions, in threads; one per process."""

    def __init__(
        self, control: ControlContext, *, limit_bytes: int, step: Callable[[str], None] = lambda _name: None
    ) -> None:
        """``step``: called with the name of each step before it is done; tests kill there."""
        self._control = control
        self.limit_bytes = limit_bytes
        self._step = step
        self._inflight: InFlight[str] = InFlight()
        # By version and state: deleting a version does not wait for the back-off of its registration.
        self._backoffs = BackoffTracker(control.clock)
        self._worker = PollingWorker("version", "registrar", self.work, threads=_THREADS, every_s=_POLL_S)

    def start(self) -> None:
        """Start with the pending versions, and go on polling for more. Returns at once."""
        self._worker.start()

    def close(self) -> None:
        """Stop after the piece that is being copied; the next scheduler goes on."""
        self._worker.close()

    def work(self) -> None:
        """Do all that is due now, except versions in flight and in back-off.

        Raises:
            Unavailable: the database is away.
        """
        with unit_of_work(self._control.sessions, read_only=True) as session:
            due = models.due_versions(session)
        for version_id, state in due:
            if self._worker.is_stopping:
                return
            if not self._backoffs.is_due((version_id, state)):
                continue
            if not self._inflight.start(version_id):
                continue
            try:
                self._work_on(version_id)
            finally:
                self._inflight.finish(version_id)

    def _work_on(self, version_id: str) -> None:
        control = self._control
        with unit_of_work(control.sessions) as session:
            facts = load_facts(session, version_id)
            if facts is None or facts.version.state in _SETTLED:
                return
            lease = leases.acquire(
                session, f"version:{version_id}", holder=control.holder, now=control.clock(), ttl=control.lease_ttl
            )
            if lease is None:
                return
            tries = facts.version.copy_attempts + 1
            session.execute(update(ModelVersion).where(ModelVersion.id == version_id).values(copy_attempts=tries))
        leased = _LeasedVersion(control, lease, tries)
        try:
            self._advance(leased, facts)
        except StaleWrite as stale:
            self._backoffs.forget((version_id, facts.version.state))
            log.debug("version.stale", version=version_id, why=str(stale))
            return  # another process has taken it over or deleted it: the next poll shows which
        except ProcessStopping:
            pass
        leased.release()

    def _advance(self, leased: _LeasedVersion, facts: VersionFacts) -> None:
        key = facts.version.id, facts.version.state
        try:
            match VersionState(facts.version.state):
                case VersionState.WAITING:
                    self._begin(leased, facts)
                case VersionState.REGISTERING:
                    _Registration(self, leased, facts).run()
                case VersionState.DELETING:
                    self._remove(leased, facts)
                case _:
                    pass
        except (StaleWrite, ProcessStopping):
            raise
        except Unavailable as away:
            self._retry_later(leased, facts, away.sentence)
        except TrainmasterError as error:
            self._fail(leased, facts, error.sentence)
        except Exception:
            log.exception("version.failed", version=facts.version.id)
            if leased.tries >= _MAX_TRIES:
                self._fail(leased, facts, _BUG)
            else:
                self._backoffs.note_failure(key)
        else:
            self._backoffs.forget(key)

    def _begin(self, leased: _LeasedVersion, facts: VersionFacts) -> None:
        """Start to register the version of a job that has ended."""
        job = facts.job
        state = JobState.SUCCEEDED if job is None else JobState(job.state)
        if job is not None and state is not JobState.SUCCEEDED:
            self._fail(leased, facts, f"Job {job.name!r} has not succeeded: it is {state.value}.")
            return
        self.step("begin")
        with leased.fenced() as session:
            now = self._control.clock()
            models.move_version(
                session, facts.version.id, VersionState.WAITING, VersionEvent.BEGIN, now, reason="", copy_attempts=0
            )
        self._worker.wake()

    def _remove(self, leased: _LeasedVersion, facts: VersionFacts) -> None:
        version = facts.version
        with unit_of_work(self._control.sessions, read_only=True) as session:
            try:
                volume: Tree | None = registry_volume(session, version.volume)
            except NotFound:
                volume = None  # an administrator removed it, and its files are not ours any more
        if volume is not None:
            self.step("remove")
            VersionDraft(volume, version.path, leased.lease.token).remove()
        self.step("forget")
        with leased.fenced() as session:
            for table in (ModelAlias, ModelHold, ModelFile):
                session.execute(delete(table).where(table.version_id == version.id))
            session.execute(
                update(ModelVersion).where(ModelVersion.id == version.id).values(deleted_at=self._control.clock())
            )

    def _fail(self, leased: _LeasedVersion, facts: VersionFacts, reason: str) -> None:
        state = VersionState(facts.version.state)
        if state is VersionState.DELETING:
            self._retry_later(leased, facts, reason)
            return
        self._backoffs.forget((facts.version.id, state.value))
        with leased.fenced() as session:
            now = self._control.clock()
            models.move_version(session, facts.version.id, state, VersionEvent.FAIL, now, reason=reason)
            session.execute(delete(ModelFile).where(ModelFile.version_id == facts.version.id))
            by = Author(facts.version.user_id, facts.version.registration.get("user", ""), "scheduler")
            record_change(session, now, facts.model, by, "version.failed", version=facts.version.number, reason=reason)
        log.info("version.failed", version=facts.version.id, why=reason)
        with unit_of_work(self._control.sessions, read_only=True) as session:
            volume = registry_volume(session, facts.version.volume)
        # Frees the space; what a kill leaves here is removed when the version is deleted.
        VersionDraft(volume, facts.version.path, leased.lease.token).remove()

    def _retry_later(self, leased: _LeasedVersion, facts: VersionFacts, reason: str) -> None:
        """The failure is not the version's: it is not counted as a try, and retried less and less often."""
        version = facts.version
        count, wait = self._backoffs.note_failure((version.id, version.state))
        log.warning("version.postponed", version=version.id, why=reason, times=count, wait_s=wait.total_seconds())
        often = "It is tried again" if count == 1 else f"It was tried {count} times and is tried again"
        with leased.fenced() as session:
            session.execute(
                update(ModelVersion)
                .where(ModelVersion.id == version.id)
                .values(
                    reason=f"{reason} {often} in {wait.total_seconds():.0f} s.", copy_attempts=max(0, leased.tries - 1)
                )
            )

    def note_progress(self, leased: _LeasedVersion, version: ModelVersion) -> None:
        """A file is complete: failures are counted from zero again."""
        leased.tries = 0
        self._backoffs.forget((version.id, version.state))

    def step(self, name: str) -> None:
        """Before each step. Raises ``ProcessStopping`` when the process is stopping."""
        self._step(name)
        if self._worker.is_stopping:
            raise ProcessStopping


class _LeasedVersion(RenewedLease):
    """The lease of a version. ``tries``: as the version's."""

    def __init__(self, control: ControlContext, lease: HeldLease, tries: int) -> None:
        super().__init__(control, lease)
        self.tries = tries


class _Registration:
    """The registration of one version, from wherever an earlier one was stopped."""

    def __init__(self, registrar: Registrar, leased: _LeasedVersion, facts: VersionFacts) -> None:
        self._registrar = registrar
        self._control = leased.control
        self._leased = leased
        self._facts = facts
        self._version = facts.version
        self._done = dict(facts.known)
        self._unwritten: list[KnownFile] = []
        self._done_bytes = 0
        self._noted_s = time.monotonic()

    def run(self) -> None:
        with unit_of_work(self._control.sessions, read_only=True) as session:
            output = source_tree(session, self._facts)
            volume = registry_volume(session, self._version.volume)
        planned = self._facts.planned or self._plan(output)
        draft = VersionDraft(volume, self._version.path, self._leased.lease.token)
        self._registrar.step("take over")
        draft.take_over()
        self._done = {path: file for path, file in self._done.items() if draft.has(file)}
        self._done_bytes = sum(file.size_bytes for file in self._done.values())
        left = [file for file in planned if file.path not in self._done]
        draft.demand_room(sum(file.size_bytes for file in left))
        for file in left:
            self._registrar.step("copy")
            sha256 = draft.copy(output, file, self._on_piece)
            self._unwritten.append(KnownFile(file.path, file.size_bytes, sha256))
            if len(self._unwritten) >= _NOTE_FILES or time.monotonic() - self._noted_s > NOTE_EVERY_S:
                self._write_down()
        self._write_down()
        files = list(self._done.values())
        self._registrar.step("publish")
        draft.publish(files)
        self._registrar.step("finish")
        self._finish(files)

    def _plan(self, output: Tree) -> list[PlannedFile]:
        source = self._version.source
        found = self._find(output)
        self._registrar.step("plan")
        with self._leased.fenced() as session:
            now = self._control.clock()
            lineage = self._lineage(session, found)
            self._set(session, now, source={**source, "path": found.path}, format=found.format,
                      lineage=lineage.model_dump(mode="json"), size_bytes=found.size_bytes, file_count=len(found.files),
                      reason="")  # fmt: skip
            session.execute(delete(ModelFile).where(ModelFile.version_id == self._version.id))
            session.add_all(
                ModelFile(
                    version_id=self._version.id, path=file.path, source=file.source, size_bytes=file.size_bytes,
                    mtime_ns=file.mtime_ns,
                )
                for file in found.files
            )  # fmt: skip
        return found.files

    def _find(self, output: Tree) -> PlannedSource:
        source, limit = self._version.source, self._registrar.limit_bytes
        job = self._facts.job
        if job is None:
            return find_below(output, UploadedSource.of_json(source).path, limit_bytes=limit)
        is_checkpoint = source["kind"] == "checkpoint"
        request = SourceRequest(checkpoint=source["path"]) if is_checkpoint else SourceRequest(path=source["path"])
        return find_source(
            output,
            request,
            reported=self._facts.checkpoint_paths,
            trial=(job.trial or {}).get("number"),
            limit_bytes=limit,
        )

    def _lineage(self, session: Session, found: PlannedSource) -> ModelLineage:
        source, user = self._version.source, self._version.registration.get("user", "")
        if self._facts.job is None:
            return lineage_of_upload(UploadedSource.of_json(source).location, user=user)
        return lineage_of(
            session,
            session.get(Job, self._facts.job.id) or self._facts.job,
            checkpoint=found.path if source["kind"] == "checkpoint" else None,
            step=found.step,
            user=user,
        )

    def _on_piece(self, size: int) -> None:
        """Called after each copied piece, with its size in bytes."""
        self._done_bytes += size
        self._leased.renew_if_due()
        self._registrar.step("piece")
        if time.monotonic() - self._noted_s > NOTE_EVERY_S:
            self._write_down()

    def _write_down(self) -> None:
        self._registrar.step("write down")
        with self._leased.fenced() as session:
            # Pieces of a file are no progress until the file is complete: only then are tries reset.
            whole = {"copy_attempts": 0} if self._unwritten else {}
            self._set(session, self._control.clock(), done_bytes=self._done_bytes, **whole)
            if self._unwritten:
                session.execute(
                    update(ModelFile),
                    [
                        {"version_id": self._version.id, "path": file.path, "sha256": file.sha256}
                        for file in self._unwritten
                    ],
                )
        if self._unwritten:
            self._registrar.note_progress(self._leased, self._version)
        self._done |= {file.path: file for file in self._unwritten}
        self._unwritten = []
        self._noted_s = time.monotonic()

    def _finish(self, files: list[KnownFile]) -> None:
        version = self._version
        with self._leased.fenced() as session:
            now = self._control.clock()
            model = models.lock_model(session, version.model_id)
            if model is None:
                raise StaleWrite("the model was deleted")
            models.move_version(
                session, version.id, VersionState.REGISTERING, VersionEvent.FINISH, now,
                digest=digest_of(files), done_bytes=self._done_bytes, ready_at=now, reason="",
            )  # fmt: skip
            row = session.get(ModelVersion, version.id, populate_existing=True)
            assert row is not None  # noqa: S101 (moved in this transaction)
            user = version.registration.get("user", "")
            by_scheduler = Author(version.user_id, user, "scheduler")
            record_change(session, now, model, by_scheduler, "version.ready", version=version.number)
            by = Author(version.user_id, user, f"user:{user}")
            unmoved = []
            for alias in version.registration.get("aliases", ()):
                there = (
                    models.find_alias(session, model.id, alias) if version.registration.get("keeps_better") else None
                )
                why = "" if there is None else why_better(session, there, version)
                if there is not None and why:
                    unmoved.append(f"Alias {alias} stays at version {there.number}: {why}.")
                    record_change(session, now, model, by, "alias.kept", version=version.number, name=alias,
                         before=there.number, after=there.number, reason=why)  # fmt: skip
                    continue
                before = models.point_alias(session, model, alias, row, now)
                record_change(session, now, model, by, "alias.moved", version=version.number, name=alias, before=before,
                     after=version.number)  # fmt: skip
            row.reason = " ".join(unmoved)
        log.info("version.ready", version=version.id, model=model.name, number=version.number)

    def _set(self, session: Session, now: datetime, **values: object) -> None:
        """Raises ``StaleWrite``: it is no longer being registered."""
        hit = session.execute(
            update(ModelVersion)
            .where(ModelVersion.id == self._version.id, ModelVersion.state == VersionState.REGISTERING.value)
            .values(**values, updated_at=now)
        )
        if hit.rowcount != 1:  # type: ignore[attr-defined]
            raise StaleWrite("the version was deleted while it was registered")
