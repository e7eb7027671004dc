"""Checkpoints of parameter servers (``trainmaster_train.ps``): reassembles tensors from slices of slabs and tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, Final, NamedTuple

from core.inspection.files import Folder, StoredBytes
from core.inspection.formats.pickles import Pairs
from core.inspection.formats.torch_files import read_tree
from core.inspection.model import ITEM_BYTES, NAME_LIMIT, CheckpointContents, ElementSource, Tensor, Unreadable, clip
from core.inspection.sharded import Concatenated, Interleaved

SHARD: Final = re.compile(r"^shard-(\d{5})-of-(\d{5})\.pt$")


class _Member(NamedTuple):
    """A tensor of the model, as in the shards' signature. ``begin``: index of its first element in its slab."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    slab: int  # -1: a table
    begin: int


def open_shards(folder: Folder, names: list[str]) -> CheckpointContents:
    """The tensors under the model's names, each with its optimizer state. ``names``: the shards' files in order.

    Raises:
        Unreadable: a shard is missing or malformed.
    """
    count = int(names[0].rpartition("-")[2].removesuffix(".pt"))
    if len(names) != count:
        raise Unreadable(f"{len(names)} of {count} shards are there; the checkpoint is incomplete.")
    opened = [read_tree(folder.file(name)) for name in names]
    shards = [{tensor.name: tensor for tensor in contents.tensors} for _, contents in opened]
    tree = opened[0][0]
    members, sizes = _members(tree)
    contents = CheckpointContents("shards")
    contents.tell("version", opened[0][1].values.get("version"))
    contents.tell("shards", count)
    contents.tell("optimizer", opened[0][1].values.get("signature.optimizer"))
    for member in members:
        prefix = f"tables.{member.name}" if member.slab < 0 else f"slabs.{member.slab}"
        for path in [f"{prefix}.0", *(name for name in shards[0] if name.startswith(f"{prefix}.1."))]:
            state = path.removeprefix(f"{prefix}.1.") if path != f"{prefix}.0" else ""
            name = f"optimizer.{member.name}.{state}" if state else member.name
            contents.add(_tensor(member, clip(name, NAME_LIMIT), path, shards, sizes, is_optimizer=bool(state)))
    return contents


def _members(tree: Any) -> tuple[list[_Member], list[int]]:
    """The model's tensors, and the length of each slab, in the order of ``trainmaster_train.ps.layout``."""
    signature = tree.get("signature") if isinstance(tree, Pairs) else None
    tensors = signature.get("tensors") if isinstance(signature, Pairs) else None
    slabs: dict[tuple[int, str], int] = {}
    sizes: list[int] = []
    members: list[_Member] = []
    try:
        for name, shape, dtype, group, is_table in tensors or ():
            lengths = tuple(int(length) for length in shape)
            kind = str(dtype).removeprefix("torch.")
            if is_table:
                members.append(_Member(str(name), lengths, kind, -1, 0))
                continue
            if not prod(lengths):
                continue
            number = slabs.setdefault((group, dtype), len(slabs))
            if number == len(sizes):
                sizes.append(0)
            members.append(_Member(str(name), lengths, kind, number, sizes[number]))
            sizes[number] += prod(lengths)
    except (TypeError, ValueError) as error:
        raise Unreadable("The shards do not tell what they are parts of.") from error
    if not members:
        raise Unreadable("The shards do not tell what they are parts of.")
    return members, sizes


def _tensor(
    member: _Member,
    name: str,
    path: str,
    shards: list[dict[str, Tensor]],
    sizes: list[int],
    *,
    is_optimizer: bool,
) -> Tensor:
    parts = [shard.get(path) for shard in shards]
    about: dict[str, Any] = {
        "shape": member.shape,
        "dtype": member.dtype,
        "is_optimizer": is_optimizer,
        "file": "all shards",
    }
    first = parts[0]
    if first is not None and not first.shape:  # a scalar shared by all, such as the step
        return Tensor(name, (), first.dtype, first.file, first.data, first.note, is_optimizer)
    pieces = [part.data for part in parts if part is not None and part.data is not None]
    item = ITEM_BYTES.get(member.dtype)
    if item is None or len(pieces) != len(shards) or any(p is None or p.dtype != member.dtype for p in parts):
        return Tensor(name, **about, note="A part of it is missing, or not what the shards say of it.")
    if member.slab < 0:
        rows = member.shape[0] if member.shape else 0
        return Tensor(name, **about, data=Interleaved(pieces, rows, prod(member.shape[1:]) * item))
    return Tensor(name, **about, data=Concatenated(list(_slices(member, pieces, sizes[member.slab], item))))


def _slices(member: _Member, pieces: list[ElementSource], size: int, item: int) -> Iterator[ElementSource]:
    begin, end, count = member.begin, member.begin + prod(member.shape), len(pieces)
    for number, piece in enumerate(pieces):
        first, last = size * number // count, size * (number + 1) // count
        low, high = max(begin, first), min(end, last)
        if low < high:
            skip, length = (low - first) * item, (high - low) * item
            if isinstance(piece, StoredBytes) and skip + length <= piece.length:
                yield StoredBytes(piece.file, piece.offset + skip, length)
            else:
                yield _Part(piece, skip, length)


@dataclass(frozen=True, slots=True)
class _Part:
    """``length`` bytes of other data, after its first ``skip``."""

    data: ElementSource
    skip: int
    length: int

    def chunks(self) -> Iterator[bytes | memoryview]:
        skip, left = self.skip, self.length
        for chunk in self.data.chunks():
            part = memoryview(chunk)[min(skip, len(chunk)) :][:left]
            skip -= min(skip, len(chunk))
            left -= len(part)
            if part:
                yield part
            if not left:
                return
        raise Unreadable("A shard is shorter than it should be.")
