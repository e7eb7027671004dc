"""JSON responses and values as Google's APIs, protocol buffers and Kubernetes write them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson
from starlette.responses import Response


def answer(body: Mapping[str, Any] | list[Any], status: int = 200) -> Response:
    return Response(orjson.dumps(body), status, media_type="application/json")


def non_empty(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with a value: protocol buffers omit empty ones."""
    return {name: value for name, value in fields.items() if value not in (None, "", [], {}, ())}


def timestamp(at: datetime) -> str:
    """RFC 3339 with the T and the zone, without which clients refuse it."""
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def timestamps(**times: datetime | None) -> dict[str, str]:
    """The :func:`timestamp` of each time that is set."""
    return {name: timestamp(at) for name, at in times.items() if at is not None}


def milliseconds(at: datetime) -> int:
    """Since 1970."""
    return int(at.timestamp() * 1000)


def json_double(value: float) -> float | str:
    """A double as protocol buffers write it: JSON has no NaN and no infinity, so they are text."""
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")


def shortened(value: Any) -> str:
    """``repr`` of a value for an error message, at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
