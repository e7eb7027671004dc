"""Which ready replica gets the next request: by the deployed models' parts, then the one with the fewest open ones.

Each API process counts its own requests. With several of them the counts differ, and each still sends to the replica
that it has burdened least: with equal processes that is nearly as good, and nothing is shared that could be away.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from random import Random  # noqa: TID251 (for its type alone)
from typing import Final

from core.db.repositories.serving import ServingTarget

# Seconds for which a replica that refused a connection is left alone; the control loop finds out meanwhile what it has.
_AVOIDED_S: Final = 2.0


class Balancer:
    """For one event loop. ``clock_s``: monotonic."""

    def __init__(self, clock_s: Callable[[], float], chance: Random) -> None:
        self._clock_s = clock_s
        self._chance = chance
        self._open: dict[str, int] = {}
        self._avoided: dict[str, float] = {}

    def choose(
        self, targets: Sequence[ServingTarget], *, deployment: str | None = None, without: Collection[str] = ()
    ) -> ServingTarget | None:
        """``None``: nobody is left.

        Args:
            deployment: of this deployed model alone, whatever its traffic.
            without: replicas that were tried already.
        """
        now_s = self._clock_s()
        left = [one for one in targets if one.replica_id not in without]
        if deployment is not None:
            left = [one for one in left if one.deployment == deployment]
        else:
            left = self._of_one_deployment([one for one in left if one.traffic > 0])
        well = [one for one in left if self._avoided.get(one.replica_id, 0.0) <= now_s]
        fewest = min((self._open.get(one.replica_id, 0) for one in well or left), default=0)
        best = [one for one in well or left if self._open.get(one.replica_id, 0) == fewest]
        return self._chance.choice(best) if best else None

    @contextmanager
    def using(self, target: ServingTarget) -> Iterator[None]:
        """While a request to it is open."""
        self._open[target.replica_id] = self._open.get(target.replica_id, 0) + 1
        try:
            yield
        finally:
            self._open[target.replica_id] -= 1
            if not self._open[target.replica_id]:
                del self._open[target.replica_id]

    def avoid(self, target: ServingTarget) -> None:
        """It refused a connection."""
        now_s = self._clock_s()
        self._avoided = {name: until for name, until in self._avoided.items() if until > now_s}
        self._avoided[target.replica_id] = now_s + _AVOIDED_S

    def _of_one_deployment(self, targets: Sequence[ServingTarget]) -> list[ServingTarget]:
        """Those of one that is drawn by its part, of those that have a ready replica: a new version that has none yet
        costs nobody an answer.
        """
        parts = {one.deployment: one.traffic for one in targets}
        if len(parts) < 2:
            return list(targets)
        (drawn,) = self._chance.choices(list(parts), list(parts.values()))
        return [one for one in targets if one.deployment == drawn]
