"""Range requests on an open file (RFC 9110, section 14)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import formatdate
from typing import Final
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from api.http.problems import response_to
from core.domain.errors import RangeNotSatisfiable

_CHUNK: Final = 512 * 2**10
_BYTES: Final = re.compile(r"^bytes=(?:(\d{1,18})-(\d{0,18})|-(\d{1,18}))$")


@dataclass(frozen=True, slots=True)
class ByteRange:
    start: int
    end: int  # exclusive

    @property
    def length(self) -> int:
        return self.end - self.start


def parse_range(header: str, size: int) -> ByteRange | None:
    """The range that ``header`` asks for; ``None``: send the whole file (no range, several, or not in bytes).

    Raises:
        RangeNotSatisfiable: it begins after the end of the file.
    """
    match = _BYTES.match(header.replace(" ", ""))
    if match is None:
        return None
    first, last, suffix = match.groups()
    if suffix is not None:
        start, end = max(0, size - int(suffix)), size
    else:
        start, end = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < int(first):
            return None
    if start >= size or end <= start:
        raise RangeNotSatisfiable(
            f"The file has {size} bytes; the range {header!r} begins after its end.", field="range"
        )
    return ByteRange(start, end)


def file_tag(status: os.stat_result) -> str:
    """A strong ETag: it changes whenever the file is written."""
    return f'"{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}"'


class OpenFileResponse(Response):
    """The bytes of an open file descriptor: all, or the range that the request asks for. Always closes the descriptor.

    Sends as many bytes as the file had at the start; a file that shrinks meanwhile aborts the response, so that a
    client does not take it for complete.

    Args:
        fd: an open descriptor.
        media_type: the Content-Type.
        part: the part of the file to serve, which ranges refer to; unstated: the whole file.
        name: the file name for the browser to save under; a browser must not display users' files.
        headers: further response headers.
    """

    def __init__(
        self,
        fd: int,
        *,
        media_type: str,
        part: ByteRange | None = None,
        name: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.body = b""
        self._fd = fd
        status = os.fstat(fd)
        self._part = part or ByteRange(0, status.st_size)
        self._tag = file_tag(status)
        self._modified = formatdate(status.st_mtime, usegmt=True)
        self._fields = {
            "Content-Type": media_type,
            "ETag": self._tag,
            "Last-Modified": self._modified,
            "Accept-Ranges": "bytes",
            "Cache-Control": "private, no-cache",
            "X-Content-Type-Options": "nosniff",
            "Content-Security-Policy": "sandbox; default-src 'none'",
            **({"Content-Disposition": attachment(name)} if name is not None else {}),
            **(headers or {}),
        }
        self.init_headers({})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._answer(scope, receive, send)
        finally:
            os.close(self._fd)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_headers = Headers(scope=scope)
        if _is_known(request_headers.get("if-none-match"), self._tag):
            validators = {k: v for k, v in self._fields.items() if k in ("ETag", "Last-Modified", "Cache-Control")}
            await Response(None, 304, validators)(scope, receive, send)
            return
        wanted: ByteRange | None = None
        if "range" in request_headers and request_headers.get("if-range", self._tag) in (self._tag, self._modified):
            try:
                wanted = parse_range(request_headers["range"], self._part.length)
            except RangeNotSatisfiable as error:
                refusal = response_to(error, scope.get("state", {}).get("request_id"))
                refusal.headers["Content-Range"] = f"bytes */{self._part.length}"
                await refusal(scope, receive, send)
                return
        chosen = wanted or ByteRange(0, self._part.length)
        headers = {**self._fields, "Content-Length": str(chosen.length)}
        if wanted is not None:
            headers["Content-Range"] = f"bytes {wanted.start}-{wanted.end - 1}/{self._part.length}"
        raw = [(key.lower().encode("latin-1"), value.encode("latin-1")) for key, value in headers.items()]
        start: Message = {"type": "http.response.start", "status": 206 if wanted else 200, "headers": raw}
        if scope["method"] == "HEAD" or chosen.length == 0:
            await send(start)
            await send({"type": "http.response.body", "body": b""})
            return
        first = await self._read(self._part.start + chosen.start, chosen.length)
        await send(start)
        await self._send_rest(first, chosen, send)

    async def _send_rest(self, data: bytes, chosen: ByteRange, send: Send) -> None:
        sent = 0
        while True:
            sent += len(data)
            await send({"type": "http.response.body", "body": data, "more_body": sent < chosen.length})
            if sent >= chosen.length:
                return
            data = await self._read(self._part.start + chosen.start + sent, chosen.length - sent)

    async def _read(self, position: int, length: int) -> bytes:
        data = await run_in_threadpool(os.pread, self._fd, min(_CHUNK, length), position)
        if not data:
            raise ConnectionAbortedError("the file became shorter while it was sent")
        return data


def _is_known(header: str | None, tag: str) -> bool:
    return header is not None and any(item.strip().removeprefix("W/") in (tag, "*") for item in header.split(","))


def attachment(name: str) -> str:
    """A Content-Disposition header that saves under ``name``, which may have any characters (RFC 6266)."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in " ._-+=()") else "_" for c in name).strip() or "file"
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='', errors='replace')}"
