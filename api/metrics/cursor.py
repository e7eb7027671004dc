"""A metric stream's position as text, used as SSE id: ``1a:3k,1b:3k``, series ids and point counts in base 36."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from core.db.repositories.metrics.reads import StoredSeries
from core.domain.errors import InvalidRequest

_CURSOR: Final = re.compile(r"^$|^[0-9a-z]{1,12}:[0-9a-z]{1,12}(,[0-9a-z]{1,12}:[0-9a-z]{1,12}){0,399}$")
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


def write_cursor(series: Iterable[StoredSeries]) -> str:
    return of_counts({item.id: item.count for item in series})


def of_counts(counts: Mapping[int, int]) -> str:
    return ",".join(f"{_short(number)}:{_short(count)}" for number, count in sorted(counts.items()))


def read_cursor(text: str) -> dict[int, int]:
    """Number of points that the client has, by series. Raises ``InvalidRequest`` for an invalid cursor."""
    if not _CURSOR.match(text):
        raise InvalidRequest(
            "Last-Event-ID is not an id of this stream; omit it to start from the beginning.", field="last-event-id"
        )
    pairs = [part.split(":") for part in text.split(",") if part]
    return {int(number, 36): int(count, 36) for number, count in pairs}


def _short(number: int) -> str:
    digits = ""
    while True:
        number, rest = divmod(number, 36)
        digits = _DIGITS[rest] + digits
        if not number:
            return digits
