"""Records of a TensorBoard event file, which grows while it is read.

A record is its length (8 bytes), a checksum of these, the data, and a checksum of the data:
https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/lib/io/record_writer.h
"""

from __future__ import annotations

import os
import struct

_HEAD = struct.Struct("<QI")
_CRC = struct.Struct("<I")
# A larger record is passed over unread: audio, meshes, graphs of whole models.
RECORD_LIMIT = 4 * 2**20
# Of a larger one only the length is checked: in pure Python a megabyte takes a tenth of a second.
_CHECKED_BYTES = 256 * 1024

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Tuple


class Broken(ValueError):
    """The file is no event file, or it is damaged from here on."""


def read_records(fd: int, offset: int, limit_bytes: int) -> Tuple[List[bytes], int]:
    """The whole records from ``offset`` on and the offset behind them; some ``limit_bytes`` at most, at least one
    record.

    A record that is still being written is left for the next time. Raises :class:`Broken` and ``OSError``.
    """
    size = os.fstat(fd).st_size
    found: List[bytes] = []
    end = min(size, offset + limit_bytes)
    while offset + _HEAD.size <= size and (offset < end or not found):
        head = os.pread(fd, _HEAD.size, offset)
        if len(head) < _HEAD.size:
            break
        length, crc = _HEAD.unpack(head)
        if crc != masked_crc(head[:8]):
            raise Broken("a record's length does not fit its checksum, at byte %d" % offset)
        following = offset + _HEAD.size + length + _CRC.size
        if following > size:
            break
        if length <= RECORD_LIMIT:
            data = os.pread(fd, length + _CRC.size, offset + _HEAD.size)
            if len(data) < length + _CRC.size:
                break
            if length <= _CHECKED_BYTES and _CRC.unpack(data[length:])[0] != masked_crc(data[:length]):
                raise Broken("a record does not fit its checksum, at byte %d" % offset)
            found.append(data[:length])
        offset = following
    return found, offset


def masked_crc(data: bytes) -> int:
    """The CRC-32C of ``data``, turned and shifted as the format wants it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _table() -> List[int]:
    made = []
    for number in range(256):
        rest = number
        for _ in range(8):
            rest = (rest >> 1) ^ (0x82F63B78 if rest & 1 else 0)  # Castagnoli's polynomial, reversed
        made.append(rest)
    return made


_TABLE = _table()
