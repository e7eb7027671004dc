"""Creating, rendering, updating and deleting records of any kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from api.protocols.kit.errors import AlreadyExists
from api.protocols.kit.field_mask import mask_paths
from api.protocols.kit.json_values import timestamp
from api.protocols.vertex.proto import Message, camel
from api.protocols.vertex.records.kinds import RecordKind, labels, new_name, read_fields, struct
from api.protocols.vertex.records.principals import RecordTransaction
from core.db.repositories.vertex_records import RecordExists, add_record, count_records, find_record, remove_record
from core.db.tables import VertexRecord
from core.domain.errors import Conflict, InvalidRequest, NotFound

# Fields with a column of their own.
_COLUMNS: Final = {"displayName": "display_name", "schemaTitle": "schema_title"}
_UNCHANGED: Final[tuple[Any, ...]] = ("", False, {}, None)


def find(tx: RecordTransaction, kind: RecordKind, path: str, *, locks: bool = False) -> VertexRecord:
    """Raises ``NotFound``."""
    record = find_record(tx.session, tx.scope, path, locks=locks)
    if record is None:
        raise NotFound(f"The {_title(kind)} {tx.name_of(path)} is not found.")
    return record


def create(tx: RecordTransaction, kind: RecordKind, path: str, message: Message) -> VertexRecord:
    """A new record at ``path``; if that ends with ``/``, with a generated id.

    Raises ``AlreadyExists``, ``Conflict`` if the collection is full, ``InvalidRequest``.
    """
    return add(tx, kind, path, read_fields(kind, message))


def add(tx: RecordTransaction, kind: RecordKind, path: str, fields: Mapping[str, Any]) -> VertexRecord:
    if path.endswith("/"):
        path += new_name()
    collection = path.rpartition("/")[0]
    if count_records(tx.session, tx.scope, collection) >= kind.limit:
        raise Conflict(
            f"{tx.name_of(collection)} has {kind.limit:,} {kind.noun}, which is the limit; delete some that "
            "are no longer needed."
        )
    try:
        return add_record(
            tx.session,
            tx.scope,
            path,
            tx.work.now,
            display_name=fields.get("displayName", ""),
            schema_title=fields.get("schemaTitle", ""),
            body={name: value for name, value in fields.items() if name not in _COLUMNS},
            job_id=None if tx.attempt is None else tx.attempt.job_id,
        )
    except RecordExists as error:
        raise AlreadyExists(f"The {_title(kind)} {tx.name_of(path)} already exists.") from error


def change(tx: RecordTransaction, kind: RecordKind, path: str, message: Message, mask: str) -> VertexRecord:
    """Set the fields in ``mask``, or without a mask those that the client sent.

    Two programs that log to one run each send the whole record that they read, with its ``etag``. If the etag is stale,
    ``metadata`` is merged key by key, so that neither program removes what the other logged.
    """
    record = find(tx, kind, path, locks=True)
    only, parts = _masked(kind, mask)
    sent = read_fields(kind, message, only)
    sees_newest = message.text("etag", 100) == etag_of(record)
    known = fields_of(record)
    for name in kind.fixed & sent.keys():
        if sent[name] not in (*_UNCHANGED, known.get(name)):
            raise message.fault(name, f"of {tx.name_of(path)} it is {known.get(name)!r} for good.")
    if "metadata" in sent and not sees_newest and only is None:
        whole = _merged(known.get("metadata", {}), sent["metadata"])
        sent["metadata"] = _reread(kind, message, "metadata", whole)
    for name, keys in parts.items():
        own = known.get(name, {})
        for key in keys:
            own = _with_part(own, sent[name], key)
        sent[name] = _reread(kind, message, name, own)
    body = {
        name: value for name, value in {**known, **sent}.items() if name not in _COLUMNS and value not in _UNCHANGED
    }
    for name, column in _COLUMNS.items():
        if name in sent and name not in kind.fixed:
            setattr(record, column, sent[name])
    record.body = body
    record.generation += 1
    record.updated_at = tx.work.now
    tx.session.flush()
    return record


def remove(tx: RecordTransaction, kind: RecordKind, path: str) -> None:
    """Delete a record and its descendants. Raises ``NotFound``."""
    remove_record(tx.session, find(tx, kind, path, locks=True))


def view(tx: RecordTransaction, record: VertexRecord) -> dict[str, Any]:
    """The resource in JSON."""
    return {
        "name": tx.name_of_record(record),
        **{name: value for name, value in fields_of(record).items() if value not in ("", None)},
        "etag": etag_of(record),
        "createTime": timestamp(record.created_at),
        "updateTime": timestamp(record.updated_at),
    }


def fields_of(record: VertexRecord) -> dict[str, Any]:
    return {**{name: getattr(record, column) for name, column in _COLUMNS.items()}, **record.body}


def etag_of(record: VertexRecord) -> str:
    """Digits of constant length, since clients compare etags as text."""
    return f"{10**12 + record.generation}"


def _masked(kind: RecordKind, mask: str) -> tuple[frozenset[str] | None, dict[str, list[tuple[str, ...]]]]:
    """The fields of an update mask, and for each field of which only parts are named, their paths.

    Raises ``InvalidRequest``.
    """
    paths = [(camel(first), keys) for first, *keys in mask_paths(mask)]
    whole = {name for name, keys in paths if not keys}
    parts: dict[str, list[tuple[str, ...]]] = {}
    for name, keys in paths:
        if name not in kind.fields:
            raise InvalidRequest(
                f"update_mask: there is no field {name[:100]!r}; there are {', '.join(kind.fields)}.",
                field="update_mask",
            )
        if keys and (kind.fields[name] not in (labels, struct) or "" in keys):
            raise InvalidRequest(
                f"update_mask: {'.'.join((name, *keys))[:100]!r} is no part of a {_title(kind)}; name the whole field.",
                field="update_mask",
            )
        if keys and name not in whole:
            parts.setdefault(name, []).append((".".join(keys),) if kind.fields[name] is labels else tuple(keys))
    return frozenset(name for name, _ in paths) or None, parts


def _with_part(old: Mapping[str, Any], new: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    """``old`` with the value of ``new`` at the path ``keys``; without that key if ``new`` lacks it."""
    key, *below = keys
    rest = {name: value for name, value in old.items() if name != key}
    if not below:
        return {**rest, key: new[key]} if key in new else rest
    old_part, new_part = old.get(key), new.get(key)
    if not isinstance(old_part, Mapping) and not isinstance(new_part, Mapping):
        return dict(old)
    part = _with_part(
        old_part if isinstance(old_part, Mapping) else {},
        new_part if isinstance(new_part, Mapping) else {},
        tuple(below),
    )
    return {**rest, key: part}


def _reread(kind: RecordKind, message: Message, name: str, value: Mapping[str, Any]) -> Any:
    """Validate a merged value by the limits of a sent one."""
    return kind.fields[name](Message({name: value}, message.path), name)


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    both = {**old, **new}
    for name in old.keys() & new.keys():
        if isinstance(old[name], Mapping) and isinstance(new[name], Mapping):
            both[name] = _merged(old[name], new[name])
    return both


def _title(kind: RecordKind) -> str:
    return kind.word.replace("_", " ")
