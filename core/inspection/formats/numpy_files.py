"""numpy's ``.npy`` and ``.npz``. Arrays of Python objects are pickles, which are not inspected."""

from __future__ import annotations

import ast
import re
from typing import Any, Final

from core.inspection.files import File, StoredBytes, Zip
from core.inspection.layers import is_optimizer_name
from core.inspection.model import NAME_LIMIT, CheckpointContents, Tensor, Unreadable, clip

_MAGIC: Final = b"\x93NUMPY"
_HEADER_LIMIT: Final = 64 * 2**10
_KINDS: Final = {
    "f8": "float64", "f4": "float32", "f2": "float16", "c16": "complex128", "c8": "complex64",
    "i8": "int64", "i4": "int32", "i2": "int16", "i1": "int8",
    "u8": "uint64", "u4": "uint32", "u2": "uint16", "u1": "uint8", "b1": "bool",
}  # fmt: skip
_DESCRIPTION: Final = re.compile(r"^([<>|=])([a-zA-Z]\d+)$")


def open_npy(file: File) -> CheckpointContents:
    """Raises ``Unreadable``."""
    contents = CheckpointContents("numpy")
    head = file.read(0, min(file.size, _HEADER_LIMIT + 12))
    contents.add(
        _array(
            "array", head, file.name, lambda skip, length: StoredBytes(file.part(skip, length), 0, length), file.size
        )
    )
    return contents


def open_npz(file: File) -> CheckpointContents:
    """Raises ``Unreadable``."""
    archive = Zip(file)
    contents = CheckpointContents("numpy")
    for member, info in archive.members.items():
        if not member.endswith(".npy"):
            contents.note(f"{clip(member, 100)} in it is no array.")
            continue
        with archive.open(member) as opened:
            head = archive.unpack(opened, min(info.file_size, 12), member)
            head += archive.unpack(opened, min(info.file_size - len(head), _header_bytes(head)), member)
        name = member.removesuffix(".npy")

        def place(skip: int, length: int, member: str = member) -> Any:
            return archive.data(member, skip, length)

        contents.add(_array(name, head, file.name, place, info.file_size))
    return contents


def _header_bytes(head: bytes) -> int:
    """The header's length after the first twelve bytes."""
    if len(head) < 12:
        return 0
    length = int.from_bytes(head[8:10], "little") + 10 if head[6] == 1 else int.from_bytes(head[8:12], "little") + 12
    return max(0, min(length, _HEADER_LIMIT) - 12)


def _array(name: str, head: bytes, file: str, place: Any, size: int) -> Tensor:
    if not head.startswith(_MAGIC) or len(head) < 12:
        raise Unreadable(f"{file}: {clip(name, 100)} is no array of numpy.")
    begin = 10 if head[6] == 1 else 12
    length = int.from_bytes(head[8:begin], "little")
    if length > _HEADER_LIMIT:
        raise Unreadable(f"{file}: the header of {clip(name, 100)} claims {length:,} bytes.")
    try:
        about = ast.literal_eval(head[begin : begin + length].decode("latin-1").strip())
        kind, shape, is_fortran = about["descr"], tuple(about["shape"]), bool(about["fortran_order"])
        if not all(isinstance(extent, int) and 0 <= extent < 2**48 for extent in shape) or len(shape) > 64:
            raise ValueError("no shape")  # noqa: TRY301 (one way out for everything that is wrong with it)
    except (ValueError, SyntaxError, LookupError, TypeError, MemoryError, RecursionError) as error:
        raise Unreadable(f"{file}: the header of {clip(name, 100)} is damaged.") from error
    match = _DESCRIPTION.match(kind) if isinstance(kind, str) else None
    dtype = _KINDS.get(match[2]) if match else None
    fields: dict[str, Any] = {
        "name": clip(name, NAME_LIMIT),
        "shape": shape,
        "dtype": dtype or clip(str(kind), 50),
        "file": file,
        "is_optimizer": is_optimizer_name(name),
        "is_big_endian": match is not None and match[1] == ">",
        "is_ordered": not is_fortran or len(shape) < 2,
    }
    if dtype is None:
        holds = "Python objects, which are never unpickled" if str(kind).endswith("O") else "elements not decoded here"
        return Tensor(**fields, note=f"It holds {holds}.")
    tensor = Tensor(**fields)
    wanted = tensor.size_bytes or 0
    if begin + length + wanted > size:
        return Tensor(**fields, note="The file is cut short before its end.")
    return Tensor(**fields, data=place(begin + length, wanted))
