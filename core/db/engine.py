"""Engines and sessions for PostgreSQL and SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.orm import Session, sessionmaker

from core.domain.errors import Unavailable

SessionFactory = sessionmaker[Session]


def make_engine(url: str, *, pool_size: int = 10) -> Engine:
    """An engine whose connections are checked, bounded in number and never wait for ever.

    SQLite runs in WAL mode, with foreign keys, and every transaction that our code opens takes the write lock when
    it first writes, waiting up to 10 s for another writer.
    """
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        # One writer at a time is SQLite's rule: the time-out is for the others to wait in line.
        engine = create_engine(url, hide_parameters=True, connect_args={"timeout": 10, "check_same_thread": False})
        event.listen(engine, "connect", _on_sqlite_connect)
        event.listen(engine, "begin", _on_sqlite_begin)
        return engine
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    return create_engine(
        parsed,
        hide_parameters=True,  # an error's text goes to the log, and parameters may be secrets
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_timeout=5,
        pool_pre_ping=True,
        connect_args={"connect_timeout": 5, "options": "-c timezone=UTC -c lock_timeout=10s -c statement_timeout=60s"},
    )


def make_sessions(engine: Engine) -> SessionFactory:
    return sessionmaker(engine, expire_on_commit=False)


def _on_sqlite_connect(connection: Any, _record: Any) -> None:
    # The driver's own implicit BEGIN comes too late for a consistent snapshot; ours is sent in _on_sqlite_begin.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "busy_timeout=10000"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _on_sqlite_begin(connection: Any) -> None:
    # IMMEDIATE: a transaction that reads first and writes later would otherwise fail with "database is locked"
    # at once, without waiting, when another one wrote in between.
    mode = "DEFERRED" if connection.get_execution_options().get("trainmaster_read_only") else "IMMEDIATE"
    connection.exec_driver_sql(f"BEGIN {mode}")


@contextmanager
def unit_of_work(sessions: SessionFactory, *, read_only: bool = False) -> Iterator[Session]:
    """A session that commits at the end of the block and rolls back on an error.

    Raises:
        Unavailable: the database is away.
    """
    try:
        with sessions() as session:
            if read_only:
                session.connection(execution_options={"trainmaster_read_only": True})
            with session.begin() if not session.in_transaction() else _joined(session):
                yield session
    except (OperationalError, InterfaceError) as error:
        raise Unavailable("The database is away or busy; try again in a moment.", retry_after_s=2.0) from error
    except DBAPIError as error:
        if error.connection_invalidated:
            raise Unavailable("The database went away; try again in a moment.", retry_after_s=2.0) from error
        raise


@contextmanager
def _joined(session: Session) -> Iterator[None]:
    try:
        yield
    except BaseException:
        session.rollback()
        raise
    session.commit()
