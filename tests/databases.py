"""Databases of tests: the same one for many, empty for each."""

from __future__ import annotations

from sqlalchemy import Engine, text

from core.db.tables import Base


def empty(engine: Engine) -> None:
    """Leave no row in any table of PostgreSQL, and let numbers begin with 1 again.

    A test leaves few rows in few tables: to delete those takes a fiftieth of the time of truncating all tables.
    """
    tables = [table.name for table in reversed(Base.metadata.sorted_tables)]  # those that refer to others first
    requested = " union all ".join(f"select '{table}' where exists (select 1 from {table})" for table in tables)  # noqa: S608
    with engine.begin() as connection:
        filled = set(connection.execute(text(requested)).scalars())
        for table in tables:
            if table in filled:
                connection.execute(text(f"delete from {table}"))  # noqa: S608 (our own tables)
        counted = text(
            "select sequencename from pg_sequences where last_value is not null and schemaname = current_schema()"
        )
        for name in connection.execute(counted).scalars().all():
            connection.execute(text(f"alter sequence {name} restart"))
