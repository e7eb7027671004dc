"""How many requests to endpoints one API process has open at once, and that no endpoint takes the room of the others.

The simple equivalent is one number for all, which the first slow model uses up. Here an endpoint may have as many open as
are free besides: a slow one takes half of the room at most, two of them a third each, and whoever comes next finds some.
Nothing has to be set for that, and an endpoint that is alone is not held back by a number for many.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from core.domain.errors import Unavailable

# A request is two connections: from who asks, and to the replica.
_FILES_EACH: Final = 2
# Of the files that a process may have open: database, broker, volumes, and requests of other kinds.
_FILES_BESIDES: Final = 256
_LEAST: Final = 16
_RETRY_AFTER_S: Final = 1.0


def room_of(wanted: int) -> int:
    """``wanted``, or as many requests as this process may have files open for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return min(wanted, max(_LEAST, (soft - _FILES_BESIDES) // _FILES_EACH))


class Admission:
    """For one event loop. ``room``: open requests of all endpoints together."""

    def __init__(self, room: int) -> None:
        self.room = room
        self._open: dict[str, int] = {}
        self._all = 0

    def open_of(self, endpoint_id: str) -> int:
        return self._open.get(endpoint_id, 0)

    @contextmanager
    def enter(self, endpoint_id: str, name: str) -> Iterator[None]:
        """While a request to the endpoint is open.

        Raises:
            Unavailable: it has its part of the room already; nothing was asked.
        """
        own = self.open_of(endpoint_id)
        if own >= self.room - self._all:
            raise Unavailable(
                f"Endpoint {name!r} has {own} requests open at this API process, which keeps the room that is left for other "
                "endpoints: its replicas answer more slowly than they are asked. Ask for less at once, or scale it up.",
                retry_after_s=_RETRY_AFTER_S,
            )
        self._open[endpoint_id] = own + 1
        self._all += 1
        try:
            yield
        finally:
            self._all -= 1
            self._open[endpoint_id] -= 1
            if not self._open[endpoint_id]:
                del self._open[endpoint_id]
