"""A ps's share of the parameters: the values, the optimizer's state, and how stale the gradients were.

All parameters of the model lie one after the other in one long float32 vector; ps ``k`` of ``n`` holds the ``k``-th of
``n`` slices that are equal to within four bytes. So the shards are balanced whatever the layers look like, and a
checkpoint of ``n`` shards can be read by any other number of ps.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import trainmaster_train as tm
from wire import Refused, Vector


def bounds(total: int, index: int, count: int) -> tuple[int, int]:
    """Begin and end of the slice of ps ``index`` of ``count`` in a vector of ``total`` parameters."""
    return total * index // count, total * (index + 1) // count


@dataclass
class Staleness:
    """How many updates of others lay between a gradient's pull and its push."""

    pushes: int = 0
    total: int = 0
    largest: int = 0
    dropped: int = 0

    def note(self, staleness: int) -> None:
        self.pushes += 1
        self.total += staleness
        self.largest = max(self.largest, staleness)

    def __str__(self) -> str:
        mean = self.total / self.pushes if self.pushes else 0.0
        dropped = f", {self.dropped} too stale and dropped" if self.dropped else ""
        return f"{self.pushes} gradients, staleness mean {mean:.2f}, largest {self.largest}{dropped}"


class Shard:
    """Thread-safe. The optimizer is SGD with momentum; a stale gradient is scaled down by its staleness, as Zhang et
    al. found good ("Staleness-aware async-SGD for distributed deep learning", IJCAI 2016).
    """

    def __init__(self, index: int, count: int, *, lr: float, momentum: float, max_staleness: int) -> None:
        self.index = index
        self.count = count
        self.version = 0  # updates applied
        self.staleness = Staleness()
        self._lr = lr
        self._momentum = momentum
        self._max_staleness = max_staleness
        self._lock = threading.Lock()
        self._values: Vector | None = None
        self._velocity: Vector = np.zeros(0, np.float32)

    @property
    def size_bytes(self) -> int | None:
        """``None`` as long as nobody sent the first values."""
        return None if self._values is None else self._values.nbytes

    def expect(self, total: int, count: int) -> None:
        """Raises ``Refused`` when a worker's model and layout do not fit this shard."""
        if count != self.count:
            raise Refused(f"you see {count} ps and this is one of {self.count}: start all with the same layout")
        begin, end = bounds(total, self.index, self.count)
        if self._values is not None and self._values.size != end - begin:
            raise Refused(
                f"this ps holds {self._values.size} parameters where your model has {end - begin}: "
                "the checkpoint is of another model; choose another output, or the same model"
            )

    def fill(self, values: Vector) -> None:
        """Take the first values. Later calls change nothing: all workers may try."""
        with self._lock:
            if self._values is None:
                self._values = values.copy()
                self._velocity = np.zeros_like(self._values)

    def pull(self) -> tuple[int, Vector]:
        """The version and a copy of the values."""
        with self._lock:
            return self.version, self._known().copy()

    def push(self, gradient: Vector, version: int) -> tuple[int, int, Vector]:
        """Apply ``gradient``, computed on the values of ``version``; the new version, the staleness, the new values."""
        with self._lock:
            values = self._known()
            if gradient.shape != values.shape or not np.isfinite(gradient).all():
                raise Refused(f"a gradient must be {values.size} finite numbers")
            # After a restart of this ps from a checkpoint a version may lie ahead of it: that gradient is not stale.
            staleness = max(0, self.version - version)
            if staleness > self._max_staleness:
                self.staleness.dropped += 1
            else:
                self._velocity *= self._momentum
                self._velocity += gradient
                values -= np.float32(self._lr / max(1, staleness)) * self._velocity
                self.version += 1
                self.staleness.note(staleness)
            return self.version, staleness, values.copy()

    def save(self, step: int) -> None:
        """Write this shard into the staged checkpoint of ``step``."""
        with self._lock:
            values, velocity, version = self._known().copy(), self._velocity.copy(), self.version
        folder = tm.staged_path(step)
        if not folder.is_dir():
            raise Refused(f"{folder} is not there: the worker stages it, in an output that all replicas share")
        file = folder / f"shard-{self.index:05d}-of-{self.count:05d}.npz"
        with file.open("wb") as stream:
            np.savez(stream, version=np.int64(version), values=values, velocity=velocity)
            stream.flush()
            os.fsync(stream.fileno())

    def restore(self, checkpoint: Path) -> None:
        """Take this shard's slice of ``checkpoint``, however many ps wrote it."""
        files = sorted(checkpoint.glob("shard-*-of-*.npz"))
        if not files or len(files) != int(files[0].stem.rpartition("-")[2]):
            raise tm.CheckpointError(f"{checkpoint} does not hold all shards of a parameter server's checkpoint")
        shards = [np.load(file, allow_pickle=False) for file in files]
        values = np.concatenate([shard["values"] for shard in shards])
        velocity = np.concatenate([shard["velocity"] for shard in shards])
        begin, end = bounds(values.size, self.index, self.count)
        with self._lock:
            self._values = values[begin:end].copy()
            self._velocity = velocity[begin:end].copy()
            self.version = int(shards[0]["version"])  # one number for all, so that they count on together

    def freeze(self) -> None:
        """Wait for the update that is being applied, and let no other begin: the end of this process is near."""
        self._lock.acquire()

    def _known(self) -> Vector:
        if self._values is None:
            raise Refused("this ps has no values yet: send them first")
        return self._values
