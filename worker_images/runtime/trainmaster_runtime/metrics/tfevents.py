"""Reads records of TensorBoard files and decodes their events: scalars, histograms, images and texts, of any writer.

A file grows while it is read. A record is its length (8 bytes), a checksum of these, the data, and a checksum of the
data: https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/lib/io/record_writer.h. The data is an event
in Protocol Buffers: https://protobuf.dev/programming-guides/encoding/

torch and tensorboardX write scalars as ``simple_value``; TensorFlow 2 and Keras write tensors, whose plug-in's name
says what they are, in the first event of a tag at the latest. The messages:
https://github.com/tensorflow/tensorboard/tree/master/tensorboard/compat/proto (event, summary, tensor)
"""

from __future__ import annotations

import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

_HEAD = struct.Struct("<QI")
_CRC = struct.Struct("<I")
# A larger record is passed over unread: audio, meshes, graphs of whole models.
RECORD_LIMIT = 4 * 2**20
# Of a larger one only the length is checked: in pure Python a megabyte takes a tenth of a second.
_CHECKED_BYTES = 256 * 1024

_DOUBLE = struct.Struct("<d")
_FLOAT = struct.Struct("<f")

_TEXT_BYTES = 64 * 1024
_IMAGE_BYTES = 512 * 1024
_BINS = 512
# TensorFlow's numbers of types, and how struct reads them.
_CODES = {1: "f", 2: "d", 3: "i", 9: "q", 19: "e"}
_STRING = 7


class Broken(ValueError):
    """The file is no event file, or it is damaged from here on."""


def read_records(fd: int, offset: int, limit_bytes: int) -> Tuple[List[bytes], int]:
    """The whole records from ``offset`` on and the offset behind them; some ``limit_bytes`` at most, at least one
    record.

    A record that is still being written is left for the next time. Raises :class:`Broken` and ``OSError``.
    """
    size = os.fstat(fd).st_size
    records: List[bytes] = []
    end = min(size, offset + limit_bytes)
    while offset + _HEAD.size <= size and (offset < end or not records):
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
            records.append(data[:length])
        offset = following
    return records, offset


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
        remainder = number
        for _ in range(8):
            remainder = (remainder >> 1) ^ (0x82F63B78 if remainder & 1 else 0)  # Castagnoli's polynomial, reversed
        made.append(remainder)
    return made


_TABLE = _table()


def _fields(data: memoryview) -> Iterator[Tuple[int, int, Union[int, memoryview]]]:
    """(number, wire type, value) of each field of a message: a whole number for type 0, else bytes.

    Raises ``ValueError`` for what is no message.
    """
    position, end = 0, len(data)
    while position < end:
        key, position = _varint(data, position)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, position = _varint(data, position)
            yield number, kind, value
            continue
        if kind == 2:
            length, position = _varint(data, position)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError("wire type %d" % kind)
        if position + length > end:
            raise ValueError("a field reaches over its message's end")
        yield number, kind, data[position : position + length]
        position += length


def _varint(data: memoryview, position: int) -> Tuple[int, int]:
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


def _signed(value: int) -> int:
    """An int64 as protobuf sends it."""
    return value - 2**64 if value >= 2**63 else value


def _double(value: Union[int, memoryview]) -> float:
    return float(_DOUBLE.unpack(value)[0]) if isinstance(value, memoryview) and len(value) == 8 else float("nan")


def _single(value: Union[int, memoryview]) -> float:
    return float(_FLOAT.unpack(value)[0]) if isinstance(value, memoryview) and len(value) == 4 else float("nan")


def _numbers(value: Union[int, memoryview], code: str) -> List[float]:
    """Packed numbers of ``code`` (``d``, ``f``, ``i``, ``q``, as ``struct`` has them), or a single one."""
    if not isinstance(value, memoryview):
        return [float(_signed(value))]
    width = struct.calcsize("<" + code)
    return [float(packed[0]) for packed in struct.iter_unpack("<" + code, value[: len(value) // width * width])]


def _varints(value: Union[int, memoryview]) -> List[int]:
    """Packed whole numbers, or a single one."""
    if not isinstance(value, memoryview):
        return [_signed(value)]
    numbers, position = [], 0
    while position < len(value):
        number, position = _varint(value, position)
        numbers.append(_signed(number))
    return numbers


def _text(value: Union[int, memoryview]) -> str:
    return bytes(value).decode("utf-8", "replace") if isinstance(value, memoryview) else ""


class Value:
    """``kind``: scalar (``data`` is a float), histogram (edges and counts), image (bytes), text (str)."""

    __slots__ = ("data", "kind", "name", "step", "time_s")

    def __init__(self, name: str, kind: str, step: int, time_s: float, data: Any) -> None:
        self.name = name
        self.kind = kind
        self.step = step
        self.time_s = time_s
        self.data = data


class Decoder:
    """Events of one file, in order: it remembers what each tag is."""

    def __init__(self) -> None:
        self._plugins: Dict[str, str] = {}

    def values(self, record: bytes) -> List[Value]:
        """Values of the event; none for graphs, audio and the like. Raises ``ValueError`` for a record that is no
        event.
        """
        time_s, step, summaries = 0.0, 0, []
        for number, kind, value in _fields(memoryview(record)):
            if number == 1 and kind == 1:
                time_s = _double(value)
            elif number == 2 and isinstance(value, int):
                step = _signed(value)
            elif number == 5 and isinstance(value, memoryview):
                summaries.append(value)
        values = []
        for summary in summaries:
            for number, _, value in _fields(summary):
                if number == 1 and isinstance(value, memoryview):
                    decoded = self._value(value)
                    if decoded is not None:
                        values.append(Value(decoded[0], decoded[1], step, time_s, decoded[2]))
        return values

    def _value(self, data: memoryview) -> Optional[Tuple[str, str, Any]]:
        tag, plugin = "", ""
        simple: Optional[float] = None
        parts: Dict[int, memoryview] = {}
        for number, kind, value in _fields(data):
            if number == 1:
                tag = _text(value)
            elif number == 2 and kind == 5:
                simple = _single(value)
            elif number == 9 and isinstance(value, memoryview):
                plugin = _plugin(value)
            elif number in (4, 5, 8) and isinstance(value, memoryview):
                parts[number] = value
        if plugin:
            self._plugins[tag] = plugin
        if simple is not None:
            return tag, "scalar", simple
        if 5 in parts:
            return _named(tag, "histogram", _histogram(parts[5]))
        if 4 in parts:
            return _named(tag, "image", _image(parts[4]))
        if 8 in parts:
            return self._tensor(tag, parts[8])
        return None

    def _tensor(self, tag: str, data: memoryview) -> Optional[Tuple[str, str, Any]]:
        tensor = TensorProto(data)
        plugin = self._plugins.get(tag, "")
        if plugin == "images":
            # Width, height, then the images.
            return _named(tag, "image", _small(tensor.strings[2]) if len(tensor.strings) > 2 else None)
        if plugin == "histograms":
            return _named(tag, "histogram", _rows(tensor.values()))
        if tensor.kind == _STRING:
            words = b"\n".join(tensor.strings)[:_TEXT_BYTES].decode("utf-8", "replace")
            return (tag, "text", words) if plugin in ("text", "") else None
        values = tensor.values()
        if len(values) == 1 and plugin in ("scalars", ""):
            return tag, "scalar", values[0]
        return None


def time_of(record: bytes) -> float:
    """When the event was written, in seconds since 1970. Raises ``ValueError`` for what is no event."""
    fields = _fields(memoryview(record))
    return next((_double(value) for number, kind, value in fields if number == 1 and kind == 1), 0.0)


class TensorProto:
    """A TensorProto, as far as summaries use it."""

    def __init__(self, data: memoryview) -> None:
        self.kind = 0
        self.strings: List[bytes] = []
        self._content = b""
        self._listed: List[float] = []
        for number, kind, value in _fields(data):
            if number == 1 and isinstance(value, int):
                self.kind = value
            elif number == 4 and isinstance(value, memoryview):
                self._content = bytes(value)
            elif number == 5:
                self._listed += _numbers(value, "f")
            elif number == 6:
                self._listed += _numbers(value, "d")
            elif number in (7, 10) and (kind in (0, 2)):
                self._listed += [float(decoded) for decoded in _varints(value)]
            elif number == 8 and isinstance(value, memoryview):
                self.strings.append(bytes(value))

    def values(self) -> List[float]:
        if self._content:
            code = _CODES.get(self.kind)
            if code is None:
                return []
            return _numbers(memoryview(self._content), code)
        return self._listed


def _named(tag: str, kind: str, data: Any) -> Optional[Tuple[str, str, Any]]:
    return None if data is None else (tag, kind, data)


def _plugin(metadata: memoryview) -> str:
    for number, _, value in _fields(metadata):
        if number == 1 and isinstance(value, memoryview):
            return next((_text(name) for inner, _, name in _fields(value) if inner == 1), "")
    return ""


def _image(data: memoryview) -> Optional[bytes]:
    return next(
        (_small(bytes(value)) for number, _, value in _fields(data) if number == 4 and isinstance(value, memoryview)),
        None,
    )


def _small(image: bytes) -> Optional[bytes]:
    return image if len(image) <= _IMAGE_BYTES else None


def _histogram(data: memoryview) -> Optional[Dict[str, List[float]]]:
    low = 0.0
    limits: List[float] = []
    counts: List[float] = []
    for number, kind, value in _fields(data):
        if number == 1 and kind == 1:
            low = _double(value)
        elif number in (6, 7):
            # Packed, or one by one.
            listed = _numbers(value, "d")
            (limits if number == 6 else counts).extend(listed)
    if not counts or len(limits) != len(counts):
        return None
    # The first bucket begins at the least value, and the last ends at infinity in all but name.
    edges = [min(low, limits[0]), *limits]
    return _trimmed(edges, counts)


def _rows(values: List[float]) -> Optional[Dict[str, List[float]]]:
    """Rows of (left, right, count)."""
    if len(values) < 3 or len(values) % 3:
        return None
    return _trimmed([*values[0::3], values[-2]], values[2::3])


def _trimmed(edges: List[float], counts: List[float]) -> Optional[Dict[str, List[float]]]:
    """Without empty bins at both ends, neighbours merged until there are few enough, in finite numbers."""
    first, last = 0, len(counts)
    while last - first > 1 and not counts[last - 1]:
        last -= 1
    while last - first > 1 and not counts[first]:
        first += 1
    edges, counts = edges[first : last + 1], counts[first:last]
    while len(counts) > _BINS:
        if len(counts) % 2:
            edges.append(edges[-1])
            counts.append(0.0)
        edges = edges[0::2]
        counts = [sum(pair) for pair in zip(counts[0::2], counts[1::2])]
    edges = [max(-1.7e308, min(1.7e308, edge)) for edge in edges]
    is_good = all(edge == edge for edge in edges) and all(0 <= count < 1e300 for count in counts)  # noqa: PLR0124 - NaN
    return {"edges": edges, "counts": counts} if is_good else None
