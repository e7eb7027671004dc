"""The history of the tables. ``upgrade(url)`` brings a database to the newest form; safe to call at once from many."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, InterfaceError, OperationalError

from core.db.engine import make_engine
from core.domain.errors import Unavailable

# Any constant of our own: two starting servers must not migrate at the same time.
# https://www.postgresql.org/docs/current/explicit-locking.html#ADVISORY-LOCKS
_LOCK: Final = 0x7472_6169_6E6D


def alembic_config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.attributes["connection"] = connection
    return config


def upgrade(database_url: str, revision: str = "head") -> None:
    """Bring the database to ``revision``, all or nothing. Waits while another process does the same.

    Raises:
        NewerDatabase: it is at a revision that this version does not know; nothing was changed.
        Unavailable: it cannot be reached or used.
    """
    with refused_in_a_sentence(), locked_database(database_url) as connection:
        demand_known(connection)
        migrate(connection, revision)


class NewerDatabase(Unavailable):
    """The database was migrated by a newer version than this one."""


@contextmanager
def refused_in_a_sentence() -> Iterator[None]:
    """Turn the errors of an unreachable database, and of a wrong URL, into ``Unavailable``."""
    try:
        yield
    except ArgumentError as error:
        raise Unavailable(f"TRAINMASTER_DATABASE_URL cannot be used: {error}") from error
    except (OperationalError, InterfaceError) as error:
        # Only the driver's first line: what follows is for programmers, and the URL holds a password.
        reason = str(error.orig).strip().splitlines()[0] if str(error.orig).strip() else "it does not answer"
        raise Unavailable(
            f"The database cannot be reached or used ({reason}); see TRAINMASTER_DATABASE_URL."
        ) from error


def downgrade(database_url: str, revision: str) -> None:
    """Bring the database back to ``revision`` ("base": empty). Loses the data that only the newer form holds."""
    with locked_database(database_url) as connection:
        demand_known(connection)
        command.downgrade(alembic_config(connection), revision)


def migrate(connection: Connection, revision: str) -> None:
    """Bring the database of :func:`locked_database` to ``revision``, as part of its transaction."""
    command.upgrade(alembic_config(connection), revision)


def current_revision(engine: Engine) -> str | None:
    """What the database is at; ``None`` when it is empty."""
    with engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def head_revision() -> str | None:
    """What this version of the code wants."""
    return ScriptDirectory.from_config(alembic_config()).get_current_head()


@contextmanager
def locked_database(database_url: str) -> Iterator[Connection]:
    """A connection in a transaction, which no other migration or restore runs beside; commits at the end."""
    file = make_url(database_url).database
    if database_url.startswith("sqlite") and file:
        Path(file).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    engine = make_engine(database_url)
    if engine.dialect.name == "sqlite":
        # SQLite alters a table by writing it anew and dropping the old one, which would count as deleting all its rows.
        # It can be said outside of a transaction alone: https://www.sqlite.org/lang_altertable.html#otheralter
        event.listen(engine, "connect", lambda connection, _record: connection.execute("PRAGMA foreign_keys=OFF"))
    try:
        # On SQLite our engine begins every transaction with the write lock, which serves as the lock here.
        with engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("select set_config('lock_timeout', '0', true)"))
                connection.execute(text("select pg_advisory_xact_lock(:key)"), {"key": _LOCK})
            yield connection
    finally:
        engine.dispose()


def demand_known(connection: Connection) -> str | None:
    """The revision that the database is at; ``None``: it is empty. Raises ``NewerDatabase``."""
    revision = MigrationContext.configure(connection).get_current_revision()
    scripts = ScriptDirectory.from_config(alembic_config(connection))
    if revision is not None and revision not in {script.revision for script in scripts.walk_revisions()}:
        raise NewerDatabase(
            f"The database belongs to a newer version of Trainmaster: it is at {revision}, and this version knows "
            f"migrations up to {scripts.get_current_head()}. Install that version again, or restore a backup that was "
            "made before the upgrade."
        )
    return revision
