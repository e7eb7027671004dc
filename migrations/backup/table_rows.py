"""All rows of a database as text, the same for SQLite and PostgreSQL, so that either restores the other's.

A table is a member ``database/<table>.jsonl``: a line with the columns, then a line for each row. Tables are reflected,
not taken from today's code: a backup may be of an older database than this version makes.
"""

from __future__ import annotations

import base64
import json
import warnings
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from sqlalchemy import JSON, Connection, DateTime, Integer, LargeBinary, MetaData, Table, event, func, select, text
from sqlalchemy.exc import SAWarning

from core.db.tables import Json, UtcDateTime
from migrations.backup.backup_file import BackupReader, BackupWriter

FOLDER: Final = "database"
_VERSION_TABLE: Final = "alembic_version"
# Questions wait for no answer after a restore.
_PASSING: Final = frozenset({_VERSION_TABLE, "questions"})
_BATCH: Final = 500  # rows


def reflect(connection: Connection) -> MetaData:
    """The tables as they are, in the order of their references, with the column types of the platform."""
    metadata = MetaData()

    @event.listens_for(metadata, "column_reflect")
    def use_own_types(_inspector: Any, _table: Any, column: Any) -> None:
        if isinstance(column["type"], JSON):
            column["type"] = Json
        elif isinstance(column["type"], DateTime):
            column["type"] = UtcDateTime()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SAWarning)  # of indexes of expressions, which are of no interest here
        metadata.reflect(connection)
    return metadata


def dump_rows(connection: Connection, writer: BackupWriter) -> dict[str, int]:
    """Write all rows of one snapshot; returns their number by table."""
    counts: dict[str, int] = {}
    for table in reflect(connection).sorted_tables:
        if table.name in _PASSING:
            continue
        with writer.member(f"{FOLDER}/{table.name}.jsonl") as append:
            append(_line([column.name for column in table.columns]))
            rows = connection.execution_options(yield_per=_BATCH).execute(select(table))
            count = 0
            for row in rows:
                append(_line([_plain(value) for value in row]))
                count += 1
        counts[table.name] = count
    return counts


def load_rows(connection: Connection, reader: BackupReader) -> None:
    """Fill the empty tables of the backup's migration."""
    tables = reflect(connection)
    members = {name.removeprefix(f"{FOLDER}/").removesuffix(".jsonl"): name for name in reader.names(FOLDER)}
    for table in tables.sorted_tables:
        if table.name == _VERSION_TABLE or table.name not in members:
            continue
        connection.execute(table.delete())  # what migrations put there themselves
        for batch in _batches(table, reader, members[table.name]):
            connection.execute(table.insert(), batch)
        if connection.dialect.name == "postgresql":
            _restart_sequence(connection, table)


def has_data(connection: Connection) -> bool:
    """Whether there is more than what the first start makes."""
    tables = reflect(connection).tables
    at_most = {"users": 1, "projects": 1, "jobs": 0, "studies": 0, "models": 0, "archives": 0, "secrets": 0}
    return any(
        connection.execute(select(func.count()).select_from(tables[name])).scalar_one() > limit
        for name, limit in at_most.items()
        if name in tables
    )


def _batches(table: Table, reader: BackupReader, member: str) -> Iterator[list[dict[str, Any]]]:
    with reader.open(member) as stream:
        columns = json.loads(stream.readline())
        decoders = [_decoder(table, name) for name in columns]
        batch: list[dict[str, Any]] = []
        for line in stream:
            values = zip(columns, decoders, json.loads(line), strict=True)
            batch.append({name: value if value is None else decode(value) for name, decode, value in values})
            if len(batch) == _BATCH:
                yield batch
                batch = []
        if batch:
            yield batch


def _decoder(table: Table, column: str) -> Any:
    kind = table.columns[column].type
    if isinstance(kind, UtcDateTime):
        return datetime.fromisoformat
    return base64.b64decode if isinstance(kind, LargeBinary) else lambda value: value


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _line(values: list[Any]) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"


def _restart_sequence(connection: Connection, table: Table) -> None:
    """The next number of the table's own sequence, where it has one, comes after the restored rows."""
    (key, *more) = table.primary_key.columns
    if more or not isinstance(key.type, Integer):
        return
    last = connection.execute(select(func.max(key))).scalar_one()
    query = text("select setval(pg_get_serial_sequence(:table, :column), :last)")
    if last is not None:
        connection.execute(query, {"table": table.name, "column": key.name, "last": last})
