"""The space on the volume of a job's output. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# A volume with less is short of room; one with so much, or a tenth of its size, is not.
_SHORT_BYTES: Final = 2**30
_PLENTY_BYTES: Final = 100 * 2**30


@dataclass(frozen=True, slots=True)
class VolumeRoom:
    """Space on a volume's file system, in bytes; ``free_files`` ``None``: the file system does not count them."""

    free: int
    total: int
    free_files: int | None = None

    @property
    def is_short(self) -> bool:
        """Whether a program may have found no room: little is free, or the quota of files is used up. A file that was
        too large is mostly gone again, so "little" is more than nothing.
        """
        return self.free < max(_SHORT_BYTES, min(self.total // 10, _PLENTY_BYTES)) or self.free_files == 0

    def __str__(self) -> str:
        if self.free_files == 0:
            return "no file can be created any more"
        return f"{self.free / 2**20:,.0f} of {self.total / 2**20:,.0f} MiB are free"
