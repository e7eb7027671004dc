"""Folders of ``torch.distributed.checkpoint``: ``.metadata`` is a pickle that maps pieces to files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from core.inspection.files import File, Folder
from core.inspection.formats.pickles import GlobalName, Pairs, PersistentId, UnmadeCall, read_pickle
from core.inspection.formats.safetensors import open_safetensors
from core.inspection.formats.torch_files import open_torch
from core.inspection.layers import is_optimizer_name
from core.inspection.model import ITEM_BYTES, NAME_LIMIT, CheckpointContents, Tensor, Unreadable, clip
from core.inspection.sharded import Block, joined

METADATA: Final = ".metadata"


@dataclass(frozen=True, slots=True)
class _Place:
    file: str
    offset: int
    length: int


def open_dcp(folder: Folder, under: str = "") -> CheckpointContents:
    """Raises ``Unreadable``."""
    prefix = f"{under}/" if under else ""
    with folder.file(prefix + METADATA).stream() as source:
        tree = read_pickle(source)
    about = _fields(tree)
    tensors, storage = about.get("state_dict_metadata"), about.get("storage_data")
    if not isinstance(tensors, Pairs) or not isinstance(storage, Pairs):
        raise Unreadable(f"{prefix}{METADATA} is no description of torch.distributed.checkpoint.")
    places = dict(_places(storage, prefix))
    contents = CheckpointContents("dcp")
    for name, entry in tensors.items:
        if isinstance(name, str):
            _add(contents, folder, clip(name, NAME_LIMIT), _fields(entry), places)
    return contents


def _add(
    contents: CheckpointContents,
    folder: Folder,
    name: str,
    entry: Mapping[str, Any],
    places: Mapping[tuple[str, tuple[int, ...]], _Place],
) -> None:
    if "chunks" not in entry:  # a single pickled value
        place = places.get((name, ())) or next((place for key, place in places.items() if key[0] == name), None)
        contents.tell(name, None if place is None else f"an object, pickled in {place.length:,} bytes")
        return
    try:
        shape = _sizes(entry["size"])
        dtype = _dtype(entry["properties"])
        chunks = [(_sizes(chunk["offsets"]), _sizes(chunk["sizes"])) for chunk in map(_fields, entry["chunks"])]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise Unreadable(f"{METADATA} describes {clip(name, 100)} wrongly.") from error
    item = ITEM_BYTES.get(dtype)
    is_optimizer = is_optimizer_name(name)
    files = sorted({place.file for key, place in places.items() if key[0] == name}) if len(places) < 2_000 else []
    about: dict[str, Any] = {"shape": shape, "dtype": dtype, "is_optimizer": is_optimizer, "file": ", ".join(files[:3])}
    if item is None:
        contents.add(Tensor(name, **about, note=f"Elements of {dtype} are not decoded here."))
        return
    blocks = []
    for offsets, sizes in chunks:
        place = places.get((name, offsets)) or (places.get((name, ())) if len(chunks) == 1 else None)
        if place is None:
            contents.add(
                Tensor(name, **about, note="A piece of it is in none of the files; the checkpoint is not whole.")
            )
            return
        blocks.append(Block(offsets, sizes, _Piece(folder, place, sizes, dtype)))
    try:
        data, is_ordered = joined(shape, blocks, item)
    except Unreadable as error:
        contents.add(Tensor(name, **about, note=error.sentence))
        return
    contents.add(Tensor(name, **about, data=data, is_ordered=is_ordered))


@dataclass(frozen=True, slots=True)
class _Piece:
    """A piece is a file of torch or of safetensors, embedded in a larger one. Opened lazily."""

    folder: Folder
    place: _Place
    sizes: tuple[int, ...]
    dtype: str

    def chunks(self) -> Iterator[bytes | memoryview]:
        whole = self.folder.file(self.place.file)
        part: File = whole.part(self.place.offset, self.place.length)
        is_zip = part.size >= 4 and part.read(0, 4) == b"PK\x03\x04"
        found = (open_torch(part) if is_zip else open_safetensors(part)).tensors
        tensor = found[0] if found else None
        if tensor is None or tensor.data is None or tensor.shape != self.sizes or tensor.dtype != self.dtype:
            raise Unreadable(f"{self.place.file}: the piece at {self.place.offset:,} is not what {METADATA} says.")
        yield from tensor.data.chunks()


def _fields(node: Any) -> dict[str, Any]:
    """The attributes of a plain data class's object."""
    if isinstance(node, Pairs):
        return {key: value for key, value in node.items if isinstance(key, str)}
    if not isinstance(node, UnmadeCall):
        return {}
    state = node.state
    if isinstance(state, tuple):  # with slots: (None, {…})
        state = next((part for part in state if isinstance(part, Pairs)), None)
    if isinstance(state, Pairs):
        return {key: value for key, value in state.items if isinstance(key, str)}
    return {}


def _places(storage: Pairs, prefix: str) -> Iterator[tuple[tuple[str, tuple[int, ...]], _Place]]:
    for index, info in storage.items:
        key, value = _fields(index), _fields(info)
        offset = key.get("offset")
        try:
            place = _Place(prefix + str(value["relative_path"]), int(value["offset"]), int(value["length"]))
            yield (str(key["fqn"]), () if offset is None else _sizes(offset)), place
        except (LookupError, TypeError, ValueError) as error:
            raise Unreadable(f"{METADATA} says wrongly where a piece lies.") from error


def _sizes(node: Any) -> tuple[int, ...]:
    if isinstance(node, UnmadeCall):  # torch.Size
        node = node.arguments[0]
    if not all(isinstance(size, int) and 0 <= size < 2**48 for size in node) or len(node) > 64:
        raise ValueError("no shape")
    return tuple(node)


def _dtype(properties: Any) -> str:
    # TensorProperties gives its state as a tuple, whose first item is the dtype.
    if isinstance(properties, UnmadeCall) and isinstance(properties.state, tuple) and properties.state:
        kind = properties.state[0]
    else:
        kind = _fields(properties).get("dtype")
    if isinstance(kind, PersistentId):
        kind = kind.key
    return kind.name if isinstance(kind, GlobalName) else "unknown"
