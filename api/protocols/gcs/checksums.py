"""CRC32C and MD5 in Cloud Storage's encoding: base64 of the big-endian bytes."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import google_crc32c
from starlette.datastructures import Headers

from core.domain.errors import InvalidRequest

_BLOCK: Final = 2**20
_WORDS: Final = {4: "a CRC32C", 16: "an MD5"}
_SIZES: Final = {"crc32c": 4, "md5": 16}  # bytes


class Checksums:
    """Running checksums of the bytes passed to ``update``."""

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

    def compare(self, *expected: ExpectedChecksums) -> None:
        """Raises ``InvalidRequest``, worded as Cloud Storage does, if an expected checksum differs."""
        for sums in expected:
            for name, sent, real in (("CRC32C", sums.crc32c, self.crc32c), ("MD5 hash", sums.md5, self.md5)):
                if sent is not None and sent != real:
                    raise InvalidRequest(f'Provided {name} "{sent}" doesn\'t match calculated {name} "{real}".')


@dataclass(frozen=True, slots=True)
class ExpectedChecksums:
    """Checksums that the client sent; ``None``: not sent."""

    crc32c: str | None = None
    md5: str | None = None


def checksums_in_metadata(metadata: Mapping[str, Any]) -> ExpectedChecksums:
    """From the object's metadata. Raises ``InvalidRequest`` for a malformed checksum."""
    return ExpectedChecksums(_read(metadata.get("crc32c"), "crc32c", 4), _read(metadata.get("md5Hash"), "md5Hash", 16))


def checksums_in_headers(headers: Headers) -> ExpectedChecksums:
    """From ``x-goog-hash: crc32c=…,md5=…`` (one header or several) and ``Content-MD5``.

    Raises ``InvalidRequest`` for a malformed checksum.

    https://cloud.google.com/storage/docs/xml-api/reference-headers#xgooghash
    """
    sums: dict[str, str] = {}
    for part in ",".join(headers.getlist("x-goog-hash")).split(","):
        name, _, value = part.strip().partition("=")
        if name and name.lower() not in _SIZES:
            raise InvalidRequest(f"x-goog-hash: '{name[:50]}' is not served; crc32c and md5 are.", field="x-goog-hash")
        if name and sums.setdefault(name.lower(), value) != value:
            raise InvalidRequest(
                f"x-goog-hash: {name.lower()} is given twice with different values.", field="x-goog-hash"
            )
    md5 = headers.get("content-md5")
    if md5 is not None and sums.setdefault("md5", md5.strip()) != md5.strip():
        raise InvalidRequest("Content-MD5 and the MD5 of x-goog-hash differ.", field="content-md5")
    crc32c, md5 = (_read(sums.get(name), f"the request's {name}", _SIZES[name]) for name in ("crc32c", "md5"))
    return ExpectedChecksums(crc32c, md5)


def _read(value: Any, name: str, size: int) -> str | None:
    """``size``: in bytes."""
    if value is None or value == "":
        return None
    try:
        if isinstance(value, str) and len(base64.b64decode(value, validate=True)) == size:
            return value
    except (binascii.Error, ValueError):
        pass
    raise InvalidRequest(f"Invalid value for {name}: {_WORDS[size]} is {size} bytes in base64.", field=name)


def checksums_of(fd: int) -> Checksums:
    """Checksums of a whole open file. Blocks; does not move the file position."""
    sums = Checksums()
    while data := os.pread(fd, _BLOCK, sums.size_bytes):
        sums.update(data)
    return sums
