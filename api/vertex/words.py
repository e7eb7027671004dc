"""Our own errors in the words of Vertex AI: its clients know neither the fields of our specs nor our cursors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

from api.cursors import read_cursor
from api.paging import read_position
from core.domain.errors import InvalidRequest, InvalidSpec

# Fields of our job spec, by what they are made of.
_FIELDS: Final = {
    "max_run_time": "scheduling.timeout",
    "max_wait": "scheduling.max_wait_duration",
    "max_restarts": "scheduling.restart_job_on_worker_restart",
    "output": "base_output_directory",
    "priority": "scheduling.strategy",
}


@contextmanager
def in_their_words() -> Iterator[None]:
    """Raises ``InvalidRequest`` in place of a spec's mistake that names a field of ours, with the field that the client sent."""
    try:
        yield
    except (InvalidSpec, InvalidRequest) as error:
        sentence = str(error.sentence)
        own, colon, rest = sentence.partition(":")
        if not colon or own not in _FIELDS:
            raise
        raise InvalidRequest(f"{_FIELDS[own]}:{rest}", field=_FIELDS[own]) from error


def position_of(token: str) -> tuple[datetime, str]:
    """Where a page ended, by its ``nextPageToken``. Raises ``InvalidRequest``."""
    with _as_page_token():
        return read_position(token)


def place_of(token: str, kinds: Sequence[type]) -> list[Any]:
    """As :func:`position_of`, of a token with such parts."""
    with _as_page_token():
        return read_cursor(token, kinds)


@contextmanager
def _as_page_token() -> Iterator[None]:
    try:
        yield
    except InvalidRequest as error:
        raise InvalidRequest(
            "page_token: not one of this list; give back `next_page_token` as it came, or leave it out.",
            field="page_token",
        ) from error
