"""Sharding: which values lie on which ps, as a pure function of the model, the optimizer's groups and the number of ps.

Dense parameters of one optimizer group and dtype are concatenated in a *slab*; ps ``k`` of ``n`` holds the ``k``-th of
``n`` equal slices of each slab. So shards are balanced to within one element per slab for any layers, large tensors are
split, and a checkpoint of ``n`` shards can be read by any other number of ps. A slice is handled in *blocks* of at most
``BLOCK_BYTES``, the unit of sending, so that sending, receiving and computing overlap.

Weights of embeddings with ``sparse=True`` are *tables*: row ``r`` lies on ps ``r % n``, so that the frequent (low) rows
of sorted vocabularies are spread, too. Only the rows that a batch uses are pulled and pushed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from trainmaster_train.ps.errors import ParameterServerError

# Small enough that a message of this size is served from the allocator's free memory instead of fresh pages (which
# cost more than sending it), large enough that Python's cost per block is negligible.
BLOCK_BYTES = 1 << 20
# Size of a message: large enough that its fixed cost is negligible, small enough to overlap.
PIECE_BYTES = 4 << 20


@dataclass(frozen=True)
class SlabMember:
    """A dense parameter and its position in its slab."""

    name: str
    begin: int
    end: int


@dataclass(frozen=True)
class Slab:
    """All dense parameters of one optimizer group and dtype."""

    group: int
    dtype: torch.dtype
    members: Tuple[SlabMember, ...]

    @property
    def size(self) -> int:
        return self.members[-1].end


@dataclass(frozen=True)
class SlabBlock:
    """A part of a slab that lies on one ps."""

    slab: int
    begin: int
    end: int


@dataclass(frozen=True)
class EmbeddingTable:
    """An embedding's weight."""

    name: str
    group: int
    dtype: torch.dtype
    rows: int
    columns: int

    def rows_of(self, ps: int, count: int) -> int:
        """How many rows lie on ``ps`` of ``count``."""
        return len(range(ps, self.rows, count))


@dataclass(frozen=True)
class ShardLayout:
    """``signature``: JSON with every tensor and the optimizer's settings, by which two processes compare their
    models.
    """

    slabs: Tuple[Slab, ...]
    tables: Tuple[EmbeddingTable, ...]
    signature: Mapping[str, Any]

    def blocks(self, ps: int, count: int) -> List[SlabBlock]:
        """The blocks on ``ps`` of ``count``, in the order in which they are sent."""
        blocks: List[SlabBlock] = []
        for number, slab in enumerate(self.slabs):
            begin, end = slice_of(slab.size, ps, count)
            size = max(1, BLOCK_BYTES // slab.dtype.itemsize)
            blocks += [SlabBlock(number, at, min(at + size, end)) for at in range(begin, end, size)]
        return blocks

    def bytes_of(self, ps: int, count: int) -> int:
        """Bytes of the values that ``ps`` of ``count`` holds, without the optimizer's state."""
        dense = sum(
            (block.end - block.begin) * self.slabs[block.slab].dtype.itemsize for block in self.blocks(ps, count)
        )
        return dense + sum(t.rows_of(ps, count) * t.columns * t.dtype.itemsize for t in self.tables)

    def largest_frame(self, ps: int, count: int) -> int:
        """Bytes of the largest frame of values, or of row indices, that is sent to ``ps`` of ``count``."""
        tables = [t.rows_of(ps, count) * max(torch.int64.itemsize, t.columns * t.dtype.itemsize) for t in self.tables]
        return max([BLOCK_BYTES, *tables])


def pieces(blocks: Sequence[SlabBlock], slabs: Sequence[Slab]) -> List[range]:
    """Indices of ``blocks`` in groups that are handled and sent together: of some MiB each, and at most about a hundred
    groups, so that the message queues stay short on a large ps, too.
    """
    sizes = [(block.end - block.begin) * slabs[block.slab].dtype.itemsize for block in blocks]
    piece_bytes = max(PIECE_BYTES, sum(sizes) // 100)
    pieces: List[range] = []
    begin = size = 0
    for number, own in enumerate(sizes, 1):
        size += own
        if size >= piece_bytes or number == len(sizes):
            pieces.append(range(begin, number))
            begin, size = number, 0
    return pieces


def slice_of(size: int, ps: int, count: int) -> Tuple[int, int]:
    """Begin and end of the slice of ``ps`` of ``count`` in ``size`` elements."""
    return size * ps // count, size * (ps + 1) // count


def layout_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> ShardLayout:
    """The layout of the trainable parameters of ``model`` that ``optimizer`` updates. Reads only shapes, so a model on
    the device ``meta`` is enough.

    Raises:
        ParameterServerError: model and optimizer do not match, or no parameter is trainable.
    """
    names: Dict[torch.Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    groups: Dict[torch.Tensor, int] = {}
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if parameter not in names:
                raise ParameterServerError(
                    "optimizer: has a parameter that is not the model's; create it with model.parameters()"
                )
            groups[parameter] = number
    missing = [name for parameter, name in names.items() if parameter.requires_grad and parameter not in groups]
    if missing:
        raise ParameterServerError(
            f"optimizer: lacks the model's parameter {missing[0]}; give it all, or freeze that parameter"
        )
    tables = _tables(model, names, groups)
    are_tables = {table.name for table in tables}
    slabs: Dict[Tuple[int, torch.dtype], List[SlabMember]] = {}
    tensors = []
    for parameter, name in names.items():
        if not parameter.requires_grad:
            continue
        if not parameter.dtype.is_floating_point:
            raise ParameterServerError(
                f"{name}: a parameter of {parameter.dtype} cannot be trained here; use a floating dtype"
            )
        tensors.append([name, list(parameter.shape), str(parameter.dtype), groups[parameter], name in are_tables])
        if name not in are_tables and parameter.numel():
            members = slabs.setdefault((groups[parameter], parameter.dtype), [])
            begin = members[-1].end if members else 0
            members.append(SlabMember(name, begin, begin + parameter.numel()))
    if not tensors:
        raise ParameterServerError("model: has no parameter that requires a gradient")
    return ShardLayout(
        slabs=tuple(Slab(group, dtype, tuple(members)) for (group, dtype), members in slabs.items()),
        tables=tuple(tables),
        signature={"tensors": tensors, "optimizer": type(optimizer).__name__, "groups": _settings(optimizer)},
    )


def difference(layout: Mapping[str, Any], other_layout: Mapping[str, Any], *, settings: bool = True) -> Optional[str]:
    """The first difference of two signatures in words ("`fc.weight` is 10×64 here and 10×32 there"), or ``None``.

    Args:
        settings: also compare the optimizer's settings.
    """
    there = {tensor[0]: tensor for tensor in other_layout.get("tensors", [])}
    for tensor in layout["tensors"]:
        other = there.pop(tensor[0], None)
        if other is None:
            return f"`{tensor[0]}` is not there"
        for label, at in (("", 1), ("of dtype ", 2), ("in optimizer group ", 3), ("sparse: ", 4)):
            if tensor[at] != other[at]:
                return f"`{tensor[0]}` is {label}{_phrase(tensor[at])} here and {label}{_phrase(other[at])} there"
    if there:
        return f"`{next(iter(there))}` is not here"
    if layout["optimizer"] != other_layout.get("optimizer"):
        return f"the optimizer is {layout['optimizer']} here and {other_layout.get('optimizer')} there"
    if settings:
        for number, (own, other) in enumerate(zip(layout["groups"], other_layout.get("groups", []))):
            for name in sorted({*own, *other}):
                if own.get(name) != other.get(name):
                    return (
                        f"the optimizer's {name} (group {number}) is {own.get(name)} here and {other.get(name)} there"
                    )
    return None


def learning_rates(optimizer: torch.optim.Optimizer) -> List[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


def _phrase(value: Any) -> str:
    return "×".join(map(str, value)) or "a single number" if isinstance(value, list) else str(value)


def _tables(
    model: torch.nn.Module, names: Mapping[torch.Tensor, str], groups: Mapping[torch.Tensor, int]
) -> List[EmbeddingTable]:
    tables: Dict[torch.Tensor, EmbeddingTable] = {}
    for module in model.modules():
        if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and module.sparse:
            weight = module.weight
            if weight.requires_grad and weight not in tables:
                if isinstance(module, torch.nn.Embedding) and module.max_norm is not None:
                    raise ParameterServerError(
                        f"{names[weight]}: max_norm changes rows in the forward pass; leave it out"
                    )
                tables[weight] = EmbeddingTable(names[weight], groups[weight], weight.dtype, *weight.shape)
    return list(tables.values())


def _settings(optimizer: torch.optim.Optimizer) -> List[Dict[str, Any]]:
    """Settings that change the result and must be equal on all, as JSON. Not the learning rate: the chief's is used."""
    plain = (bool, int, float, str, type(None))
    return [
        {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in group.items()
            if name not in ("params", "lr", "initial_lr", "foreach", "fused", "capturable", "differentiable")
            and (isinstance(value, plain) or (isinstance(value, tuple) and all(isinstance(v, plain) for v in value)))
        }
        for group in optimizer.param_groups
    ]
