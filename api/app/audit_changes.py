"""What a request's transactions change, as seen by the session, and the entry that each of them writes before it
commits.

Changes of mapped objects, and of rows by ``session.execute(update(...))`` and the like, are seen; statements that go
to the connection itself are not, but their transactions write an entry, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, cast

from sqlalchemy import Table, event, inspect, select
from sqlalchemy.orm import ORMExecuteState, Session

from api.app.audit import AuditRecord, current, singular
from core.db.audit import append_entries
from core.db.engine import SessionFactory
from core.db.json import dump_json

_KEY: Final = "audit_changes"
# Written along with the change of another table, or by every request.
_UNSEEN_TABLES: Final = frozenset(
    {"audit_entries", "events", "idempotency_keys", "job_labels", "leases", "model_changes", "questions", "trials"}
)
_UNSEEN_COLUMNS: Final = frozenset(
    {"id", "generation", "created_at", "updated_at", "updated_by", "used_at", "last_used_at", "seen_at"}
)
# Columns and names within JSON whose values are never recorded: they are secret, or hold what users wrote, such as a
# job's environment.
_HIDDEN: Final = re.compile(
    r"secret|token|passw|credential|cipher|digest|key|^(env|environment|spec|body|args|command|data|memo|code|gang|"
    r"params|tags|layout|lineage|registration|serving|requirements|metrics|result|curve)$",
    re.IGNORECASE,
)
_NOT_RECORDED: Final = "[not recorded]"
_TEXT_LIMIT: Final = 200  # characters
_JSON_LIMIT: Final = 1_000  # bytes of one value
_CHANGES_LIMIT: Final = 8_000  # bytes of an entry; beyond it only the names of fields are recorded
_ROWS: Final = 20  # of one statement


def listen(sessions: SessionFactory) -> None:
    """Let each session of ``sessions`` record what it changes, and write the request's entry before it commits."""
    event.listen(sessions, "after_flush", _after_flush)
    event.listen(sessions, "do_orm_execute", _on_execute)
    event.listen(sessions, "before_commit", _before_commit)


def _changes_of(session: Session) -> list[dict[str, Any]]:
    changes: list[dict[str, Any]] = session.info.setdefault(_KEY, [])
    return changes


def _after_flush(session: Session, _context: Any) -> None:
    if not _is_recording():
        return
    groups = (("created", session.new), ("changed", session.dirty), ("deleted", session.deleted))
    for verb, objects in groups:
        for each in objects:
            state = inspect(each)
            table = cast("Table", state.mapper.local_table)
            fields: dict[str, Any] = {}
            for attribute in state.mapper.column_attrs:
                history = state.attrs[attribute.key].history
                if history.has_changes() and verb != "deleted":
                    before = history.deleted[0] if history.deleted else None
                    fields[attribute.key] = (before, history.added[0] if history.added else None)
            row = {column.name: getattr(each, column.name, None) for column in table.columns}
            _add(session, verb, table, row, fields)


def _on_execute(state: ORMExecuteState) -> None:
    if state.is_select or not _is_recording():
        return
    statement: Any = state.statement
    table = getattr(statement, "table", None)
    if table is None or table.name in _UNSEEN_TABLES:
        return
    given = cast("Any", state.parameters) or statement.compile(dialect=state.session.get_bind().dialect).params
    rows: list[dict[str, Any]] = [dict(row) for row in (given if isinstance(given, list) else [given])]
    if state.is_insert:
        for row in rows[:_ROWS]:
            _add(state.session, "created", table, row, {name: (None, value) for name, value in row.items()})
        return
    values = {name: value for name, value in rows[0].items() if name in table.columns} if len(rows) == 1 else {}
    if not state.is_delete and not values.keys() - _UNSEEN_COLUMNS:
        return
    where = () if statement.whereclause is None else (statement.whereclause,)
    before = select(*table.columns).where(*where).limit(_ROWS)
    for found in state.session.connection().execute(before).mappings().all():
        fields = {} if state.is_delete else {name: (found[name], value) for name, value in values.items()}
        _add(state.session, "deleted" if state.is_delete else "changed", table, found, fields)


def _is_recording() -> bool:
    record = current()
    return record is not None and record.is_change


def _add(
    session: Session, verb: str, table: Table, row: Mapping[Any, Any], fields: Mapping[str, tuple[Any, Any]]
) -> None:
    """``fields``: name -> before, after."""
    shown = {
        name: [_shown(name, before), _shown(name, after)]
        for name, (before, after) in fields.items()
        if name not in _UNSEEN_COLUMNS and before != after and not (verb == "created" and after is None)
    }
    if table.name in _UNSEEN_TABLES or (verb == "changed" and not shown):
        return
    name = "/".join(str(row.get(column.name)) for column in table.primary_key if not _is_hidden(column.name))
    _changes_of(session).append({"kind": singular(table.name), "id": name, "verb": verb, "fields": shown})
    record = current()
    if record is not None and record.project_id is None:
        record.project_id = row.get("id") if table.name == "projects" else row.get("project_id")


def _is_hidden(name: str) -> bool:
    return _HIDDEN.search(name) is not None and name not in ("token_id", "idempotency_key")


def _shown(name: str, value: Any) -> Any:
    if value is not None and (_is_hidden(name) or isinstance(value, bytes)):
        return _NOT_RECORDED
    if isinstance(value, datetime):
        return value.isoformat()
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return value if len(value) <= _TEXT_LIMIT else f"{value[:_TEXT_LIMIT]}…"
    if isinstance(value, Mapping | list | tuple):
        plain = _plain(value)
        return plain if len(dump_json(plain)) <= _JSON_LIMIT else f"[{len(dump_json(plain))} bytes]"
    return _NOT_RECORDED


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _NOT_RECORDED if _is_hidden(str(name)) else _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else _NOT_RECORDED


def _before_commit(session: Session) -> None:
    record = current()
    if record is None or not record.is_change:
        return
    session.flush()
    changes = session.info.pop(_KEY, [])
    if record.is_committed and not changes:
        return
    if session.connection().get_execution_options().get("trainmaster_read_only"):
        return
    write_entry(session, record, changes)


def write_entry(session: Session, record: AuditRecord, changes: Iterable[dict[str, Any]]) -> None:
    """Write the entry of a request that goes well, with its changes, in the session's transaction."""
    if record.is_repeated():
        record.is_committed = True
        return
    recorded = list(changes)
    if len(dump_json(recorded)) > _CHANGES_LIMIT:
        recorded = [{**change, "fields": sorted(change["fields"])} for change in recorded[:_ROWS]]
    append_entries(session, record.rows(record.expected_status, recorded))
    record.is_committed = True
