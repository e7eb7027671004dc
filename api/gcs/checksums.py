"""CRC32C and MD5 as Cloud Storage tells them: base64 of the big-endian bytes."""

from __future__ import annotations

import base64
import hashlib
import os
from typing import Final

import google_crc32c

from core.domain.errors import InvalidRequest

_BLOCK: Final = 2**20


class Checksums:
    """Of what has been fed so far."""

    def __init__(self) -> None:
        self._crc32c = google_crc32c.Checksum()
        self._md5 = hashlib.md5(usedforsecurity=False)
        self.size_bytes = 0

    def update(self, data: bytes) -> None:
        self._crc32c.update(data)
        self._md5.update(data)
        self.size_bytes += len(data)

    @property
    def crc32c(self) -> str:
        return base64.b64encode(self._crc32c.digest()).decode()

    @property
    def md5(self) -> str:
        return base64.b64encode(self._md5.digest()).decode()

    def compare(self, crc32c: str | None, md5: str | None) -> None:
        """Raises ``InvalidRequest`` in Cloud Storage's own words where what the client told is another one."""
        for name, told, real in (("CRC32C", crc32c, self.crc32c), ("MD5 hash", md5, self.md5)):
            if told and told != real:
                raise InvalidRequest(f'Provided {name} "{told}" doesn\'t match calculated {name} "{real}".')


def checksums_of(fd: int) -> Checksums:
    """Of a whole open file. Blocks; does not move its position."""
    found = Checksums()
    while data := os.pread(fd, _BLOCK, found.size_bytes):
        found.update(data)
    return found
