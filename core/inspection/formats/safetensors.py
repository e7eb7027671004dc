"""safetensors: a length, a header of JSON, the bytes."""

from __future__ import annotations

import json
from typing import Any, Final

from core.inspection.files import File, StoredBytes
from core.inspection.model import CheckpointContents, Tensor, Unreadable, clip

HEADER_LIMIT: Final = 100 * 2**20  # the format's own
_DTYPES: Final = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
    "C64": "complex64",
}


def open_safetensors(file: File) -> CheckpointContents:
    """Raises ``Unreadable``."""
    header_bytes = int.from_bytes(file.read(0, 8), "little")
    if header_bytes > HEADER_LIMIT:
        raise Unreadable(f"{file.name}: its header claims {header_bytes:,} bytes; the format allows {HEADER_LIMIT:,}.")
    try:
        header = json.loads(file.read(8, header_bytes))
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{file.name} is damaged: its header is no JSON.") from error
    if not isinstance(header, dict):
        raise Unreadable(f"{file.name} is damaged: its header is no JSON object.")
    contents = CheckpointContents("safetensors")
    about = header.pop("__metadata__", None)
    for key, value in about.items() if isinstance(about, dict) else ():
        contents.tell(f"metadata.{key}", str(value))
    begin = 8 + header_bytes
    for name, entry in header.items():
        contents.add(_tensor(file, begin, name, entry))
    return contents


def _tensor(file: File, begin: int, name: str, entry: Any) -> Tensor:
    try:
        first, last = (int(at) for at in entry["data_offsets"])
        shape = tuple(int(size) for size in entry["shape"])
        kind = str(entry["dtype"])
    except (LookupError, TypeError, ValueError) as error:
        raise Unreadable(f"{file.name} is damaged: its header describes {clip(name, 100)} wrongly.") from error
    if not 0 <= first <= last or any(size < 0 for size in shape) or len(shape) > 64:
        raise Unreadable(f"{file.name} is damaged: its header describes {clip(name, 100)} wrongly.")
    tensor = Tensor(clip(name, 1000), shape, _DTYPES.get(kind, kind.lower()[:50]), file.name)
    if tensor.size_bytes is None:
        return _noted(tensor, f"Elements of {tensor.dtype} are not decoded here.")
    if tensor.size_bytes != last - first:
        return _noted(tensor, "Its bytes in the file do not fit its shape; the file is damaged.")
    if begin + last > file.size:
        return _noted(tensor, "The file is cut short before its end.")
    return Tensor(tensor.name, shape, tensor.dtype, file.name, StoredBytes(file, begin + first, last - first))


def _noted(tensor: Tensor, sentence: str) -> Tensor:
    return Tensor(tensor.name, tensor.shape, tensor.dtype, tensor.file, note=sentence)
