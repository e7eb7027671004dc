"""Aggregation of gradients, each on arrival (async) or in steps of all workers (sync), and the workers to wait for.

Pure: no network and no clock; times are arguments, in seconds of a monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Collection, Dict, List, Mapping, Optional, Sequence, Set

import torch

from trainmaster_train.ps.options import Options
from trainmaster_train.ps.server.shard import OnUpdated, RowGradients, Shard


@dataclass
class Push:
    """A complete gradient for one shard, computed by ``worker`` on the values of ``version``."""

    worker: int
    version: int
    gradients: Sequence[torch.Tensor]
    rows: Mapping[str, RowGradients]


@dataclass
class Staleness:
    """Staleness (updates of other workers between a gradient's pull and its push), and counts of dropped gradients."""

    pushes: int = 0
    total: int = 0
    largest: int = 0
    too_stale: int = 0
    late: int = 0

    def record(self, staleness: int) -> None:
        self.pushes += 1
        self.total += staleness
        self.largest = max(self.largest, staleness)

    @property
    def mean(self) -> float:
        return self.total / self.pushes if self.pushes else 0.0

    @property
    def dropped(self) -> int:
        return self.too_stale + self.late

    def as_dict(self) -> Dict[str, Any]:
        return {
            "pushes": self.pushes,
            "staleness_mean": round(self.mean, 3),
            "staleness_max": self.largest,
            "too_stale": self.too_stale,
            "late": self.late,
        }

    def __str__(self) -> str:
        words = [f"{self.pushes} gradients, staleness mean {self.mean:.2f}, largest {self.largest}"]
        if self.too_stale:
            words.append(f"{self.too_stale} too stale and dropped")
        if self.late:
            words.append(f"{self.late} late and dropped")
        return ", ".join(words)


@dataclass
class PushResult:
    """``outcome`` of a push: ``applied``, ``too_stale`` or ``late``. ``staleness``: that of its values."""

    worker: int
    outcome: str
    staleness: int


@dataclass
class GradientAggregator:
    """Applies pushes to ``shard`` according to ``options``, and counts them."""

    shard: Shard
    options: Options
    staleness: Staleness = field(default_factory=Staleness)
    _waiting: Dict[int, int] = field(default_factory=dict)
    _sums: List[torch.Tensor] = field(default_factory=list)
    _rows: Dict[str, List[RowGradients]] = field(default_factory=dict)

    @property
    def contributors(self) -> Collection[int]:
        """The workers whose gradients the current step has already."""
        return self._waiting.keys()

    def take(self, push: Push, on_updated: Optional[OnUpdated] = None) -> Optional[PushResult]:
        """Take ``push``; ``None``: it waits for the others of its step, see :meth:`is_complete` and :meth:`close`.
        ``on_updated``: as for :meth:`Shard.apply`.
        """
        # After a restart of this ps from a checkpoint a pushed version may be newer than the shard: it is not stale.
        staleness = max(0, self.shard.version - push.version)
        if self.options.mode == "sync":
            if staleness:
                self.staleness.late += 1
                return PushResult(push.worker, "late", staleness)
            if push.worker in self._waiting:
                # The worker died after its push and is back: a step takes one gradient of each worker.
                self.staleness.late += 1
            else:
                self._gather(push)
                self.staleness.record(0)
            return None
        if self.options.max_staleness is not None and staleness > self.options.max_staleness:
            self.staleness.too_stale += 1
            return PushResult(push.worker, "too_stale", staleness)
        self.staleness.record(staleness)
        scale = 1.0 / staleness if self.options.scale_by_staleness and staleness > 1 else 1.0
        self.shard.apply(push.gradients, push.rows, scale, on_updated)
        return PushResult(push.worker, "applied", staleness)

    def is_complete(self, expected: Collection[int]) -> bool:
        """Whether the current step has enough gradients, given the ``expected`` workers."""
        needed = max(1, len(expected) - self.options.backup_workers)
        return len(self._waiting) >= needed

    def close(self, on_updated: Optional[OnUpdated] = None) -> List[PushResult]:
        """Apply the mean of the step's gradients; returns a result for each of its workers."""
        count = len(self._waiting)
        gradients = [total.div_(count) for total in self._sums]
        rows = {name: _mean_rows(parts, count) for name, parts in self._rows.items()}
        self.shard.apply(gradients, rows, on_updated=on_updated)
        results = [PushResult(worker, "applied", 0) for worker in self._waiting]
        self._waiting.clear()
        self._rows.clear()
        return results

    def _gather(self, push: Push) -> None:
        if not self._sums:  # reused in each step: fresh pages cost more than the sum
            self._sums = [torch.empty_like(values) for values in self.shard.values]
        for total, gradient in zip(self._sums, push.gradients):
            if self._waiting:
                total.add_(gradient)
            else:
                total.copy_(gradient)
        for name, rows in push.rows.items():
            self._rows.setdefault(name, []).append(rows)
        self._waiting[push.worker] = push.version


def _mean_rows(parts: Sequence[RowGradients], count: int) -> RowGradients:
    """The sum of several workers' rows divided by ``count``, each row once."""
    rows = torch.cat([part[0] for part in parts])
    indices, places = rows.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    values = torch.cat([part[1] for part in parts])
    total = torch.zeros(len(indices), values.shape[1], dtype=values.dtype).index_add_(0, places, values)
    return indices, total.div_(count)


class WorkerMembership:
    """Workers 0 to ``count`` - 1: connected, lost (may come back), or left (done)."""

    def __init__(self, count: int, options: Options, *, now: float) -> None:
        self.count = count
        self._options = options
        self._identities: Dict[int, bytes] = {}
        self._left: Set[int] = set()
        self._ever_joined: Set[int] = set()
        self._absent_since: Dict[int, float] = dict.fromkeys(range(count), now)
        self._last_contact = now

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
        self._last_contact = now
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
            self._last_contact = now
        return now - self._last_contact

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
