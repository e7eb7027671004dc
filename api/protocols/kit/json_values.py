"""JSON responses and values as Google's APIs, protocol buffers and Kubernetes write them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson
from starlette.responses import Response

# Our labels begin and end with a letter or a digit; others are stored for the foreign client alone.
_LABEL: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_RUNNER: Final = Path(__file__).with_name("run_in_environment.py")


def own_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels that are valid for a job here."""
    return {k: v for k, v in labels.items() if _LABEL.fullmatch(k) and (not v or _LABEL.fullmatch(v))}


def slug(text: str, default: str = "custom-job") -> str:
    """A valid name from any text; ``default`` if it has no letter or digit."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:63].strip("-") or default


def display_name(text: str, default: str = "custom-job") -> str:
    """The name of a job or study: ``text`` if it is valid, otherwise its :func:`slug`."""
    return text if _LABEL.fullmatch(text) else slug(text, default)


def command_with_packages(requirements: Sequence[str], *command: str) -> list[str]:
    """``command`` after the installation of pip requirements. Further arguments may be appended."""
    return ["python3", "-c", _RUNNER.read_text(encoding="utf-8"), *requirements, "--", *command]


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
