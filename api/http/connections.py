"""A connection of the server, which an answer can cut off where nobody takes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_ABORT: Final = "abort_connection"


class AbortableConnection(HttpToolsProtocol):
    """The server's own, and each request's state says how to cut it off.

    A server closes a connection in good order: what was written is sent first. To who never reads it never is, and the
    socket with its full buffers stays for as long as the other side likes. ASGI has no word for more than that.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self.app_state = {**self.app_state, _ABORT: transport.abort}


def abort_of(scope: Scope) -> Callable[[], None] | None:
    """What cuts the connection of a request off at once, unsent bytes and all. ``None``: its server has no such thing."""
    found: Callable[[], None] | None = scope.get("state", {}).get(_ABORT)
    return found
