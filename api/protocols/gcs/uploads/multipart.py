"""Parser of ``multipart/related`` uploads (RFC 2387): the object's metadata, then its bytes."""

from __future__ import annotations

import re
from email.message import Message
from typing import Any, Final

import orjson

from core.domain.errors import InvalidRequest

_HEAD_BYTES: Final = 64 * 2**10  # of the metadata with all headers


class Multipart:
    """Streaming parser: ``metadata`` is set once ``feed`` has read the first part."""

    def __init__(self, content_type: str) -> None:
        header = Message()
        header["content-type"] = content_type
        boundary = header.get_param("boundary")
        if header.get_content_type() != "multipart/related" or not isinstance(boundary, str) or not boundary:
            raise InvalidRequest("A multipart upload is multipart/related, with a boundary.", field="content-type")
        self._mark = b"--" + boundary.encode()
        self._pending = b""
        self._fed_bytes = 0
        self._head_bytes = 0
        self.metadata: Any = None

    def least_bytes(self, body_bytes: int | None) -> int | None:
        """Lower bound of the object's size, given the body's; needs ``metadata``."""
        return None if body_bytes is None else max(0, body_bytes - self._head_bytes - self._tail_bytes)

    @property
    def _tail_bytes(self) -> int:
        """Upper bound: line break, boundary, two dashes, line break, trailing blanks."""
        return len(self._mark) + 64

    def feed(self, data: bytes) -> bytes:
        """The object's bytes that cannot be part of the final boundary; :meth:`end` returns the rest."""
        self._pending += data
        self._fed_bytes += len(data)
        if self.metadata is None and not self._read_head():
            return b""
        tail = self._tail_bytes
        sure, self._pending = self._pending[:-tail], self._pending[-tail:]
        return sure

    def end(self) -> bytes:
        """The object's last bytes. Raises ``InvalidRequest`` if the body broke off."""
        found = re.search(rb"\r?\n" + re.escape(self._mark) + rb"--\s*\Z", self._pending)
        if self.metadata is None or found is None:
            raise InvalidRequest("The multipart body broke off, or is not of two parts.", field="body")
        return self._pending[: found.start()]

    def _read_head(self) -> bool:
        """Whether both parts' headers and the metadata were received."""
        first = self._pending.find(self._mark)
        after = self._pending.find(b"\n" + self._mark, first + len(self._mark)) if first >= 0 else -1
        blank = _blank(self._pending, after + 1 + len(self._mark)) if after >= 0 else None
        if blank is None:
            if len(self._pending) > _HEAD_BYTES:
                raise InvalidRequest("The multipart body has no two parts, or its metadata is too long.", field="body")
            return False
        begin = _blank(self._pending[:after], first)
        try:
            self.metadata = orjson.loads(self._pending[begin:after].strip() or b"{}")
        except orjson.JSONDecodeError as error:
            raise InvalidRequest("The first part, the object's metadata, is not JSON.", field="body") from error
        self._pending = self._pending[blank:]
        self._head_bytes = self._fed_bytes - len(self._pending)
        return True


def _blank(data: bytes, start: int) -> int | None:
    """Position after the next empty line."""
    found = re.compile(rb"\r?\n\r?\n").search(data, start)
    return None if found is None else found.end()
