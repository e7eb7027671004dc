"""Engines and sessions for PostgreSQL and SQLite, inserts with ON CONFLICT for both, and type aliases of rows.

The aliases are of rows and queries whose columns the type checkers need not know.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from weakref import WeakKeyDictionary

import orjson
from sqlalchemy import Engine, Row, Select, create_engine, event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import ExceptionContext, make_url
from sqlalchemy.exc import DBAPIError, DisconnectionError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session, sessionmaker

from core.db.json import UnstorableValue, dump_json
from core.domain.errors import InsufficientStorage, RowsLocked, TrainmasterError, Unavailable

if TYPE_CHECKING:
    from core.db.liveness import ServerLiveness

SessionFactory = sessionmaker[Session]
UntypedRow: TypeAlias = Row[*tuple[Any, ...]]
UntypedSelect: TypeAlias = Select[*tuple[Any, ...]]

# Seconds. SQLite allows one writer at a time; other writers wait this long.
SQLITE_WAIT_S: Final = 10
# Seconds to wait for a pooled connection while all of them are busy.
_POOL_WAIT_S: Final = 3
_CONNECT_S: Final = 3  # whole seconds
# TCP keep-alive settings for libpq. A peer that vanished is detected after some 15 s of idling, or when it has not
# acknowledged sent data for 10 s. A frozen server acknowledges everything; ``core.db.liveness`` detects that.
_KEEP_ALIVE: Final = {
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
# A recently used connection is alive; a ping costs a round trip, a tenth of a small request.
_PING_AFTER_IDLE_S: Final = 5.0
_BUSY: Final = "The database is away or busy; try again in a moment."
_FULL: Final = "The database's disk is full; an admin must free some space, then try again."
_EMPTY: Final = "The database has no tables of this version yet; an admin must run `python -m migrations upgrade`."
# https://www.postgresql.org/docs/current/errcodes-appendix.html
_POSTGRES_FULL: Final = frozenset({"53100"})
_POSTGRES_NO_TABLE: Final = frozenset({"42P01", "42703"})
# Retryable although the connection survives: serialization failure, deadlock, lock or statement time-out, too many
# connections, shutdown.
_POSTGRES_PASSING: Final = ("40", "53", "55P03", "57")
_POSTGRES_LOCKED: Final = frozenset({"40P01", "55P03"})  # of these: deadlock, lock time-out


def make_engine(url: str, *, pool_size: int = 10) -> Engine:
    """An engine with checked connections, a bounded pool and time-outs on every wait.

    SQLite runs in WAL mode with foreign keys. A transaction that may write takes the write lock when it begins, waiting
    up to 10 s for another writer.
    """
    parsed = make_url(url)
    json = {"json_serializer": _dump_json, "json_deserializer": orjson.loads}
    if parsed.get_backend_name() == "sqlite":
        engine = create_engine(
            url,
            hide_parameters=True,
            connect_args={"timeout": SQLITE_WAIT_S, "check_same_thread": False},
            **({"pool_size": pool_size, "max_overflow": pool_size} if parsed.database else {}),
            **json,
        )
        event.listen(engine, "handle_error", _on_error)
        event.listen(engine, "connect", _on_sqlite_connect)
        event.listen(engine, "begin", _on_sqlite_begin)
        return engine
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    engine = create_engine(
        parsed,
        hide_parameters=True,  # an error's text goes to the log, and parameters may be secrets
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_timeout=_POOL_WAIT_S,
        connect_args={
            "connect_timeout": _CONNECT_S,
            # Without it the driver gives bytes instead of text where the database's encoding is SQL_ASCII.
            "client_encoding": "utf8",
            "options": "-c timezone=UTC -c lock_timeout=10s -c statement_timeout=60s",
            **_KEEP_ALIVE,
        },
        **json,
    )
    _watch_liveness(engine)
    event.listen(engine, "checkin", _on_checkin)
    event.listen(engine, "checkout", _on_checkout)
    return engine


_liveness_of: Final[WeakKeyDictionary[Engine, ServerLiveness]] = WeakKeyDictionary()


def is_away(engine: Engine) -> bool:
    """Whether the database is known not to respond; ``False`` also means that no probe ran lately."""
    pulse = _liveness_of.get(engine)
    return pulse is not None and pulse.is_away


def _watch_liveness(engine: Engine) -> None:
    """Make the engine's connections give up on a server that does not respond."""
    import psycopg  # SQLite's users need not load it

    from core.db.liveness import ServerLiveness, ServerNotResponding, WatchedConnection, make_probe

    arguments, parameters = engine.dialect.create_connect_args(engine.url)
    pulse = _liveness_of[engine] = ServerLiveness(make_probe(*arguments, **parameters))

    def connect(_dialect: Any, _record: Any, arguments: Any, parameters: Any) -> WatchedConnection:
        if pulse.is_away:
            raise ServerNotResponding("the server does not answer")
        try:
            connection = WatchedConnection.connect(*arguments, **parameters)
        except psycopg.errors.ConnectionTimeout:
            pulse.declare_away()
            raise
        except psycopg.OperationalError as error:
            if error.sqlstate is None:
                pulse.suspect()
            raise
        connection.may_wait = pulse.may_wait
        return connection

    event.listen(engine, "do_connect", connect)


def make_sessions(engine: Engine) -> SessionFactory:
    return sessionmaker(engine, expire_on_commit=False)


def _dump_json(value: Any) -> str:
    return dump_json(value).decode()


def _on_error(context: ExceptionContext) -> None:
    """SQLite's driver has no error of its own for a number that no column takes."""
    if isinstance(context.original_exception, OverflowError):
        raise UnstorableValue("A number in the request is out of range: at most 64 bits are kept.", field="body")


def _on_sqlite_connect(connection: Any, _record: Any) -> None:
    # The driver's own implicit BEGIN comes too late for a consistent snapshot; ours is sent in _on_sqlite_begin.
    connection.isolation_level = None
    cursor = connection.cursor()
    pragmas = ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", f"busy_timeout={SQLITE_WAIT_S * 1000}")
    for pragma in pragmas:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _on_sqlite_begin(connection: Any) -> None:
    # IMMEDIATE: a transaction that reads first and writes later would otherwise fail with "database is locked"
    # at once, without waiting, when another one wrote in between.
    mode = "DEFERRED" if connection.get_execution_options().get("trainmaster_read_only") else "IMMEDIATE"
    connection.exec_driver_sql(f"BEGIN {mode}")


def _on_checkin(_connection: Any, record: Any) -> None:
    record.info["used_at"] = time.monotonic()


def _on_checkout(connection: Any, record: Any, _proxy: Any) -> None:
    """``pool_pre_ping``, but only for a connection that idled. The pool answers the error with a fresh one."""
    used_at = record.info.get("used_at")
    if used_at is None or time.monotonic() - used_at < _PING_AFTER_IDLE_S:
        return
    try:
        connection.execute("select 1")
        connection.rollback()
    except Exception as error:
        raise DisconnectionError("the connection went away while it idled") from error


# SQLite's waiting writers poll with sleeps of up to 100 ms, so that a writer may starve for seconds. The threads of one
# process therefore queue here, and only other processes are waited for by polling. A database in memory has one user.
_sqlite_writers: Final[dict[str, threading.Lock]] = {}


@contextmanager
def _write_turn(sessions: SessionFactory) -> Iterator[None]:
    engine: Engine = sessions.kw["bind"]
    if engine.dialect.name != "sqlite" or not engine.url.database:
        yield
        return
    turn = _sqlite_writers.setdefault(str(engine.url.database), threading.Lock())
    if not turn.acquire(timeout=SQLITE_WAIT_S):
        raise Unavailable(_BUSY, retry_after_s=2.0)
    try:
        yield
    finally:
        turn.release()


@contextmanager
def unit_of_work(
    sessions: SessionFactory, *, read_only: bool = False, by_statement: bool = False, is_snapshot: bool = False
) -> Iterator[Session]:
    """A session that commits at the end of the block and rolls back on an error.

    Args:
        is_snapshot: of a read-only session: all its statements see one state of the database (on SQLite they always
            do).
        by_statement: a single statement writes everything, so PostgreSQL runs in autocommit mode, which saves BEGIN and
            COMMIT, two round trips of three. No effect on SQLite.

    Never open a second writing session inside the block: on SQLite it would deadlock with the first.

    Raises:
        Unavailable: the database is away, busy, or has no tables yet; ``RowsLocked`` if only some rows are locked.
        InsufficientStorage: its disk is full.
    """
    if is_away(sessions.kw["bind"]):
        raise Unavailable(_BUSY, retry_after_s=2.0)
    try:
        with nullcontext() if read_only else _write_turn(sessions), sessions() as session:
            if read_only:
                options: dict[str, Any] = {"trainmaster_read_only": True}
                if is_snapshot and session.get_bind().dialect.name == "postgresql":
                    options["isolation_level"] = "REPEATABLE READ"
                session.connection(execution_options=options)
            elif by_statement and session.get_bind().dialect.name == "postgresql":
                session.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
            yield session
            session.commit()
    except PoolTimeout as error:
        raise Unavailable(_BUSY, retry_after_s=2.0) from error
    except DBAPIError as error:
        public = _public_error(error)
        if public is None:
            raise
        raise public from error


def _public_error(error: DBAPIError) -> TrainmasterError | None:
    """The error to show to users; ``None`` if the failure is a bug of ours."""
    original = error.orig
    if isinstance(original, sqlite3.Error):
        code = getattr(original, "sqlite_errorcode", None)
        if code is not None and code & 0xFF == sqlite3.SQLITE_FULL:
            return InsufficientStorage(_FULL)
        if isinstance(error, OperationalError):
            is_empty = "no such table" in str(original) or "no such column" in str(original)
            return Unavailable(_EMPTY if is_empty else _BUSY, retry_after_s=2.0)
        return None
    state: str | None = getattr(original, "sqlstate", None)
    if state in _POSTGRES_FULL:
        return InsufficientStorage(_FULL)
    if state in _POSTGRES_NO_TABLE:
        return Unavailable(_EMPTY, retry_after_s=2.0)
    if state in _POSTGRES_LOCKED:
        return RowsLocked(_BUSY, retry_after_s=2.0)
    # Without a state the server never answered.
    is_passing = error.connection_invalidated or (
        state.startswith(_POSTGRES_PASSING) if state else isinstance(error, OperationalError)
    )
    return Unavailable(_BUSY, retry_after_s=2.0) if is_passing else None


def insert_into(session: Session, entity: Any) -> Any:
    """An insert with ``on_conflict_do_update`` and ``on_conflict_do_nothing`` of the session's own dialect."""
    return (postgresql if session.get_bind().dialect.name == "postgresql" else sqlite).insert(entity)
