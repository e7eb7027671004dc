"""Protocol Buffers on the wire, as far as event files need them: https://protobuf.dev/programming-guides/encoding/"""

from __future__ import annotations

import struct

_DOUBLE = struct.Struct("<d")
_FLOAT = struct.Struct("<f")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator, List, Tuple, Union


def fields(data: memoryview) -> Iterator[Tuple[int, int, Union[int, memoryview]]]:
    """(number, wire type, value) of each field of a message: a whole number for type 0, else bytes.

    Raises ``ValueError`` for what is no message.
    """
    position, end = 0, len(data)
    while position < end:
        key, position = varint(data, position)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, position = varint(data, position)
            yield number, kind, value
            continue
        if kind == 2:
            length, position = varint(data, position)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError("wire type %d" % kind)
        if position + length > end:
            raise ValueError("a field reaches over its message's end")
        yield number, kind, data[position : position + length]
        position += length


def varint(data: memoryview, position: int) -> Tuple[int, int]:
    """The number at ``position`` and the place behind it. Raises ``ValueError``."""
    value = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise ValueError("a number without an end")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, position
        shift += 7


def signed(value: int) -> int:
    """An int64 as protobuf sends it."""
    return value - 2**64 if value >= 2**63 else value


def double(value: Union[int, memoryview]) -> float:
    return float(_DOUBLE.unpack(value)[0]) if isinstance(value, memoryview) and len(value) == 8 else float("nan")


def single(value: Union[int, memoryview]) -> float:
    return float(_FLOAT.unpack(value)[0]) if isinstance(value, memoryview) and len(value) == 4 else float("nan")


def numbers(value: Union[int, memoryview], code: str) -> List[float]:
    """Packed numbers of ``code`` (``d``, ``f``, ``i``, ``q``, as ``struct`` has them), or a single one."""
    if not isinstance(value, memoryview):
        return [float(signed(value))]
    width = struct.calcsize("<" + code)
    return [float(packed[0]) for packed in struct.iter_unpack("<" + code, value[: len(value) // width * width])]


def varints(value: Union[int, memoryview]) -> List[int]:
    """Packed whole numbers, or a single one."""
    if not isinstance(value, memoryview):
        return [signed(value)]
    found, position = [], 0
    while position < len(value):
        number, position = varint(value, position)
        found.append(signed(number))
    return found


def text(value: Union[int, memoryview]) -> str:
    return bytes(value).decode("utf-8", "replace") if isinstance(value, memoryview) else ""
