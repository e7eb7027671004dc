"""JSON responses and values as Google's APIs, protocol buffers and Kubernetes write them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import orjson
from starlette.responses import Response


def answer(body: Mapping[str, Any] | list[Any], status: int = 200) -> Response:
    return Response(orjson.dumps(body), status, media_type="application/json")


def non_empty(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with a value: protocol buffers omit empty ones."""
    return {name: value for name, value in fields.items() if value not in (None, "", [], {}, ())}


def timestamp(at: datetime, timespec: str = "microseconds") -> str:
    """RFC 3339 with the T and the zone, without which clients refuse it."""
    return at.astimezone(UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def parse_timestamp(text: str) -> datetime | None:
    """``None`` if it is no time, or has no zone."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo is not None else None


def timestamps(**times: datetime | None) -> dict[str, str]:
    """The :func:`timestamp` of each time that is set."""
    return {name: timestamp(at) for name, at in times.items() if at is not None}


def milliseconds(at: datetime) -> int:
    """Since 1970."""
    return int(at.timestamp() * 1000)


def from_milliseconds(since_1970: int) -> datetime:
    return datetime.fromtimestamp(since_1970 / 1000, UTC)


_NON_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def json_double(value: float) -> float | str:
    """A double as protocol buffers write it: JSON has no NaN and no infinity, so they are text."""
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")


def read_double(value: Any) -> Any:
    """The inverse of :func:`json_double`; other text stays."""
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value


def shortened(value: Any) -> str:
    """``repr`` of a value for an error message, at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
