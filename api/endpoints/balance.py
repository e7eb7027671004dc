"""Load balancing and admission of prediction requests.

Balancing chooses a deployed model at random by its traffic share, then its replica with the fewest open requests. Each
API process counts only its own requests (least connections per process): with equal processes that is nearly as good as
a shared count, and there is no shared store that could fail.

Admission limits the open requests of an API process, and shares the limit among endpoints. One limit for all endpoints
would be used up by the first slow model. Here an endpoint may have as many open requests as remain free: one slow
endpoint takes half of the limit at most, two take a third each, and a further endpoint still finds capacity. This needs
no configuration, and an endpoint alone is not restricted by a static per-endpoint limit.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from random import Random  # noqa: TID251 (for its type alone)
from typing import Final

from core.db.repositories.serving import ServingTarget
from core.domain.errors import Unavailable

# A request has two connections: from the client, and to the replica.
_FILES_PER_REQUEST: Final = 2
# Open files for the database, the broker, volumes, and other requests.
_RESERVED_FILES: Final = 256
_MIN_OPEN_LIMIT: Final = 16
_RETRY_AFTER_S: Final = 1.0
# A replica that refused a connection gets no requests for this time, in which the control loop checks it.
_AVOIDED_S: Final = 2.0


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


class Balancer:
    """For one event loop. ``clock_s``: monotonic."""

    def __init__(self, clock_s: Callable[[], float], random: Random) -> None:
        self._clock_s = clock_s
        self._random = random
        self._open: dict[str, int] = {}
        self._avoided: dict[str, float] = {}

    def choose(
        self, targets: Sequence[ServingTarget], *, deployment: str | None = None, without: Collection[str] = ()
    ) -> ServingTarget | None:
        """The replica for the next request; ``None`` if no candidate is left.

        Args:
            targets: the ready replicas of the endpoint.
            deployment: only replicas of this deployed model, whatever its traffic.
            without: ids of replicas that were tried already.
        """
        now_s = self._clock_s()
        candidates = [target for target in targets if target.replica_id not in without]
        if deployment is not None:
            candidates = [target for target in candidates if target.deployment == deployment]
        else:
            candidates = self._draw_deployment([target for target in candidates if target.traffic > 0])
        healthy = [target for target in candidates if self._avoided.get(target.replica_id, 0.0) <= now_s]
        candidates = healthy or candidates
        fewest = min((self._open.get(target.replica_id, 0) for target in candidates), default=0)
        best = [target for target in candidates if self._open.get(target.replica_id, 0) == fewest]
        return self._random.choice(best) if best else None

    @contextmanager
    def open_request(self, target: ServingTarget) -> Iterator[None]:
        """A context for the time that a request to the replica is open."""
        self._open[target.replica_id] = self._open.get(target.replica_id, 0) + 1
        try:
            yield
        finally:
            self._open[target.replica_id] -= 1
            if not self._open[target.replica_id]:
                del self._open[target.replica_id]

    def avoid(self, target: ServingTarget) -> None:
        """Send no requests to a replica that refused a connection, for ``_AVOIDED_S``."""
        now_s = self._clock_s()
        self._avoided = {name: until for name, until in self._avoided.items() if until > now_s}
        self._avoided[target.replica_id] = now_s + _AVOIDED_S

    def _draw_deployment(self, targets: Sequence[ServingTarget]) -> list[ServingTarget]:
        """The targets of one deployment, drawn at random by traffic among those with a ready replica.

        So a new version without a ready replica costs no request.
        """
        traffic = {target.deployment: target.traffic for target in targets}
        if len(traffic) < 2:
            return list(targets)
        (drawn,) = self._random.choices(list(traffic), list(traffic.values()))
        return [target for target in targets if target.deployment == drawn]
