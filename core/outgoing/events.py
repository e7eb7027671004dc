"""Which events a subscription is for, and how they are sent."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Final

import orjson

# Data of an event that names its object, where it is of no job.
_OBJECT_KEYS: Final = ("endpoint", "study", "model", "node", "volume", "user")


def is_subscribed(event_types: Collection[str], kind: str) -> bool:
    """``event_types``: kinds such as ``job.failed``, ``job.*`` for all of a noun, or ``*``."""
    return not {"*", kind, f"{kind.partition('.')[0]}.*"}.isdisjoint(event_types)


def object_key(job_id: str | None, data: Mapping[str, Any], project_id: str | None) -> str:
    """Names the object of an event: events of one object are delivered in their order."""
    if job_id is not None:
        return job_id
    for name in _OBJECT_KEYS:
        if isinstance(data.get(name), str):
            return f"{name}:{data[name]}"
    return project_id or "platform"


def message_body(kind: str, at: datetime, data: Mapping[str, Any]) -> str:
    """The JSON text of a message: ``type``, ``timestamp`` and ``data``, as Standard Webhooks recommends."""
    return orjson.dumps({"type": kind, "timestamp": at.isoformat(), "data": data}).decode()
