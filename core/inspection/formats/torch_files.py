"""Files of ``torch.save``: zip files since torch 1.6, and the older format of pickles followed by tensors."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, Final, cast

from core.inspection.files import File, Inline, StoredBytes, Zip
from core.inspection.formats.pickles import (
    PICKLE_LIMIT,
    GlobalName,
    Pairs,
    PersistentId,
    PickleStream,
    UnmadeCall,
    read_pickle,
)
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

MAGIC: Final = 0x1950A86A20F9469CFC6C
# Limits of a walk: nodes, and depth.
_STEP_LIMIT: Final = 500_000
_DEPTH_LIMIT: Final = 200
# The largest part of a storage that is reordered in memory.
_BUFFER_BYTES: Final = 64 * 2**20
_STORAGES: Final = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "ComplexDoubleStorage": "complex128",
    "ComplexFloatStorage": "complex64",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "QInt8Storage": "int8",
    "QUInt8Storage": "uint8",
    "QInt32Storage": "int32",
    "UntypedStorage": "",  # bytes; the tensor says of what
}
_BUILDERS: Final = ("torch._utils", "torch._tensor", "torch")
# Container attributes of pickled modules.
_WRAPPERS: Final = frozenset({"_modules", "_parameters", "_buffers"})
_OPTIMIZER_KEYS: Final = frozenset({"state", "param_groups"})


def open_torch(file: File) -> CheckpointContents:
    """Tensors and values of a file of ``torch.save``. Raises ``Unreadable``."""
    return read_tree(file)[1]


def read_tree(file: File) -> tuple[Any, CheckpointContents]:
    """The same, with the tree of symbols. Raises ``Unreadable``."""
    head = file.read(0, min(file.size, 8))
    if head[:4] == b"PK\x03\x04":
        return _open_zip(file)
    if head[:1] == b"\x80":
        return _open_legacy(file)
    raise Unreadable(f"{file.name} is no file of torch: it begins with neither a zip file nor a pickle.")


@dataclass(frozen=True, slots=True)
class Storage:
    """A storage of torch. ``data``: some of its bytes, by offset and length."""

    key: str
    dtype: str
    length: int | None  # bytes
    data: Callable[[int, int], ElementSource]
    file: str = ""
    is_big_endian: bool = False


def _open_zip(file: File) -> tuple[Any, CheckpointContents]:
    archive = Zip(file)
    pickle = next((name for name in archive.members if name.rpartition("/")[2] == "data.pkl"), None)
    if pickle is None:
        raise Unreadable(f"{file.name} is a zip file, but none of torch: it has no data.pkl.")
    root = pickle[: -len("data.pkl")]
    is_big = f"{root}byteorder" in archive.members and archive.read(f"{root}byteorder", 64).strip() == b"big"

    def storage(key: str, dtype: str, _count: int) -> Storage:
        name = f"{root}data/{key}"
        info = archive.members.get(name)
        return Storage(
            key,
            dtype,
            None if info is None else info.file_size,
            lambda offset, length: archive.data(name, offset, length),
            file.name,
            is_big,
        )

    if archive.members[pickle].file_size > PICKLE_LIMIT:
        raise Unreadable(f"{file.name}: its description is too large to be inspected.")
    with archive.open(pickle) as source:
        # A pickle is read byte by byte, which takes four times as long from a zip member as from a buffer.
        tree = read_pickle(io.BufferedReader(cast("io.RawIOBase", source), 2**16))
    return tree, Walk("torch", storage).run(tree)


def _open_legacy(file: File) -> tuple[Any, CheckpointContents]:
    stream = file.stream()
    if not _is_magic(stream):
        raise Unreadable(f"{file.name} is a pickle, but none of torch.save; other pickles are not inspected.")
    read_pickle(stream, limit=100)
    about = read_pickle(stream, limit=10_000)
    is_big = isinstance(about, Pairs) and about.get("little_endian") is False
    tree = read_pickle(stream)
    keys = read_pickle(stream, limit=PICKLE_LIMIT)
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise Unreadable(f"{file.name} is damaged: the list of its tensors is none.")
    begin = stream.tell()
    counts: dict[str, int] = {}
    kinds: dict[str, str] = {}

    def storage(key: str, dtype: str, count: int) -> Storage:
        counts[key], kinds[key] = count, dtype
        length = count * ITEM_BYTES.get(dtype or "uint8", 1)
        # Offsets are known once all storages are: each is preceded by its length.
        return Storage(key, dtype, length, lambda offset, size: _Later(places, key, offset, size), file.name, is_big)

    places: dict[str, File] = {}
    contents = Walk("torch", storage).run(tree)
    at = begin
    for key in keys:
        length = counts.get(key, 0) * ITEM_BYTES.get(kinds.get(key) or "uint8", 1)
        if at + 8 + length > file.size:
            contents.note(f"{file.name} is cut short: its last tensors are missing.")
            break
        if int.from_bytes(file.read(at, 8), "little", signed=False) != counts.get(key, 0):
            contents.note(f"{file.name} is damaged: a tensor is not where it should be.")
            break
        places[key] = file.part(at + 8, length)
        at += 8 + length
    return tree, contents


def _is_magic(stream: PickleStream) -> bool:
    try:
        return bool(read_pickle(stream, limit=100) == MAGIC)
    except Unreadable:
        return False


@dataclass(frozen=True, slots=True)
class _Later:
    places: dict[str, File]
    key: str
    offset: int
    length: int

    def chunks(self) -> Any:
        place = self.places.get(self.key)
        if place is None:
            raise Unreadable("The file is cut short or damaged before this tensor.")
        return StoredBytes(place, self.offset, self.length).chunks()


class Walk:
    """From a tree of symbols to named tensors."""

    def __init__(self, form: str, storage: Callable[[str, str, int], Storage]) -> None:
        self.contents = CheckpointContents(form)
        self._storage = storage
        self._storages: dict[str, Storage] = {}
        self._steps = 0
        self._on_way: set[int] = set()
        self._has_classes = False

    def run(self, tree: Any) -> CheckpointContents:
        self._walk(tree, (), is_optimizer=False)
        if self._has_classes:
            self.contents.note(
                "It holds objects of Python classes, whose tensors are shown by the names of their attributes; "
                "loading it needs weights_only=False, which runs code of the file."
            )
        return self.contents

    def _walk(self, node: Any, path: tuple[str, ...], *, is_optimizer: bool) -> None:
        self._steps += 1
        if self._steps > _STEP_LIMIT:
            raise Unreadable("It is nested in itself too often to be listed.")
        if isinstance(node, str | int | float | bool | None):
            if path:
                self.contents.tell(".".join(path), node)
            return
        if isinstance(node, bytes | GlobalName | PersistentId) or not isinstance(
            node, UnmadeCall | Pairs | list | tuple
        ):
            return
        if len(path) > _DEPTH_LIMIT or id(node) in self._on_way:
            return
        self._on_way.add(id(node))
        try:
            self._walk_into(node, path, is_optimizer=is_optimizer)
        finally:
            self._on_way.discard(id(node))

    def _walk_into(self, node: Any, path: tuple[str, ...], *, is_optimizer: bool) -> None:
        if isinstance(node, UnmadeCall):
            self._walk_made(node, path, is_optimizer=is_optimizer)
        elif isinstance(node, Pairs):
            is_optimizer = is_optimizer or {key for key, _ in node.items if isinstance(key, str)} >= _OPTIMIZER_KEYS
            for key, value in node.items:
                if isinstance(key, str | int | float | bool):
                    below = path if key in _WRAPPERS else (*path, clip(str(key), NAME_LIMIT))
                    self._walk(value, below, is_optimizer=is_optimizer)
        else:
            # Lists of numbers (the parameters of a group) would hide the rest.
            if len(node) > 8 and all(isinstance(item, int | float) for item in node):
                return
            for number, item in enumerate(node):
                self._walk(item, (*path, str(number)), is_optimizer=is_optimizer)

    def _walk_made(self, node: UnmadeCall, path: tuple[str, ...], *, is_optimizer: bool) -> None:
        tensor = self._tensor(node, ".".join(path) or "tensor", is_optimizer=is_optimizer)
        if tensor is not None:
            self.contents.add(tensor)
            return
        parts = [part for part in (node.state, node.pairs, node.items) if part is not None]
        if node.kind not in _PLAIN:
            if node.state is not None or node.pairs.items or node.items:
                self._has_classes = True
            if isinstance(node.arguments, tuple):
                parts += [part for part in node.arguments if isinstance(part, UnmadeCall | Pairs | list | tuple)]
        for part in parts:
            self._walk(part, path, is_optimizer=is_optimizer)

    def _tensor(self, node: UnmadeCall, name: str, *, is_optimizer: bool) -> Tensor | None:
        kind = node.what.name if isinstance(node.what, GlobalName) and node.what.module in _BUILDERS else ""
        arguments: tuple[Any, ...] = node.arguments if isinstance(node.arguments, tuple) else ()
        try:
            match kind:
                case "_rebuild_tensor" | "_rebuild_tensor_v2" | "_rebuild_qtensor":
                    return self._strided(arguments, name, None, is_optimizer=is_optimizer)
                case "_rebuild_tensor_v3":
                    return self._strided(arguments, name, _dtype_named(arguments[6]), is_optimizer=is_optimizer)
                case "_rebuild_parameter" | "_rebuild_parameter_with_state":
                    inner = arguments[0]
                    return (
                        self._tensor(inner, name, is_optimizer=is_optimizer) if isinstance(inner, UnmadeCall) else None
                    )
                case "_rebuild_from_type_v2":
                    inner = UnmadeCall(arguments[0], arguments[2])
                    return self._tensor(inner, name, is_optimizer=is_optimizer)
                case "_rebuild_meta_tensor_no_storage":
                    return Tensor(
                        name,
                        _shape(arguments[1]),
                        _dtype_named(arguments[0]),
                        note="It was saved from the device meta: a shape without elements.",
                        is_optimizer=is_optimizer,
                    )
                case "_rebuild_sparse_tensor":
                    self.contents.note(
                        "It holds sparse tensors; their indices and values are shown as tensors of their own."
                    )
                    return None
                case _:
                    return None
        except (IndexError, TypeError, ValueError) as error:
            raise Unreadable("A tensor's description in its pickle makes no sense.") from error

    def _strided(self, arguments: tuple[Any, ...], name: str, dtype: str | None, *, is_optimizer: bool) -> Tensor:
        storage = self._storage_of(arguments[0])
        offset, shape, strides = arguments[1], _shape(arguments[2]), _shape(arguments[3])
        dtype = dtype or storage.dtype or "uint8"
        item = ITEM_BYTES.get(dtype)
        about: dict[str, Any] = {
            "name": name,
            "shape": shape,
            "dtype": dtype,
            "file": storage.file,
            "is_optimizer": is_optimizer,
            "is_big_endian": storage.is_big_endian,
        }
        if not isinstance(offset, int) or offset < 0 or len(strides) != len(shape):
            raise ValueError("offset or strides")
        if item is None:
            return Tensor(**about, note=f"Elements of {dtype} are not decoded here.")
        if storage.length is None:
            return Tensor(**about, note=f"Its storage {clip(storage.key, 100)} is missing from the file.")
        extent, is_dense, repeats = _spread(shape, strides)
        if (offset + extent) * item > storage.length:
            return Tensor(**about, note="Its storage in the file is shorter than its shape; the file is damaged.")
        if extent == 0:
            return Tensor(**about, data=Inline(b""))
        if is_dense:
            return Tensor(**about, data=storage.data(offset * item, extent * item))
        if extent == prod(shape) and extent * item > _BUFFER_BYTES:  # a transposed storage
            return Tensor(**about, data=storage.data(offset * item, extent * item), is_ordered=False)
        return Tensor(
            **about,
            data=_Strided(storage.data(offset * item, extent * item), extent, shape, strides, item),
            repeats=repeats,
        )

    def _storage_of(self, reference: Any) -> Storage:
        key = reference.key if isinstance(reference, PersistentId) else None
        # ("storage", class, key, device, elements[, view])
        if not isinstance(key, tuple) or len(key) < 5 or key[0] != "storage" or not isinstance(key[1], GlobalName):
            raise ValueError("no storage")
        dtype = _STORAGES.get(key[1].name, key[1].name)
        name, count = str(key[2]), key[4]
        if not isinstance(count, int) or count < 0:
            raise ValueError("a storage's length")
        if name not in self._storages:
            self._storages[name] = self._storage(name, dtype, count)
        return self._storages[name]


_PLAIN: Final = frozenset({"collections.OrderedDict", "builtins.set", "builtins.frozenset", "collections.defaultdict"})


def _shape(value: Any) -> tuple[int, ...]:
    if isinstance(value, UnmadeCall):  # torch.Size
        value = value.arguments[0]
    if not isinstance(value, tuple | list) or len(value) > 64:
        raise ValueError("no shape")
    if not all(isinstance(size, int) and not isinstance(size, bool) and 0 <= size < 2**48 for size in value):
        raise ValueError("no shape")
    return tuple(value)


def _dtype_named(value: Any) -> str:
    return value.name if isinstance(value, GlobalName) else "unknown"


def _spread(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, bool, int]:
    """The number of elements from the first to the last one, whether they are contiguous and in order, and how often
    each of them counts.
    """
    if not all(shape):
        return 0, True, 1
    repeats = 1
    extent = 1
    for size, stride in zip(shape, strides, strict=True):
        extent += (size - 1) * stride
        if stride == 0:
            repeats *= size
    expected = 1
    is_dense = True
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            is_dense = False
        expected *= size
    return extent, is_dense, repeats


@dataclass(frozen=True, slots=True)
class _Strided:
    """``source`` holds ``extent`` elements; those of the tensor are given in row-major order. Elements repeated along a
    dimension of stride 0 are given once.
    """

    source: ElementSource
    extent: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item_bytes: int

    def chunks(self) -> Iterator[bytes]:
        import numpy as np
        from numpy.lib.stride_tricks import as_strided

        if self.extent * self.item_bytes > _BUFFER_BYTES:
            raise Unreadable("It is a view whose elements lie apart in the file, too large to be put in order here.")
        elements = np.frombuffer(b"".join(self.source.chunks()), dtype=np.dtype(f"V{self.item_bytes}"))
        if prod(size for size, stride in zip(self.shape, self.strides, strict=True) if stride) > self.extent:
            raise Unreadable("It is a view that shows the same elements in several places.")
        axes = [(size, stride) for size, stride in zip(self.shape, self.strides, strict=True) if stride or size == 1]
        shape = tuple(size for size, _ in axes)
        view = as_strided(elements, shape, tuple(stride * self.item_bytes for _, stride in axes), writeable=False)
        flat = view.reshape(-1).tobytes()
        for at in range(0, len(flat), CHUNK_BYTES):
            yield flat[at : at + CHUNK_BYTES]
