"""TensorFlow's checkpoints: a table of names (``.index``, LevelDB's format) and files of bytes (``.data-…``).

The table's entries are the protocol buffers of ``tensor_bundle.proto``; the few fields needed are parsed by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from core.inspection.files import File, Folder, StoredBytes
from core.inspection.layers import is_optimizer_name
from core.inspection.model import NAME_LIMIT, CheckpointContents, Tensor, Unreadable, clip

_FOOTER_BYTES: Final = 48
_MAGIC: Final = 0xDB4775248B80FB57
_INDEX_LIMIT: Final = 64 * 2**20
_ATTRIBUTE: Final = "/.ATTRIBUTES/VARIABLE_VALUE"
# tensorflow/core/framework/types.proto
_DTYPES: Final = {
    1: "float32",
    2: "float64",
    3: "int32",
    4: "uint8",
    5: "int16",
    6: "int8",
    7: "string",
    8: "complex64",
    9: "int64",
    10: "bool",
    14: "bfloat16",
    17: "uint16",
    18: "complex128",
    19: "float16",
    22: "uint32",
    23: "uint64",
    24: "float8_e5m2",
    25: "float8_e4m3fn",
}


def open_tensorflow(folder: Folder, prefix: str) -> CheckpointContents:
    """The checkpoint whose files are ``<prefix>.index`` and ``<prefix>.data-…``. Raises ``Unreadable``."""
    index = folder.file(f"{prefix}.index")
    contents = CheckpointContents("tensorflow")
    shards = 0
    is_big = False
    files: dict[str, File | None] = {}
    for key, value in _entries(index):
        fields = dict(_fields(value))
        if not key:
            shards = int(fields.get(1, 0))
            is_big = bool(fields.get(2, 0))
            continue
        if key.startswith(b"\0"):
            continue  # a slice of a variable that is also listed as a whole
        name = key.decode("utf-8", "replace")
        if name == "_CHECKPOINTABLE_OBJECT_GRAPH":
            continue
        contents.add(_tensor(folder, prefix, name, value, shards=shards, is_big=is_big, files=files))
    if not 0 < shards <= 100_000:
        raise Unreadable(f"{index.name} is damaged: it states no number of shards.")
    return contents


def _tensor(
    folder: Folder, prefix: str, key: str, value: bytes, *, shards: int, is_big: bool, files: dict[str, File | None]
) -> Tensor:
    fields = dict(_fields(value))
    number = int(fields.get(3, 0))
    kind = int(fields.get(1, 0))
    shape = _shape(fields.get(2, b""))
    file_name = f"{prefix}.data-{number:05d}-of-{shards:05d}"
    dtype = _DTYPES.get(kind, f"type {kind}")
    offset, size = int(fields.get(4, 0)), int(fields.get(5, 0))
    about: dict[str, Any] = {
        "name": clip(key.removesuffix(_ATTRIBUTE), NAME_LIMIT),
        "shape": shape,
        "dtype": dtype,
        "file": file_name,
        "is_optimizer": is_optimizer_name(key),
        "is_big_endian": is_big,
    }
    if 7 in fields:
        return Tensor(**about, note="It is stored in slices, which are not joined here.")
    tensor = Tensor(**about)
    if tensor.size_bytes is None:
        return Tensor(**about, note=f"Elements of {dtype} are not decoded here.")
    if file_name not in files:
        files[file_name] = folder.file(file_name) if folder.has(file_name) else None
    file = files[file_name]
    if file is None:
        return Tensor(**about, note=f"Its file {file_name} is not there; the checkpoint is not whole.")
    if size != tensor.size_bytes:
        return Tensor(**about, note="Its bytes do not fit its shape; the checkpoint is damaged.")
    if offset + size > file.size:
        return Tensor(**about, note=f"{file_name} is cut short before its end.")
    return Tensor(**about, data=StoredBytes(file, offset, size))


def _shape(message: Any) -> tuple[int, ...]:
    sizes = []
    for field, value in _fields(message if isinstance(message, bytes) else b""):
        if field == 2 and isinstance(value, bytes):
            size = int(dict(_fields(value)).get(1, 0))
            if size >= 2**48:
                raise Unreadable("It is damaged: a dimension has a length below zero.")
            sizes.append(size)
    if len(sizes) > 64:
        raise Unreadable("It is damaged: a tensor has too many dimensions.")
    return tuple(sizes)


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protocol buffer: integers, and the bytes of length-delimited fields."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        match tag & 7:
            case 0:
                value, at = _varint(message, at)
                yield tag >> 3, value
            case 2:
                length, at = _varint(message, at)
                if at + length > len(message):
                    raise Unreadable("The table of names is damaged.")
                yield tag >> 3, message[at : at + length]
                at += length
            case 5:
                yield tag >> 3, int.from_bytes(message[at : at + 4], "little")
                at += 4
            case 1:
                yield tag >> 3, int.from_bytes(message[at : at + 8], "little")
                at += 8
            case _:
                raise Unreadable("The table of names is damaged.")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise Unreadable("The table of names is damaged.")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


# https://github.com/google/leveldb/blob/main/doc/table_format.md


def _entries(file: File) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of the table, in order."""
    if file.size > _INDEX_LIMIT:
        raise Unreadable(f"{file.name} is too large to be looked into.")
    if file.size < _FOOTER_BYTES:
        raise Unreadable(f"{file.name} is cut short; its writer may not have finished it.")
    data = file.read(0, file.size)
    footer = data[-_FOOTER_BYTES:]
    if int.from_bytes(footer[-8:], "little") != _MAGIC:
        raise Unreadable(f"{file.name} is cut short; its writer may not have finished it.")
    at = _varint(footer, _varint(footer, 0)[1])[1]  # after the handle of the metaindex block
    begin, at = _varint(footer, at)
    length, _ = _varint(footer, at)
    for _, place in _block(data, begin, length):
        first, at = _varint(place, 0)
        size, _ = _varint(place, at)
        yield from _block(data, first, size)


def _block(data: bytes, begin: int, length: int) -> Iterator[tuple[bytes, bytes]]:
    end = begin + length
    if length < 4 or end + 1 > len(data):
        raise Unreadable("The table of names is damaged: a block lies behind its end.")
    if data[end] != 0:
        raise Unreadable("The table of names is compressed, as TensorFlow never writes it.")
    restarts = int.from_bytes(data[end - 4 : end], "little")
    stop = end - 4 * (restarts + 1)
    if stop < begin:
        raise Unreadable("The table of names is damaged.")
    at, key = begin, b""
    while at < stop:
        shared, at = _varint(data, at)
        own, at = _varint(data, at)
        size, at = _varint(data, at)
        if shared > len(key) or at + own + size > stop:
            raise Unreadable("The table of names is damaged.")
        key = key[:shared] + data[at : at + own]
        at += own
        yield key, data[at : at + size]
        at += size
