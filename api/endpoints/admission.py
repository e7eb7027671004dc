"""Admission control: limits the open prediction requests of an API process, and shares the limit among endpoints.

One limit for all endpoints would be used up by the first slow model. Here an endpoint may have as many open requests as
remain free: one slow endpoint takes half of the limit at most, two take a third each, and a further endpoint still
finds capacity. This needs no configuration, and an endpoint alone is not restricted by a static per-endpoint limit.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from core.domain.errors import Unavailable

# A request has two connections: from the client, and to the replica.
_FILES_PER_REQUEST: Final = 2
# Open files for the database, the broker, volumes, and other requests.
_RESERVED_FILES: Final = 256
_MIN_OPEN_LIMIT: Final = 16
_RETRY_AFTER_S: Final = 1.0


def open_limit(wanted: int) -> int:
    """``wanted``, bounded by the number of files that this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return min(wanted, max(_MIN_OPEN_LIMIT, (soft - _RESERVED_FILES) // _FILES_PER_REQUEST))


class Admission:
    """For one event loop. ``limit``: open requests of all endpoints together."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._open: dict[str, int] = {}
        self._total = 0

    def open_of(self, endpoint_id: str) -> int:
        return self._open.get(endpoint_id, 0)

    @contextmanager
    def enter(self, endpoint_id: str, name: str) -> Iterator[None]:
        """A context for the time that a request to the endpoint is open.

        Raises:
            Unavailable: the endpoint has used its part of the limit; no replica was called.
        """
        own = self.open_of(endpoint_id)
        if own >= self.limit - self._total:
            raise Unavailable(
                f"Endpoint {name!r} has {own} open requests at this API process, its part of the limit: its replicas "
                "are slower than the requests arrive. Send fewer requests at once, or scale the endpoint up.",
                retry_after_s=_RETRY_AFTER_S,
            )
        self._open[endpoint_id] = own + 1
        self._total += 1
        try:
            yield
        finally:
            self._total -= 1
            self._open[endpoint_id] -= 1
            if not self._open[endpoint_id]:
                del self._open[endpoint_id]
