"""Optuna's tables of a project and their removal: a schema of the platform's PostgreSQL, or an SQLite file.

They are dropped after the project's deletion is committed. A kill in between leaves them behind, and so does a
concurrent call; garbage collection finds leftovers by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import structlog
from sqlalchemy import URL, Engine, create_engine, make_url, select, text
from sqlalchemy.exc import SQLAlchemyError

from core.db.engine import SessionFactory, unit_of_work
from core.db.tables import Project

if TYPE_CHECKING:
    from pathlib import Path

    from core.settings import Settings

log = structlog.get_logger(__name__)

# Milliseconds; bounds how long a hanging database blocks a thread.
WAITS: Final = "-c statement_timeout=20000 -c lock_timeout=5000 -c idle_in_transaction_session_timeout=30000"
_PREFIX: Final = "optuna_"
_FILE: Final = ".sqlite3"


def folder_of(settings: Settings) -> Path:
    """The folder of the files, in the embedded mode."""
    return settings.home / "optuna"


def file_of(folder: Path, project_id: str) -> Path:
    return folder / f"{project_id}{_FILE}"


def schema_of(project_id: str) -> str:
    """Ids are letters, digits, ``-`` and ``_``; a PostgreSQL name has at most 63 of them."""
    return f"{_PREFIX}{project_id}".lower()


def psycopg_of(url: URL) -> URL:
    return url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url


@contextmanager
def exclusive_connection(url: URL, project_id: str) -> Iterator[Any]:
    """A connection with an exclusive lock on the project's schema until the block ends."""
    engine: Engine = create_engine(psycopg_of(url), pool_size=1, connect_args={"connect_timeout": 3, "options": WAITS})
    try:
        with engine.connect() as connection:
            key = int.from_bytes(hashlib.sha256(schema_of(project_id).encode()).digest()[:8], signed=True)
            connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": key})
            yield connection
            connection.commit()
    finally:
        engine.dispose()


def drop_tables(url: URL, folder: Path, project_id: str) -> None:
    """Drop the tables with all contents. Missing ones are no error."""
    if url.get_backend_name() == "sqlite":
        for path in folder.glob(f"{project_id}{_FILE}*"):
            path.unlink(missing_ok=True)
        return
    with exclusive_connection(url, project_id) as connection:
        connection.execute(text(f'DROP SCHEMA IF EXISTS "{schema_of(project_id)}" CASCADE'))


def gc_tables(sessions: SessionFactory, settings: Settings) -> int:
    """Drop the leftovers of deleted projects; returns the number of projects."""
    url, folder = make_url(settings.resolved_database_url), folder_of(settings)
    is_sqlite = url.get_backend_name() == "sqlite"
    with unit_of_work(sessions, read_only=True) as session:
        if is_sqlite:
            there = {f"{_PREFIX}{path.name.partition(_FILE)[0]}".lower() for path in folder.glob(f"*{_FILE}*")}
        else:
            names = text("SELECT nspname FROM pg_namespace WHERE starts_with(nspname, :prefix)")
            there = {str(name) for name in session.execute(names, {"prefix": _PREFIX}).scalars()}
        deleted = session.scalars(select(Project.id).where(Project.deleted_at.is_not(None))).all() if there else ()
    dropped = 0
    for project_id in deleted:
        if schema_of(project_id) not in there:
            continue
        try:
            drop_tables(url, folder, project_id)
        except (SQLAlchemyError, OSError) as error:
            log.warning("optuna.not_swept", project=project_id, cause=repr(error))  # the next run retries
            continue
        dropped += 1
        log.info("optuna.removed", project=project_id)
    return dropped
