"""Supervisor: starts the platform's processes, restarts them on failure, and stops them in order. Jobs that kept
running while the platform was down are listed, and noted in their history.
"""

from __future__ import annotations

import hashlib
import os
import selectors
import signal
import socket
import sys
import time
import traceback
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import structlog
from sqlalchemy import literal, select, update
from sqlalchemy.engine import Engine
from trainmaster.version import full_version

from core.db.engine import make_engine, make_sessions, unit_of_work
from core.db.repositories.events import append_event
from core.db.tables import Attempt, Job, Lease
from core.domain.errors import TrainmasterError
from core.domain.jobs.states import AttemptState
from core.job_users import describe
from core.settings import FIRST_FOLDERS, BadSettings, Settings, read_settings
from core.worker_packages import RUNTIME, PackageMissing, demand_package, missing_pages
from embedded.child import Child, rotate
from embedded.errors import CannotStart
from embedded.listening import in_url, listen, listen_for_replicas
from embedded.lock import STOP_WITHIN_S, HomeLock, write_up_file

log = structlog.get_logger()

READY_WITHIN_S: Final = 120.0
# Stages of the start, reported by `trainmaster up` if it takes too long.
_MIGRATING: Final = "bringing the database up to date"
_PREPARING: Final = "preparing the data folder"
_API: Final = "waiting for the API to answer (logs/api.log)"
_TICK: Final = "waiting for the scheduler's first tick (logs/scheduler.log)"
# Consecutive failed probes after which the API counts as stuck, not slow.
_HEALTH_EVERY_S: Final = 5.0
_HEALTH_TIMEOUT_S: Final = 10.0
_STUCK_AFTER: Final = 4
# The scheduler reconciles every live attempt soon after its start; `up` does not wait for all of a thousand.
_ADOPT_WITHIN_S: Final = 3.0
_LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOOK_EVERY_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class UpOptions:
    home: Path
    host: str
    port: int  # 0: any free one
    executor: str = "process"


class Supervisor:
    """One embedded platform. ``run`` blocks until SIGTERM or SIGINT."""

    def __init__(self, options: UpOptions) -> None:
        self.options = options
        self.home = options.home
        self._stopping = False
        self._stage = ""
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)

    def run(self) -> None:
        """Raises ``CannotStart``."""
        lock = HomeLock.take(self.home)
        try:
            # The previous supervisor may have been killed: its up file names a dead process.
            (self.home / "up.json").unlink(missing_ok=True)
            _make_private(self.home)
            self._run_locked()
        finally:
            (self.home / "up.json").unlink(missing_ok=True)
            lock.release()

    def _run_locked(self) -> None:
        if self.options.executor == "process":
            _demand_runtime()
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        signal.set_wakeup_fd(self._wake_write.fileno())
        listeners = [listen(self.options.host, self.options.port)]
        port = listeners[0].getsockname()[1]
        url = f"http://{in_url(self.options.host)}:{port}"
        more, replica_url = listen_for_replicas(self.options.executor, self.options.host, port)
        listeners += more
        env = self._child_env(port, url, replica_url)
        settings = _settings(env)
        job_users = _describe_job_users(settings)
        self._enter(_MIGRATING)
        _migrate(settings)
        if self._stopping:
            return
        self._enter(_PREPARING)
        login_url, ticks_before = _prepare(settings)
        before = running_before(settings)
        began = datetime.now(UTC)  # noqa: TID251 (the edge of the process)
        children = self._children(env, listeners, settings)
        try:
            for child in children:
                child.start(time.monotonic())
            self._await_ready(children, url, settings, ticks_before)
            if self._stopping:
                return
            adopted = adopt(settings, before, since=began)
            no_pages = missing_pages()
            facts = {
                "url": url,
                "pid": os.getpid(),
                "version": _version(),
                "login_url": login_url,
                "adopted": adopted,
                "job_users": job_users,
                "warnings": [] if no_pages is None else [no_pages],
            }
            write_up_file(self.home, facts)
            log.info("platform.ready", version=full_version(), url=url, home=str(self.home))
            self._watch(children, url)
        finally:
            self._stop(children)
            for listener in listeners:
                listener.close()

    def _child_env(self, port: int, url: str, replica_url: str | None) -> dict[str, str]:
        more = {} if replica_url is None else {"TRAINMASTER_REPLICA_API_URL": replica_url}
        if self.options.executor == "kubernetes" and "TRAINMASTER_HOST_PATHS" not in os.environ:
            # A cluster on this machine: its pods may mount the two volumes of a new data folder, and nothing else.
            more["TRAINMASTER_HOST_PATHS"] = ":".join(str(self.home / folder) for folder in FIRST_FOLDERS)
        return {
            **more,
            "TRAINMASTER_HOME": str(self.home),
            "TRAINMASTER_HOST": self.options.host,
            "TRAINMASTER_PORT": str(port),
            "TRAINMASTER_API_URL": url,
            # There is no other API to fail over to, and the caller waits for the stop.
            "TRAINMASTER_DRAIN_S": "0",
            "TRAINMASTER_SHUTDOWN_GRACE_S": "5",
            "TRAINMASTER_EXECUTOR": self.options.executor,
            "TRAINMASTER_INSTANCE": os.environ.get("TRAINMASTER_INSTANCE") or _instance(self.home),
            "PYTHONUNBUFFERED": "1",
        }

    def _children(self, env: dict[str, str], listeners: list[socket.socket], settings: Settings) -> list[Child]:
        logs = self.home / "logs"
        logs.mkdir(exist_ok=True)
        fds = tuple(listener.fileno() for listener in listeners)
        listen_fds = ",".join(map(str, fds))
        children = [
            Child("api", ("-m", "api"), {**env, "TRAINMASTER_LISTEN_FDS": listen_fds}, logs / "api.log", fds),
            Child("scheduler", ("-m", "scheduler"), env, logs / "scheduler.log"),
        ]
        if not settings.is_embedded_broker:
            # The embedded scheduler has its own beat; with a broker it is a process as in production.
            children.append(Child("beat", ("-m", "scheduler", "beat"), env, logs / "beat.log"))
        return children

    def _await_ready(self, children: list[Child], url: str, settings: Settings, ticks_before: int) -> None:
        deadline_s = time.monotonic() + READY_WITHIN_S
        while not self._stopping:
            does_answer = _answers(f"{url}/api/v1/ready", timeout_s=2.0)
            if does_answer and _ticks(settings) > ticks_before:
                return
            self._enter(_TICK if does_answer else _API)
            failed = next((c for c in children if c.process is not None and c.process.poll() is not None), None)
            if failed is not None:
                raise CannotStart(f"The {failed.name} process ended at once: {_last_line(failed.log_path)}")
            if time.monotonic() > deadline_s:
                raise CannotStart(
                    f"The platform was not ready {READY_WITHIN_S:.0f} s after its processes were started, and was "
                    f"stopped; it was still {self._stage} in {self.home}. Where that log tells of no error, the "
                    "machine is busy: try again."
                )
            self._sleep(0.05)

    def _enter(self, stage: str) -> None:
        if stage != self._stage:
            self._stage = stage
            log.info("platform.starting", stage=stage)
            # `trainmaster up` reads it.
            print(f"Starting: {stage}", file=sys.stderr, flush=True)  # noqa: T201

    def _watch(self, children: list[Child], url: str) -> None:
        next_health_s, misses = time.monotonic() + _HEALTH_EVERY_S, 0
        while not self._stopping:
            now_s = time.monotonic()
            for child in children:
                line = child.poll(now_s)
                if line:
                    log.warning("child.changed", child=child.name, what=line)
                    misses = 0
            if now_s >= next_health_s:
                misses = 0 if _answers(f"{url}/api/v1/health", timeout_s=_HEALTH_TIMEOUT_S) else misses + 1
                if misses >= _STUCK_AFTER:
                    log.error("api.stuck", misses=misses)
                    children[0].signal(signal.SIGKILL)
                    misses = 0
                for child in children:
                    child.rotate_log()
                rotate(self.home / "logs" / "supervisor.log")
                next_health_s = time.monotonic() + _HEALTH_EVERY_S
            self._sleep(0.1)

    def _stop(self, children: list[Child]) -> None:
        # Running jobs are not our children and keep running; the next start adopts them.
        for child in children:
            child.signal(signal.SIGTERM)
        deadline_s = time.monotonic() + STOP_WITHIN_S
        for child in children:
            if not child.wait(max(0.0, deadline_s - time.monotonic())):
                log.warning("child.killed", child=child.name)
                child.signal(signal.SIGKILL)
                child.wait(5.0)
        # Idle warm parents end when their socket disappears.
        for path in (self.home / "run").glob("warm/*/*/socket"):
            path.unlink(missing_ok=True)
        log.info("platform.stopped")

    def _on_signal(self, _number: int, _frame: object) -> None:
        self._stopping = True

    def _sleep(self, seconds: float) -> None:
        """Up to ``seconds``; interrupted by a signal."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_read, selectors.EVENT_READ)
            if selector.select(seconds):
                self._wake_read.recv(64)


def _instance(home: Path) -> str:
    """One name per data folder: platforms that share a container engine must not garbage-collect each other's
    containers.
    """
    return f"home-{hashlib.sha256(f'{socket.gethostname()}:{home}'.encode()).hexdigest()[:12]}"


def _migrate(settings: Settings) -> None:
    # Alembic, a quarter of a second to import, is needed here alone.
    from migrations import upgrade

    try:
        upgrade(settings.resolved_database_url)
    except TrainmasterError as error:
        raise CannotStart(error.sentence) from error
    except Exception as error:
        log_path = settings.home / "logs" / "migrations.log"
        log_path.parent.mkdir(exist_ok=True)
        log_path.write_text(traceback.format_exc(), encoding="utf-8")
        raise CannotStart(
            f"The database could not be brought up to date: {_last_of(str(error))} (whole story in {log_path})"
        ) from error


def _demand_runtime() -> None:
    """No job could start without it, and each would be tried for ever."""
    try:
        demand_package(RUNTIME)
    except PackageMissing as missing:
        raise CannotStart(missing.sentence) from missing


def _settings(env: dict[str, str]) -> Settings:
    os.environ.update(env)
    try:
        return read_settings()
    except BadSettings as error:
        raise CannotStart(str(error)) from error


def _describe_job_users(settings: Settings) -> str | None:
    try:
        return describe(settings)
    except BadSettings as error:
        raise CannotStart(str(error)) from error


def _make_private(home: Path) -> None:
    """No other user of this machine may read the data folder: it holds specs, tokens and outputs."""
    try:
        home.chmod(0o700)
    except PermissionError as error:
        raise CannotStart(
            f"The data folder {home} belongs to another user; choose one of your own with --home."
        ) from error


def _ticks(settings: Settings) -> int:
    """The number of completed ticks; grows as soon as our scheduler works."""
    from sqlalchemy import select

    from core.db.engine import make_engine, make_sessions, unit_of_work
    from core.db.leases import TICK_DONE
    from core.db.tables import Lease

    engine = make_engine(settings.resolved_database_url)
    try:
        with unit_of_work(make_sessions(engine), read_only=True) as session:
            return session.execute(select(Lease.token).where(Lease.name == TICK_DONE)).scalar_one_or_none() or 0
    except TrainmasterError:
        return 0
    finally:
        engine.dispose()


def _prepare(settings: Settings) -> tuple[str, int]:
    """First-start rows, folders and the admin's token file.

    Returns:
        A one-time login link, and the number of completed ticks.
    """
    from core.db.bootstrap import prepare_home
    from core.db.engine import make_engine, make_sessions

    engine = make_engine(settings.resolved_database_url)
    try:
        link = prepare_home(make_sessions(engine), settings, datetime.now(UTC))  # noqa: TID251 (the process' edge)
        return link, _ticks(settings)
    except TrainmasterError as error:
        raise CannotStart(error.sentence) from error
    finally:
        engine.dispose()


def _answers(url: str, *, timeout_s: float) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:  # noqa: S310 (our own address)
            return bool(200 <= answer.status < 300)
    except (OSError, urllib.error.URLError, ValueError):
        return False


def _version() -> str:
    from trainmaster import __version__

    return __version__


def _last_line(path: Path) -> str:
    try:
        return _last_of(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return "its log cannot be read"


def _last_of(text: str) -> str:
    """The last line that says something; SQLAlchemy ends its errors with the statement and a link."""
    lines = [
        line for line in text.splitlines() if line.strip() and not line.startswith(("(Background on", "[SQL", "[par"))
    ]
    return lines[-1].strip() if lines else "it said nothing"


@dataclass(frozen=True, slots=True)
class RunningAttempt:
    """An attempt that was running when the platform stopped."""

    attempt_id: str
    job_id: str
    project_id: str
    name: str
    number: int


def running_before(settings: Settings) -> list[RunningAttempt]:
    """The attempts that ran when the last platform stopped; empty if the database is unreadable.

    The next scheduler reconciles these first; otherwise healthy attempts are reconciled rarely.
    """
    query = (
        select(Attempt.id, Job.id, Job.project_id, Job.name, Attempt.number)
        .join(Job, Job.id == Attempt.job_id)
        .where(Attempt.state == AttemptState.RUNNING.value)
        .order_by(Job.created_at)
    )
    engine = make_engine(settings.resolved_database_url)
    try:
        with unit_of_work(make_sessions(engine)) as session:
            attempts = [RunningAttempt(*row) for row in session.execute(query)]
            looks = [f"attempt:{attempt.attempt_id}" for attempt in attempts]
            session.execute(update(Lease).where(Lease.name.in_(looks)).values(expires_at=_LONG_AGO))
            return attempts
    except TrainmasterError:
        return []
    finally:
        engine.dispose()


def adopt(settings: Settings, before: Sequence[RunningAttempt], *, since: datetime) -> list[str]:
    """The names of the jobs of ``before`` that the scheduler has reconciled after ``since`` and found running; adds an
    event.

    Waits for the reconcile passes, at most 3 s.
    """
    if not before:
        return []
    engine = make_engine(settings.resolved_database_url)
    try:
        deadline_s = time.monotonic() + _ADOPT_WITHIN_S
        while True:
            states = _looked_at(engine, [attempt.attempt_id for attempt in before], since)
            if len(states) == len(before) or time.monotonic() > deadline_s:
                break
            time.sleep(_LOOK_EVERY_S)  # noqa: TID251 (polls for the reconcile passes, with a deadline)
        adopted = [attempt for attempt in before if states.get(attempt.attempt_id) == AttemptState.RUNNING.value]
        with unit_of_work(make_sessions(engine)) as session:
            for attempt in adopted:
                append_event(
                    session,
                    at=datetime.now(UTC),  # noqa: TID251 (the edge of the process)
                    kind="attempt.adopted",
                    actor="scheduler",
                    project_id=attempt.project_id,
                    job_id=attempt.job_id,
                    attempt_id=attempt.attempt_id,
                    reason=f"The platform came back and found attempt {attempt.number} running.",
                )
        return [attempt.name for attempt in adopted]
    except TrainmasterError:
        return []  # informative only; the platform works
    finally:
        engine.dispose()


def _looked_at(engine: Engine, attempts: Sequence[str], since: datetime) -> dict[str, str]:
    """States of the attempts reconciled since then; a released lease expires at the end of the pass."""
    query = (
        select(Attempt.id, Attempt.state)
        .join(Lease, Lease.name == literal("attempt:") + Attempt.id)
        .where(Attempt.id.in_(attempts), Lease.expires_at >= since)
    )
    with unit_of_work(make_sessions(engine), read_only=True) as session:
        return {row[0]: row[1] for row in session.execute(query)}
