"""Upload limits: the maximal object size, and the free space of the bucket's volume."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from api.protocols.gcs.buckets import Bucket
from api.quotas.storage import UploadCharge
from core.domain.errors import PayloadTooLarge
from core.storage.volumes import demand_room

# Free space is checked once per so many bytes: the length may be unknown, and other writers take space meanwhile.
STEP_BYTES: Final = 64 * 2**20


@dataclass(frozen=True, slots=True)
class UploadLimit:
    """``sentence``: the error message for larger uploads."""

    size_bytes: int
    sentence: str

    def demand(self, size_bytes: int) -> None:
        """Raises ``PayloadTooLarge``."""
        if size_bytes > self.size_bytes:
            raise PayloadTooLarge(self.sentence)


def limit_of_objects(size_bytes: int) -> UploadLimit:
    """``size_bytes``: the setting."""
    return UploadLimit(
        size_bytes,
        f"The object is larger than {size_bytes:,} bytes, the most that may be uploaded here; upload it as several "
        "objects, or ask an admin for more (TRAINMASTER_OBJECT_LIMIT_BYTES).",
    )


class UploadMeter:
    """Counts the bytes of one upload against the limits. Methods block on the file system."""

    def __init__(self, bucket: Bucket, limit: UploadLimit, charge: UploadCharge | None = None) -> None:
        """``charge``: ``None`` outside of the projects' own folders."""
        self._bucket = bucket
        self._limit = limit
        self._charge = charge
        self._size_bytes = 0
        self._next_check_bytes = STEP_BYTES

    def announce(self, size_bytes: int | None, *, there_bytes: int = 0) -> None:
        """Call before the first write.

        Args:
            size_bytes: of the whole object, if known.
            there_bytes: part of it that was received before.

        Raises:
            PayloadTooLarge, InsufficientStorage, StorageQuotaExceeded
        """
        rest = 0 if size_bytes is None else max(0, size_bytes - there_bytes)
        if self._charge is not None:
            self._charge.announce(rest)
        self._limit.demand(there_bytes if size_bytes is None else size_bytes)
        self._size_bytes, self._next_check_bytes = there_bytes, there_bytes + STEP_BYTES
        self._demand_room(rest)

    def count(self, length: int) -> None:
        """Call before writing ``length`` more bytes. Raises as ``announce``."""
        self._size_bytes += length
        self._limit.demand(self._size_bytes)
        if self._charge is not None:
            self._charge.count(length)
        if self._size_bytes >= self._next_check_bytes:
            self._next_check_bytes = self._size_bytes + STEP_BYTES
            self._demand_room(0)

    def close(self) -> None:
        """Call when the upload's bytes of this request are on the disk."""
        if self._charge is not None:
            self._charge.flush()

    def _demand_room(self, size_bytes: int) -> None:
        bucket = self._bucket
        demand_room(bucket.top, size_bytes, f"Bucket {bucket.name}", "delete objects, or ask an admin for room.")
