"""The reporter's HTTP connection to the API, which may move."""

from __future__ import annotations

import json

from trainmaster_runtime import clock

_CONNECT_S = 3.0
_COMPRESS_FROM_BYTES = 1024  # bodies from here on are compressed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from http.client import HTTPConnection
    from typing import Any


class ReportConnection:
    """Posts reports. ``api_file`` says where the API is when it has moved.

    Attributes:
        request_since: monotonic; the start of the request in progress.
    """

    def __init__(self, api_url: str, token: str, api_file: str | None) -> None:
        self.url = _report_url(api_url)
        self._token = token
        self._api_file = api_file
        self._connection: HTTPConnection | None = None
        self.request_since: float | None = None

    def post(self, body: dict[str, Any], timeout_s: Callable[[], float]) -> tuple[int, dict[str, Any]]:
        """Status and answer. Raises ``OSError``, ``ValueError`` or ``LookupError``; the connection is closed then.

        ``timeout_s``: of the next step, asked before each.
        """
        self.request_since = clock.monotonic()
        try:
            return self._post(body, timeout_s)
        except (OSError, ValueError, LookupError):
            self._close()
            raise
        finally:
            self.request_since = None

    def follow_move(self) -> bool:
        """Whether the API has a new address, which is used from now on: a server at the old one is another program."""
        try:
            with open(self._api_file or "", "rb") as stream:
                url = _report_url(json.loads(stream.read())["url"])
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return False
        if url == self.url:
            return False
        self.url = url
        self._close()
        return True

    def interrupt(self) -> None:
        """End the request for which another thread waits."""
        sock = getattr(self._connection, "sock", None)
        try:
            if sock is not None:
                sock.shutdown(2)  # SHUT_RDWR
        except OSError:
            pass

    def _post(self, body: dict[str, Any], timeout_s: Callable[[], float]) -> tuple[int, dict[str, Any]]:
        from http.client import HTTPConnection, HTTPException, HTTPSConnection
        from urllib.parse import urlsplit

        parts = urlsplit(self.url)
        if self._connection is None:
            kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
            self._connection = kind(parts.hostname or "", parts.port, timeout=min(_CONNECT_S, timeout_s()))
            self._connection.connect()
        if self._connection.sock is not None:
            self._connection.sock.settimeout(timeout_s())
        headers = {"Authorization": "Bearer " + self._token, "Content-Type": "application/json"}
        data = json.dumps(body).encode()
        if len(data) >= _COMPRESS_FROM_BYTES:
            data = _compressed(data)
            headers["Content-Encoding"] = "gzip"
        try:
            self._connection.request("POST", parts.path, data, headers)
            response = self._connection.getresponse()
            text = response.read()
        except HTTPException as error:
            raise OSError(str(error)) from error
        answer = json.loads(text) if response.status in (200, 410) else {}
        return response.status, answer if isinstance(answer, dict) else {}

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _report_url(api_url: str) -> str:
    return api_url.rstrip("/") + "/api/v1/runtime/report"


def _compressed(data: bytes) -> bytes:
    import zlib

    press = zlib.compressobj(1, zlib.DEFLATED, 31)  # gzip's frame
    return press.compress(data) + press.flush()
