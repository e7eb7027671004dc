"""Connections: aborted by a handler when the client does not read the response; forwarded by a proxy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_ABORT: Final = "abort_connection"
# With a proxy on this machine the real client may be elsewhere.
_FORWARDED: Final = frozenset({"forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip"})
_FORWARDED_PREFIXES: Final = ("x-forwarded", "x-envoy-", "x-original-")


class AbortableConnection(HttpToolsProtocol):
    """Uvicorn's connection, with its ``abort`` in the state of each request.

    A server closes a connection in good order: it sends its buffers first. A client that never reads keeps the socket
    and its full buffers for as long as it likes. ASGI has no message to abort a connection.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self.app_state = {**self.app_state, _ABORT: transport.abort}


def is_proxied(headers: Iterable[str]) -> bool:
    """Whether a header says that a proxy has forwarded the request. ``headers``: names in lower case."""
    return any(name in _FORWARDED or name.startswith(_FORWARDED_PREFIXES) for name in headers)


def abort_of(scope: Scope) -> Callable[[], None] | None:
    """Aborts the request's connection at once and drops unsent bytes. ``None``: the server cannot do that."""
    found: Callable[[], None] | None = scope.get("state", {}).get(_ABORT)
    return found
