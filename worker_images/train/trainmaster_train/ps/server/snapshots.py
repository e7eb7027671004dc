"""Snapshots of a shard's values, as frames for the workers.

The optimizer updates its values in place while earlier responses may still be in flight, so a response is sent from a
copy. One copy serves all workers that ask for the same version, and its memory is reused once ZeroMQ has sent it: fresh
pages cost as much as copying.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

import torch
import zmq

from trainmaster_train.ps.server.shard import Shard
from trainmaster_train.ps.wire.codec import Codec, raw


class SnapshotPool:
    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._free: List[SnapshotBuffer] = []
        self._newest: Optional[SnapshotBuffer] = None

    def current(self) -> "SnapshotBuffer":
        """The values of the current version."""
        return self._snapshot_of(self._shard.version)

    def upcoming(self) -> "SnapshotBuffer":
        """The values of the version that is being computed. Only blocks that are updated already may be taken from
        it.
        """
        return self._snapshot_of(self._shard.version + 1)

    def invalidate(self) -> None:
        """Discard the newest snapshot: the values were set without a new version."""
        if self._newest is not None:
            self._newest.version = -1

    def _snapshot_of(self, version: int) -> "SnapshotBuffer":
        if self._newest is None or self._newest.version != version:
            if self._newest is not None:
                self._free.append(self._newest)
            copy = next((copy for copy in self._free if copy.is_sent()), None)
            if copy is None:
                copy = SnapshotBuffer(self._shard.values)
            else:
                self._free.remove(copy)
            copy.begin(version)
            self._newest = copy
        return self._newest


class SnapshotBuffer:
    """The values of one version. A block is copied when it is first needed."""

    def __init__(self, values: Sequence[torch.Tensor]) -> None:
        self._values = values
        self._copies = [torch.empty_like(block) for block in values]
        self._frames = [raw(block) for block in self._copies]
        self._are_taken = [False] * len(values)
        self._trackers: List[zmq.MessageTracker] = []
        self.version = -1

    def begin(self, version: int) -> None:
        self._are_taken = [False] * len(self._values)
        self._trackers.clear()
        self.version = version

    def frames(self, piece: range) -> List[Any]:
        for number in piece:
            if not self._are_taken[number]:
                self._copies[number].copy_(self._values[number])
                self._are_taken[number] = True
        return [self._frames[number] for number in piece]

    def track(self, tracker: Any) -> None:
        """Note the tracker of a message with these frames."""
        if isinstance(tracker, zmq.MessageTracker):
            self._trackers.append(tracker)

    def is_sent(self) -> bool:
        self._trackers = [tracker for tracker in self._trackers if not tracker.done]
        return not self._trackers


class WorkerReplica:
    """The values that one worker has, for compressed responses: it is sent the difference to the shard. What the
    compression loses remains a difference, and is sent with a later response (error feedback).
    """

    def __init__(self, shard: Shard, codec: Codec) -> None:
        """The worker is sent the current values in full."""
        self._shard = shard
        self._codec = codec
        self._values_at_worker = [values.clone() for values in shard.values]

    def frames(self) -> Tuple[List[Any], List[int]]:
        """Frames and exponents of the difference."""
        frames: List[Any] = []
        exponents: List[int] = []
        for at_worker, values in zip(self._values_at_worker, self._shard.values):
            missing = values - at_worker
            own, exponent = self._codec.encode(missing)
            at_worker.add_(self._codec.decode(own, values.numel(), values.dtype, exponent))
            frames += own
            exponents.append(exponent)
        return frames, exponents
