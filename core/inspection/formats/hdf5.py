"""Keras: ``.h5`` and ``.weights.h5`` (HDF5), and ``.keras``, a zip file with one of these in it.

HDF5 is parsed by pyfive, which is pure Python: a damaged file cannot exploit it as it could a C library. The elements
of contiguous datasets are read here, from the stored offsets.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Final

from core.inspection.files import File, Inline, StoredBytes, Zip
from core.inspection.layers import is_optimizer_name
from core.inspection.model import (
    CHUNK_BYTES,
    ITEM_BYTES,
    NAME_LIMIT,
    CheckpointContents,
    ElementSource,
    Tensor,
    Unreadable,
    clip,
)

if TYPE_CHECKING:
    import numpy as np

_GROUP_LIMIT: Final = 100_000
_DEPTH_LIMIT: Final = 64
# A model inside a compressed .keras file is unpacked into memory, since HDF5 needs random access.
_UNPACKED_LIMIT: Final = 64 * 2**20
_UNDEFINED: Final = 0xFFFFFFFFFFFFFFFF
_KERAS_FILES: Final = ("model.weights.h5",)
_SHOWN_ATTRIBUTES: Final = ("keras_version", "backend")


def open_keras(file: File) -> CheckpointContents:
    """A ``.keras`` file. Raises ``Unreadable``."""
    archive = Zip(file)
    name = next((name for name in _KERAS_FILES if name in archive.members), None)
    if name is None:
        raise Unreadable(f"{file.name} is a zip file, but none of Keras: it has no {_KERAS_FILES[0]}.")
    info = archive.members[name]
    if info.compress_type == 0:
        window = archive.window(name)
        contents = open_hdf5(window)
    else:
        contents = _hdf5(io.BytesIO(archive.read(name, _UNPACKED_LIMIT)), None, file.name)
    contents.format = "keras"
    for about in ("metadata.json", "config.json"):
        if about in archive.members:
            _tell_json(contents, archive.read(about, 16 * 2**20))
    return contents


def open_hdf5(file: File) -> CheckpointContents:
    """An HDF5 file of Keras. Raises ``Unreadable``."""
    return _hdf5(file.stream(), file, file.name)


def _tell_json(contents: CheckpointContents, data: bytes) -> None:
    try:
        about = json.loads(data)
    except (ValueError, RecursionError):
        contents.note("Its description is no JSON.")
        return
    for key in ("keras_version", "date_saved", "class_name", "registered_name"):
        if isinstance(about, dict) and isinstance(about.get(key), str):
            contents.tell(key, about[key])


def _hdf5(stream: io.BufferedReader | io.BytesIO, file: File | None, name: str) -> CheckpointContents:
    try:
        import pyfive
    except ImportError as error:  # pragma: no cover (a dependency of the server)
        raise Unreadable("HDF5 files need the package pyfive, which is not installed.") from error
    contents = CheckpointContents("keras")
    try:
        top = pyfive.File(stream)
        for key in _SHOWN_ATTRIBUTES:
            value = top.attrs.get(key)
            if isinstance(value, bytes | str):
                contents.tell(key, value.decode("utf-8", "replace") if isinstance(value, bytes) else value)
        groups: list[tuple[Any, str, int]] = [(top, "", 0)]
        group_count = 0
        while groups:
            group, path, depth = groups.pop()
            for key in sorted(group):
                group_count += 1
                _check_bounds(group_count, depth, name)
                below = f"{path}/{key}" if path else key
                entry = group.get_lazy_view(key)
                if isinstance(entry, pyfive.Dataset):
                    _add(contents, entry, clip(below, NAME_LIMIT), file, name)
                elif isinstance(entry, pyfive.Group):
                    groups.append((entry, below, depth + 1))
    except (Unreadable, MemoryError):
        raise
    except Exception as error:  # damaged input raises any exception
        raise Unreadable(f"{name} is damaged, or HDF5 of a kind that is not read here ({_words(error)}).") from error
    return contents


def _check_bounds(group_count: int, depth: int, name: str) -> None:
    if group_count > _GROUP_LIMIT or depth > _DEPTH_LIMIT:
        raise Unreadable(f"{name} is nested in itself, or has too many groups.")


def _words(error: BaseException) -> str:
    return clip(str(error) or type(error).__name__, 200)


def _add(contents: CheckpointContents, dataset: Any, name: str, file: File | None, file_name: str) -> None:
    shape = tuple(int(size) for size in dataset.shape or ())
    about: dict[str, Any] = {"shape": shape, "file": file_name, "is_optimizer": is_optimizer_name(name)}
    kind = dataset.dtype
    dtype = getattr(kind, "name", str(kind))
    if dtype not in ITEM_BYTES:
        if not shape:
            contents.tell(name, f"a value of {clip(dtype, 50)}")
        else:
            contents.add(Tensor(name, **about, dtype=clip(dtype, 50), note="Its elements are no numbers."))
        return
    about |= {"dtype": dtype, "is_big_endian": kind.byteorder == ">"}
    tensor = Tensor(name, **about)
    try:
        data = _data(dataset, tensor, file)
    except Unreadable as error:
        contents.add(Tensor(name, **about, note=error.sentence))
        return
    # The library decodes to this machine's byte order.
    about["is_big_endian"] = about["is_big_endian"] and not isinstance(data, _Chunked)
    contents.add(Tensor(name, **about, data=data))


def _data(dataset: Any, tensor: Tensor, file: File | None) -> ElementSource:
    size = tensor.size_bytes or 0
    match dataset.id.layout_class:
        case 0:
            content = bytes(dataset.id._data)  # noqa: SLF001 (the public API copies to an array)
            if len(content) < size:
                raise Unreadable("Its bytes do not fit its shape; the file is damaged.")
            return Inline(content[:size])
        case 1:
            offset = int(dataset.id.data_offset)
            if offset == _UNDEFINED or size == 0:
                if size:
                    raise Unreadable("Nothing was ever written into it.")
                return Inline(b"")
            if file is None:
                return _Chunked(dataset, tensor.shape)
            if offset + size > file.size:
                raise Unreadable("The file is cut short before its end.")
            return StoredBytes(file, offset, size)
        case _:
            return _Chunked(dataset, tensor.shape)


@dataclass(frozen=True, slots=True)
class _Chunked:
    """Decoded by the library, some rows at a time."""

    dataset: Any
    shape: tuple[int, ...]

    def chunks(self) -> Iterator[bytes]:
        item = int(self.dataset.dtype.itemsize)
        row_bytes = prod(self.shape[1:]) * item
        chunk_rows = (self.dataset.chunks or (1,))[0] or 1
        chunk_bytes = prod(self.dataset.chunks or (1,)) * item
        if max(row_bytes, chunk_bytes) > _UNPACKED_LIMIT:
            raise Unreadable("It is kept in chunks that are too large to be unpacked here.")
        step = max(1, CHUNK_BYTES // max(1, row_bytes))
        step = max(1, step // chunk_rows) * chunk_rows
        while step > 1 and step * row_bytes > _UNPACKED_LIMIT:
            step //= 2
        try:
            for at in range(0, self.shape[0] if self.shape else 1, step):
                rows: np.ndarray[Any, Any] = self.dataset[at : at + step] if self.shape else self.dataset[()]
                yield rows.astype(rows.dtype.newbyteorder("<"), copy=False).tobytes()
        except (Unreadable, MemoryError):
            raise
        except Exception as error:  # as above
            raise Unreadable(f"Its chunks are damaged, or pressed in a way not read here ({_words(error)}).") from error
