"""The code archive from the API: gone on with where it broke off, and waited for while the API is away."""

from __future__ import annotations

import os

from trainmaster_runtime import clock

PATIENCE_S = 600.0  # without a single new byte
_TIMEOUT_S = 20.0
_BACK_OFF_S = 10.0
_CHUNK_BYTES = 1 << 18
_OVER = (401, 403, 404, 410)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from http.client import HTTPResponse


class CodeAway(Exception):
    """A sentence for the user."""


def fetch(
    api_url: str,
    token: str,
    path: str,
    *,
    say: Callable[[str], None],
    wait: Callable[[float], None],
    patience_s: float = PATIENCE_S,
) -> None:
    """Write the archive to ``path``. Its digest is for the caller to check.

    Args:
        say: writes a line into the replica's log; called once when the API is away.
        wait: waits so many seconds, and raises when the replica is to stop.

    Raises:
        CodeAway: the API refused, or was away for too long.
        OSError: ``path`` cannot be written.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    download = _Download(api_url, token, fd)
    try:
        end = clock.monotonic() + patience_s
        failures = 0
        while True:
            received = download.size
            why = download.go_on(wait)
            if why is None:
                return
            if download.size > received:
                end, failures = clock.monotonic() + patience_s, 0
            failures += 1
            if failures == 2:
                say("the code archive does not arrive (%s); trying again" % why)
            if clock.monotonic() >= end:
                raise CodeAway(
                    "The code archive did not arrive within %g s (%s); is the platform's API reachable from its nodes?"
                    % (patience_s, why)
                )
            wait(min(_BACK_OFF_S, 0.25 * 2 ** min(failures, 8)))
    finally:
        os.close(fd)


class _Download:
    """``size``: bytes that are here."""

    def __init__(self, api_url: str, token: str, fd: int) -> None:
        self._url = api_url.rstrip("/") + "/api/v1/runtime/code"
        self._token = token
        self._fd = fd
        self._tag: str | None = None  # of the bytes that are here
        self.size = 0

    def go_on(self, wait: Callable[[float], None]) -> str | None:
        """Ask for what is missing; ``None`` when all is here, else why not. Raises :class:`CodeAway`."""
        from http.client import HTTPConnection, HTTPException, HTTPSConnection
        from urllib.parse import urlsplit

        parts = urlsplit(self._url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=_TIMEOUT_S)
        headers = {"Authorization": "Bearer " + self._token}
        if self.size and self._tag:
            headers.update({"Range": "bytes=%d-" % self.size, "If-Range": self._tag})
        try:
            connection.request("GET", parts.path, headers=headers)
            response = connection.getresponse()
        except (OSError, HTTPException) as error:
            connection.close()
            return str(error) or type(error).__name__
        try:
            if response.status in _OVER:
                raise CodeAway("The platform does not hand out the code archive: %s" % _reason(response))
            if response.status not in (200, 206):
                return "HTTP %d" % response.status
            if response.status == 200:
                self._restart(response.getheader("ETag"))
            return self._take(response, wait)
        finally:
            connection.close()

    def _restart(self, tag: str | None) -> None:
        self._tag = tag
        self.size = 0
        os.ftruncate(self._fd, 0)
        os.lseek(self._fd, 0, os.SEEK_SET)

    def _take(self, response: HTTPResponse, wait: Callable[[float], None]) -> str | None:
        from http.client import HTTPException

        missing = response.length
        while True:
            try:
                data = response.read(_CHUNK_BYTES)
            except (OSError, HTTPException) as error:
                return str(error) or type(error).__name__
            if not data:
                break
            rest = memoryview(data)
            while rest:
                written = os.write(self._fd, rest)
                self.size += written
                rest = rest[written:]
            if missing is not None:
                missing -= len(data)
            wait(0.0)
        return None if not missing else "the connection broke off"


def _reason(response: HTTPResponse) -> str:
    """The API's own sentence, or the status."""
    import json
    from http.client import HTTPException

    try:
        detail = json.loads(response.read(65_536)).get("detail")
    except (OSError, ValueError, AttributeError, HTTPException):
        detail = None
    return detail if isinstance(detail, str) else "HTTP %d." % response.status
