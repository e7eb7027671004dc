"""The registrar copies registered model versions: each under its lease, file by file, so that it can go on after a
kill.

The rows are the truth: a file has a hash once it is copied whole and synced, and a version is ready once all files are
published. No intermediate state is ever shown as ready.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final, NamedTuple

import structlog
from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session
from trainmaster.studies import Goal, StudySpec
from trainmaster.wire.models import ModelLineage

from core.db.engine import unit_of_work
from core.db.repositories import models
from core.db.repositories.storage_usage import request_measurement
from core.db.tables import Checkpoint, Job, Model, ModelAlias, ModelFile, ModelHold, ModelVersion, Study, Trial, Volume
from core.domain.errors import Conflict, NotFound, StaleWrite, TrainmasterError, Unavailable
from core.domain.jobs.states import JobState
from core.domain.model_versions import VersionEvent, VersionState
from core.domain.studies.results import values_of
from core.registry.sources import PlannedSource, SourceRequest, UploadedSource, find_below, find_source
from core.registry.versions import Author, lineage_of, lineage_of_upload, record_change
from core.storage.registry import KnownFile, PlannedFile, VersionDraft, digest_of
from core.storage.tree import Tree
from core.storage.volumes import job_output, tree_of
from scheduler.control.attempts.backoff import copy_delay
from scheduler.control.context import ControlContext
from scheduler.control.fence import RenewedLease
from scheduler.control.leased_loop import LeasedLoop, PollingWorker


@dataclass(frozen=True, slots=True)
class VersionFacts:
    """``job``: ``None`` for an upload. ``checkpoint_paths``: reported by the job. ``planned_files``: all files;
    ``copied_files``: by path.
    """

    version: ModelVersion
    model: Model
    job: Job | None
    checkpoint_paths: frozenset[str]
    planned_files: list[PlannedFile]
    copied_files: dict[str, KnownFile]


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
    planned_files = [PlannedFile(file.path, file.source, file.size_bytes, file.mtime_ns) for file in files]
    copied_files = {file.path: KnownFile(file.path, file.size_bytes, file.sha256) for file in files if file.sha256}
    return VersionFacts(version, model, job, frozenset(checkpoint_paths), planned_files, copied_files)


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


def why_better(session: Session, current: ModelVersion, new: ModelVersion) -> str:
    """Why version ``current`` is better than ``new``, without a full stop; empty where it is not, or they do not
    compare.

    They compare where both come from trials of studies with the same metric and goal, by the trials' results.
    """
    old, fresh = _result_of(session, current), _result_of(session, new)
    if old is None or fresh is None or (old.metric, old.goal) != (fresh.metric, fresh.goal):
        return ""
    is_better = old.value < fresh.value if fresh.goal is Goal.MINIMIZE else old.value > fresh.value
    if not is_better:
        return ""
    better = f"its {old.metric} of {old.value:.6g} (study {old.study})"
    return f"{better} is better than {fresh.value:.6g} of study {fresh.study}"


def _result_of(session: Session, version: ModelVersion) -> _TrialResult | None:
    """The result of the trial that the version's job ran, or ran once more."""
    job = None if version.job_id is None else session.get(Job, version.job_id)
    trial_of = None if job is None else job.trial
    study = None if not trial_of else session.get(Study, trial_of["study_id"])
    trial = None if not trial_of else session.get(Trial, (trial_of["study_id"], trial_of["number"]))
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
        self._loop = LeasedLoop(control, kind="version", topic=None, max_passes=1)
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
            if self._backoffs.is_due((version_id, state)):
                self._loop.reconcile(version_id, partial(self._run_pass, version_id))

    def _run_pass(self, version_id: str, lease: RenewedLease) -> bool:
        """False: what is next of it, the next poll shows."""
        with lease.fenced() as session:
            facts = load_facts(session, version_id)
            if facts is None or facts.version.state in _SETTLED:
                return False
            tries = facts.version.copy_attempts + 1
            session.execute(update(ModelVersion).where(ModelVersion.id == version_id).values(copy_attempts=tries))
        task = _VersionTask(lease, facts, tries)
        with suppress(ProcessStopping):
            try:
                self._advance(task)
            except StaleWrite:  # another process has taken it over or deleted it
                self._backoffs.forget(task.key)
                raise
        return False

    def _advance(self, task: _VersionTask) -> None:
        try:
            match VersionState(task.version.state):
                case VersionState.WAITING:
                    self._begin(task)
                case VersionState.REGISTERING:
                    _Registration(self, self._control, task).run()
                case VersionState.DELETING:
                    self._remove(task)
                case _:
                    pass
        except (StaleWrite, ProcessStopping):
            raise
        except Unavailable as away:
            self._retry_later(task, away.sentence)
        except TrainmasterError as error:
            self._fail(task, error.sentence)
        except Exception:
            log.exception("version.failed", version=task.version.id)
            if task.tries >= _MAX_TRIES:
                self._fail(task, _BUG)
            else:
                self._backoffs.note_failure(task.key)
        else:
            self._backoffs.forget(task.key)

    def _begin(self, task: _VersionTask) -> None:
        """Start to register the version of a job that has ended."""
        job = task.facts.job
        state = JobState.SUCCEEDED if job is None else JobState(job.state)
        if job is not None and state is not JobState.SUCCEEDED:
            self._fail(task, f"Job {job.name!r} has not succeeded: it is {state.value}.")
            return
        self.step("begin")
        with task.lease.fenced() as session:
            now = self._control.clock()
            models.move_version(
                session, task.version.id, VersionState.WAITING, VersionEvent.BEGIN, now, reason="", copy_attempts=0
            )
        self._worker.wake()

    def _remove(self, task: _VersionTask) -> None:
        version = task.version
        with unit_of_work(self._control.sessions, read_only=True) as session:
            try:
                volume: Tree | None = registry_volume(session, version.volume)
            except NotFound:
                volume = None  # an administrator removed it, and its files are not ours any more
        if volume is not None:
            self.step("remove")
            VersionDraft(volume, version.path, task.lease.token).remove()
        self.step("forget")
        with task.lease.fenced() as session:
            for table in (ModelAlias, ModelHold, ModelFile):
                session.execute(delete(table).where(table.version_id == version.id))
            session.execute(
                update(ModelVersion).where(ModelVersion.id == version.id).values(deleted_at=self._control.clock())
            )
            request_measurement(session, version.project_id, self._control.clock())

    def _fail(self, task: _VersionTask, reason: str) -> None:
        state = VersionState(task.version.state)
        if state is VersionState.DELETING:
            self._retry_later(task, reason)
            return
        self._backoffs.forget(task.key)
        with task.lease.fenced() as session:
            now = self._control.clock()
            models.move_version(session, task.version.id, state, VersionEvent.FAIL, now, reason=reason)
            session.execute(delete(ModelFile).where(ModelFile.version_id == task.version.id))
            by = Author(task.version.user_id, task.version.registration.get("user", ""), "scheduler")
            record_change(
                session, now, task.facts.model, by, "version.failed", version=task.version.number, reason=reason
            )
        log.info("version.failed", version=task.version.id, why=reason)
        with unit_of_work(self._control.sessions, read_only=True) as session:
            volume = registry_volume(session, task.version.volume)
        # Frees the space; what a kill leaves here is removed when the version is deleted.
        VersionDraft(volume, task.version.path, task.lease.token).remove()

    def _retry_later(self, task: _VersionTask, reason: str) -> None:
        """The failure is not the version's: it is not counted as a try, and retried less and less often."""
        version = task.version
        count, wait = self._backoffs.note_failure(task.key)
        log.warning("version.postponed", version=version.id, why=reason, times=count, wait_s=wait.total_seconds())
        often = "It is tried again" if count == 1 else f"It was tried {count} times and is tried again"
        with task.lease.fenced() as session:
            session.execute(
                update(ModelVersion)
                .where(ModelVersion.id == version.id)
                .values(
                    reason=f"{reason} {often} in {wait.total_seconds():.0f} s.", copy_attempts=max(0, task.tries - 1)
                )
            )

    def note_progress(self, task: _VersionTask) -> None:
        """A file is complete: failures are counted from zero again."""
        task.tries = 0
        self._backoffs.forget(task.key)

    def step(self, name: str) -> None:
        """Before each step. Raises ``ProcessStopping`` when the process is stopping."""
        self._step(name)
        if self._worker.is_stopping:
            raise ProcessStopping


@dataclass(slots=True)
class _VersionTask:
    """What is due for a version, under its lease. ``tries``: as the version's."""

    lease: RenewedLease
    facts: VersionFacts
    tries: int

    @property
    def version(self) -> ModelVersion:
        return self.facts.version

    @property
    def key(self) -> tuple[str, str]:
        """Of its back-off: its id and its state."""
        return self.version.id, self.version.state


class _Registration:
    """The registration of one version, from wherever an earlier one was stopped."""

    def __init__(self, registrar: Registrar, control: ControlContext, task: _VersionTask) -> None:
        self._registrar = registrar
        self._control = control
        self._task = task
        self._lease, self._facts, self._version = task.lease, task.facts, task.version
        self._copied_files = dict(task.facts.copied_files)
        self._unwritten_files: list[KnownFile] = []
        self._copied_bytes = 0
        self._written_s = time.monotonic()

    def run(self) -> None:
        with unit_of_work(self._control.sessions, read_only=True) as session:
            output = source_tree(session, self._facts)
            volume = registry_volume(session, self._version.volume)
        planned_files = self._facts.planned_files or self._plan(output)
        draft = VersionDraft(volume, self._version.path, self._lease.token)
        self._registrar.step("take over")
        draft.take_over()
        self._copied_files = {path: file for path, file in self._copied_files.items() if draft.has(file)}
        self._copied_bytes = sum(file.size_bytes for file in self._copied_files.values())
        files_to_copy = [file for file in planned_files if file.path not in self._copied_files]
        draft.demand_room(sum(file.size_bytes for file in files_to_copy))
        for file in files_to_copy:
            self._registrar.step("copy")
            sha256 = draft.copy(output, file, self._on_piece)
            self._unwritten_files.append(KnownFile(file.path, file.size_bytes, sha256))
            if len(self._unwritten_files) >= _NOTE_FILES or time.monotonic() - self._written_s > NOTE_EVERY_S:
                self._write_down()
        self._write_down()
        files = list(self._copied_files.values())
        self._registrar.step("publish")
        draft.publish(files)
        self._registrar.step("finish")
        self._finish(files)

    def _plan(self, output: Tree) -> list[PlannedFile]:
        source = self._version.source
        source_files = self._find(output)
        self._registrar.step("plan")
        with self._lease.fenced() as session:
            now = self._control.clock()
            lineage = self._lineage(session, source_files)
            self._set(
                session, now, source={**source, "path": source_files.path}, format=source_files.format,
                lineage=lineage.model_dump(mode="json"), size_bytes=source_files.size_bytes,
                file_count=len(source_files.files), reason="",
            )  # fmt: skip
            session.execute(delete(ModelFile).where(ModelFile.version_id == self._version.id))
            session.add_all(
                ModelFile(
                    version_id=self._version.id, path=file.path, source=file.source, size_bytes=file.size_bytes,
                    mtime_ns=file.mtime_ns,
                )
                for file in source_files.files
            )  # fmt: skip
        return source_files.files

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

    def _lineage(self, session: Session, source_files: PlannedSource) -> ModelLineage:
        source, user = self._version.source, self._version.registration.get("user", "")
        if self._facts.job is None:
            return lineage_of_upload(UploadedSource.of_json(source).location, user=user)
        return lineage_of(
            session,
            session.get(Job, self._facts.job.id) or self._facts.job,
            checkpoint=source_files.path if source["kind"] == "checkpoint" else None,
            step=source_files.step,
            user=user,
        )

    def _on_piece(self, size: int) -> None:
        """Called after each copied piece, with its size in bytes."""
        self._copied_bytes += size
        self._lease.renew_if_due()
        self._registrar.step("piece")
        if time.monotonic() - self._written_s > NOTE_EVERY_S:
            self._write_down()

    def _write_down(self) -> None:
        self._registrar.step("write down")
        with self._lease.fenced() as session:
            # Pieces of a file are no progress until the file is complete: only then are tries reset.
            whole = {"copy_attempts": 0} if self._unwritten_files else {}
            self._set(session, self._control.clock(), done_bytes=self._copied_bytes, **whole)
            if self._unwritten_files:
                session.execute(
                    update(ModelFile),
                    [
                        {"version_id": self._version.id, "path": file.path, "sha256": file.sha256}
                        for file in self._unwritten_files
                    ],
                )
        if self._unwritten_files:
            self._registrar.note_progress(self._task)
        self._copied_files |= {file.path: file for file in self._unwritten_files}
        self._unwritten_files = []
        self._written_s = time.monotonic()

    def _finish(self, files: list[KnownFile]) -> None:
        version = self._version
        with self._lease.fenced() as session:
            now = self._control.clock()
            model = models.lock_model(session, version.model_id)
            if model is None:
                raise StaleWrite("the model was deleted")
            models.move_version(
                session, version.id, VersionState.REGISTERING, VersionEvent.FINISH, now,
                digest=digest_of(files), done_bytes=self._copied_bytes, ready_at=now, reason="",
            )  # fmt: skip
            row = session.get(ModelVersion, version.id, populate_existing=True)
            assert row is not None  # noqa: S101 (moved in this transaction)
            user = version.registration.get("user", "")
            by_scheduler = Author(version.user_id, user, "scheduler")
            record_change(session, now, model, by_scheduler, "version.ready", version=version.number)
            by = Author(version.user_id, user, f"user:{user}")
            sentences = []
            for alias in version.registration.get("aliases", ()):
                keeps_better = version.registration.get("keeps_better")
                current = models.find_alias(session, model.id, alias) if keeps_better else None
                why = "" if current is None else why_better(session, current, version)
                if current is not None and why:
                    sentences.append(f"Alias {alias} stays at version {current.number}: {why}.")
                    record_change(
                        session, now, model, by, "alias.kept", version=version.number, name=alias,
                        before=current.number, after=current.number, reason=why,
                    )  # fmt: skip
                    continue
                previous = models.point_alias(session, model, alias, row, now)
                record_change(
                    session, now, model, by, "alias.moved", version=version.number, name=alias, before=previous,
                    after=version.number,
                )  # fmt: skip
            row.reason = " ".join(sentences)
        log.info("version.ready", version=version.id, model=model.name, number=version.number)

    def _set(self, session: Session, now: datetime, **values: object) -> None:
        """Raises ``StaleWrite``: it is no longer being registered."""
        result = session.execute(
            update(ModelVersion)
            .where(ModelVersion.id == self._version.id, ModelVersion.state == VersionState.REGISTERING.value)
            .values(**values, updated_at=now)
        )
        if result.rowcount != 1:  # type: ignore[attr-defined]
            raise StaleWrite("the version was deleted while it was registered")
