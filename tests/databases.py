"""Databases of tests: the same one for many, empty for each, or as it was at a moment."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, event, text

from core.db.tables import Base

# The address of a server on which we may create databases.
POSTGRES = os.environ.get("TRAINMASTER_TEST_DATABASE_URL", "")
# Those that refer to others come last.
_TABLES = [table.name for table in Base.metadata.sorted_tables]


def copied_database(template: Path) -> str:
    """The address of a new copy, the same for all. What an earlier test still writes goes into a removed file."""
    path = template.with_name("trainmaster.sqlite3")
    for file in (path, *path.parent.glob(f"{path.name}-*")):
        file.unlink(missing_ok=True)
    shutil.copy(template, path)
    return f"sqlite:///{path}"


def empty(engine: Engine) -> None:
    """Leave no row in any table of PostgreSQL, and let numbers begin with 1 again.

    A test leaves few rows in few tables: to delete those takes a fiftieth of the time of truncating all tables.
    """
    with engine.begin() as connection:
        connection.exec_driver_sql(_emptying())
        counted = text(
            "select sequencename from pg_sequences where last_value is not null and schemaname = current_schema()"
        )
        if names := connection.execute(counted).scalars().all():
            connection.exec_driver_sql(";".join(f"alter sequence {name} restart" for name in names))


def remember(engine: Engine) -> Callable[[], None]:
    """Copy all rows of PostgreSQL within the server; the result puts the tables back as they are now."""
    with engine.begin() as connection:
        filled = [
            name
            for name in _TABLES
            if connection.exec_driver_sql(f"select exists (select 1 from {name})").scalar()  # noqa: S608
        ]
        connection.exec_driver_sql("drop schema if exists remembered cascade; create schema remembered")
        for name in filled:
            connection.exec_driver_sql(f"create table remembered.{name} as table {name}")
        numbers = connection.exec_driver_sql(
            "select sequencename, last_value from pg_sequences where schemaname = current_schema()"
        ).all()
    script = ";".join(
        [
            _emptying(),
            *(f"insert into {name} select * from remembered.{name}" for name in filled),  # noqa: S608
            *(
                f"select setval('{name}', {last})" if last else f"alter sequence {name} restart"
                for name, last in numbers
            ),
        ]
    )

    def restore() -> None:
        with engine.begin() as connection:
            connection.exec_driver_sql(script)

    return restore


@contextmanager
def recorded_statements(engine: Engine | Connection) -> Iterator[list[str]]:
    """What is sent to the database meanwhile."""
    statements: list[str] = []

    def record(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    event.listen(engine, "before_cursor_execute", record)
    try:
        yield statements
    finally:
        event.remove(engine, "before_cursor_execute", record)


def _emptying() -> str:
    # The audit log's triggers, where migrations made them, refuse deletions.
    deletions = ";".join(f"delete from {name}" for name in reversed(_TABLES))  # noqa: S608 (our own tables)
    table = "alter table audit_entries"
    return f"{table} disable trigger user;{deletions};{table} enable trigger user"
