"""A server connection that a handler can abort when the client does not read the response."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_ABORT: Final = "abort_connection"


class AbortableConnection(HttpToolsProtocol):
    """Uvicorn's connection, with its ``abort`` in the state of each request.

    A server closes a connection in good order: it sends its buffers first. A client that never reads keeps the socket
    and its full buffers for as long as it likes. ASGI has no message to abort a connection.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self.app_state = {**self.app_state, _ABORT: transport.abort}


def abort_of(scope: Scope) -> Callable[[], None] | None:
    """Aborts the request's connection at once and drops unsent bytes. ``None``: the server cannot do that."""
    found: Callable[[], None] | None = scope.get("state", {}).get(_ABORT)
    return found
