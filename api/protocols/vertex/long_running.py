"""Long-running operations as Google's APIs show them. They have no rows: what they create or delete has their state.

https://google.aip.dev/151
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from api.protocols.kit.json_values import timestamps
from core.domain.errors import NotFound

DELETION: Final = "delete"  # name of the operation that deletes a resource
_TYPES: Final = "type.googleapis.com/google.cloud.aiplatform.v1"
# google.rpc.Code
CANCELLED, INVALID_ARGUMENT, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, FAILED_PRECONDITION, INTERNAL = 1, 3, 4, 8, 9, 13


class _Timed(Protocol):
    created_at: Any
    updated_at: Any


def pack_any(kind: str, **fields: Any) -> dict[str, Any]:
    """A message with its type, as in an ``Any``."""
    return {"@type": f"{_TYPES}.{kind}", **fields}


def error_status(code: int, message: str) -> dict[str, Any]:
    """A ``google.rpc.Status``."""
    return {"code": code, "message": message}


def operation_metadata(kind: str, row: _Timed) -> dict[str, Any]:
    times = timestamps(createTime=row.created_at, updateTime=row.updated_at)
    return pack_any(f"{kind}OperationMetadata", genericMetadata=times)


def operation_view(
    name: str,
    *,
    metadata: Mapping[str, Any] | None = None,
    response: Mapping[str, Any] | None = None,
    error: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """An operation; it is done if it has a response or an error."""
    is_done = response is not None or error is not None
    fields = {"metadata": metadata, "done": is_done or None, "response": response, "error": error}
    return {"name": name, **{field: value for field, value in fields.items() if value is not None}}


def deletion_view(resource: str, *, is_done: bool) -> dict[str, Any]:
    """The operation that deletes the resource of this name."""
    response = {"@type": "type.googleapis.com/google.protobuf.Empty"} if is_done else None
    return operation_view(f"{resource}/operations/{DELETION}", response=response)


def operation_not_found(resource: str, operation: str = DELETION) -> NotFound:
    return NotFound(f"Operation {resource}/operations/{operation} is not found.")
