"""The workers that a ps waits for. Pure: the time is an argument, in seconds of a monotonic clock."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Set

from trainmaster_train.ps.options import Options


class WorkerMembership:
    """Workers 0 to ``count`` - 1: connected, lost (may come back), or left (done)."""

    def __init__(self, count: int, options: Options, *, now: float) -> None:
        self.count = count
        self._options = options
        self._identities: Dict[int, bytes] = {}
        self._left: Set[int] = set()
        self._ever_joined: Set[int] = set()
        self._absent_since: Dict[int, float] = dict.fromkeys(range(count), now)
        self._last_seen = now

    def describe_arrival(self, worker: int, now: float) -> str:
        """How ``worker`` arrives, in words, before :meth:`mark_joined`: for the first time, again, or back."""
        if worker in self._identities:
            return "is back, and its connection before was not known to be over,"
        if worker not in self._ever_joined:
            return "joined"
        if worker in self._left:
            return "joined again"
        return f"is back {now - self._absent_since[worker]:.0f} s after it was lost,"

    def mark_joined(self, worker: int, identity: bytes) -> Optional[bytes]:
        """Note that ``worker`` is connected; returns its earlier connection if the loss of that was not noticed."""
        before = self._identities.get(worker)
        self._identities[worker] = identity
        self._absent_since.pop(worker, None)
        self._left.discard(worker)
        self._ever_joined.add(worker)
        self.count = max(self.count, worker + 1)
        return before if before != identity else None

    def mark_left(self, worker: int) -> None:
        """Note that ``worker`` left: steps do not wait for it until it joins again."""
        self._identities.pop(worker, None)
        self._left.add(worker)

    def mark_lost(self, worker: int, identity: bytes, now: float) -> bool:
        """Note a lost connection; returns whether it was the current one of ``worker``."""
        if self._identities.get(worker) != identity:
            return False
        del self._identities[worker]
        self._absent_since[worker] = now
        self._last_seen = now
        return True

    def identity_of(self, worker: int) -> Optional[bytes]:
        return self._identities.get(worker)

    def absent(self) -> List[int]:
        return [worker for worker in range(self.count) if worker not in self._identities]

    def expected(self, now: float) -> List[int]:
        """Workers whose gradients a step needs: all connected ones, and those within their time-out."""
        return [
            worker
            for worker in range(self.count)
            if worker in self._identities
            or (worker not in self._left and now - self._absent_since.get(worker, now) < self._patience_s(worker))
        ]

    def idle_s(self, now: float) -> float:
        """For how long no worker has been connected."""
        if self._identities:
            self._last_seen = now
        return now - self._last_seen

    def describe(self, workers: Sequence[int], now: float) -> str:
        """``worker 1 (lost 12 s ago), worker 2 (never came)``."""
        words = []
        for worker in workers[:8]:
            if worker in self._identities:
                words.append(f"worker {worker} (still computing)")
            elif worker in self._left:
                words.append(f"worker {worker} (left)")
            elif worker in self._ever_joined:
                words.append(f"worker {worker} (lost {now - self._absent_since[worker]:.0f} s ago)")
            else:
                words.append(f"worker {worker} (never came)")
        return ", ".join(words) + (f" and {len(workers) - 8} more" if len(workers) > 8 else "")

    def _patience_s(self, worker: int) -> float:
        # A worker that never came may still be starting its container and importing libraries.
        return self._options.lost_timeout_s if worker in self._ever_joined else self._options.join_timeout_s
