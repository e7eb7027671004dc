"""Blocks on the worker's side: the model's parameters as views of flat values, in which values from a ps are installed,
and gradients gathered into frames.

Values: each trainable parameter becomes a view into its slab, so that an arriving block needs one copy. Gradients: they
are copied into flat memory block by block, checked while they are in the cache, and sent as soon as a block is
complete, after the backward pass or (with overlap) during it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from trainmaster_train.ps.errors import NonFiniteGradientError, ParameterServerError
from trainmaster_train.ps.layout import PIECE_BYTES, ShardLayout, SlabBlock
from trainmaster_train.ps.wire.codec import Codec, read
from trainmaster_train.ps.wire.shared_memory import SharedMemory

# ps, blocks' numbers there, frames, exponents
Send = Callable[[int, List[int], List[Any], List[int]], None]


class FlatParameters:
    """All dense values of the model, one flat tensor for each slab, on the model's device."""

    def __init__(
        self, model: torch.nn.Module, layout: ShardLayout, flats: Optional[Sequence[torch.Tensor]] = None
    ) -> None:
        """``flats``: memory to use, one tensor for each slab, if the model is on the CPU."""
        self.layout = layout
        self.parameters = dict(model.named_parameters())
        trained = {name: self.parameters[name] for name, *_ in layout.signature["tensors"]}
        devices = {parameter.device for parameter in trained.values()}
        if len(devices) > 1:
            raise ParameterServerError(f"the model is on {', '.join(map(str, devices))}: use one for each worker")
        self.device = devices.pop()
        self.flat: List[torch.Tensor] = []
        self._places: List[Tuple[str, int]] = []
        for number, slab in enumerate(layout.slabs):
            if flats is not None and self.device.type == "cpu":
                flat = flats[number]
            else:
                flat = torch.empty(slab.size, dtype=slab.dtype, device=self.device)
            for member in slab.members:
                parameter = self.parameters[member.name]
                view = flat[member.begin : member.end].view(parameter.shape)
                view.copy_(parameter.detach())
                parameter.data = view
                self._places.append((member.name, view.data_ptr()))
            self.flat.append(flat)

    def check(self) -> None:
        """Raise ``ParameterServerError`` if the model's parameters were moved to other memory."""
        for name, place in self._places:
            if self.parameters[name].data_ptr() != place:
                raise ParameterServerError(
                    f"`{name}` was moved (by .to(), .half() or .data =): do that before joining the parameter servers"
                )

    def set(self, block: SlabBlock, values: torch.Tensor) -> None:
        self.flat[block.slab][block.begin : block.end].copy_(values)

    def add(self, block: SlabBlock, values: torch.Tensor) -> None:
        self.flat[block.slab][block.begin : block.end].add_(values.to(self.device))

    def of(self, block: SlabBlock) -> torch.Tensor:
        return self.flat[block.slab][block.begin : block.end].cpu()


class FlatGradients:
    """Gathers the gradients of one push after the other: ``begin``, ``take`` each parameter once, ``finish``."""

    def __init__(
        self,
        values: FlatParameters,
        codec: Codec,
        blocks: Sequence[Sequence[SlabBlock]],
        *,
        slots: int,
        flats: Optional[Sequence[Sequence[torch.Tensor]]] = None,
    ) -> None:
        """Memory for the gradients.

        Args:
            blocks: for each ps its blocks.
            slots: number of pushes that may be in flight at once, including the one in preparation.
            flats: memory to use, for each slot and slab; allocated by default.
        """
        self._values = values
        self._codec = codec
        self._blocks = blocks
        slabs = values.layout.slabs
        self._flats = flats or [[torch.empty(slab.size, dtype=slab.dtype) for slab in slabs] for _ in range(slots)]
        self._residuals = (
            [torch.zeros(slab.size, dtype=slab.dtype) for slab in slabs] if codec.uses_error_feedback else None
        )
        self.slot = 0  # of the push in preparation
        self._at: Dict[str, Tuple[int, int, int]] = {
            member.name: (number, member.begin, member.end)
            for number, slab in enumerate(slabs)
            for member in slab.members
        }
        # Blocks of each slab over all ps, ordered by position: (block, ps, index on that ps).
        self._order: List[List[Tuple[SlabBlock, int, int]]] = [[] for _ in slabs]
        for ps, own in enumerate(blocks):
            for number, block in enumerate(own):
                self._order[block.slab].append((block, ps, number))
        for order in self._order:
            order.sort(key=lambda entry: entry[0].begin)
        self._missing: List[List[int]] = []
        self._taken: Dict[str, int] = {}
        self._pending: Dict[int, Tuple[List[int], List[Any], List[int], int]] = {}

    @property
    def is_started(self) -> bool:
        return bool(self._taken)

    def begin(self) -> None:
        """Begin a push; an unfinished one is dropped."""
        self._missing = [[block.end - block.begin for block, _, _ in order] for order in self._order]
        self._taken = {}
        self._pending = {ps: ([], [], [], 0) for ps in range(len(self._blocks))}

    def take(self, name: str, gradient: torch.Tensor, send: Send) -> None:
        """Copy the gradient of a parameter, and send the blocks that it completes.

        Raises:
            NonFiniteGradientError: its message has the tensor's name only.
        """
        slab, begin, end = self._at[name]
        flat = self._flats[self.slot][slab]
        source = gradient.detach().reshape(-1)
        is_local_address = source.device.type == "cpu"
        if not is_local_address:  # one transfer over the bus, not one for each block
            flat[begin:end].copy_(source)
        self._taken[name] = gradient._version  # noqa: SLF001 (torch's documented counter of in-place changes)
        for at in self._touching(slab, begin, end):
            block, ps, number = self._order[slab][at]
            first, last = max(begin, block.begin), min(end, block.end)
            if is_local_address:  # the block is checked while it is in the cache
                flat[first:last].copy_(source[first - begin : last - begin])
            self._missing[slab][at] -= last - first
            if self._missing[slab][at] == 0:
                self._emit(block, ps, number, send)

    def finish(self, send: Send) -> None:
        """Use zeros for missing gradients, check those that were sent early, and send the rest."""
        for name, version in self._taken.items():
            gradient = self._values.parameters[name].grad
            if gradient is None or gradient._version != version:  # noqa: SLF001 (as above)
                raise ParameterServerError(
                    f"the gradient of `{name}` changed after it was sent (clipped? a second backward pass?): "
                    "with overlap=True nothing may touch gradients between backward() and step()"
                )
        for name in self._at:
            if name not in self._taken:
                parameter = self._values.parameters[name]
                self.take(name, parameter.grad if parameter.grad is not None else torch.zeros_like(parameter), send)
        for ps in range(len(self._blocks)):
            self._flush(ps, send)
        self.slot = (self.slot + 1) % len(self._flats)
        self._taken = {}

    def has_taken(self, name: str) -> bool:
        return name in self._taken

    def _touching(self, slab: int, begin: int, end: int) -> range:
        """Indices in the order of blocks of those that overlap with ``begin`` to ``end``."""
        order = self._order[slab]
        low, high = 0, len(order)
        while low < high:
            middle = (low + high) // 2
            if order[middle][0].end <= begin:
                low = middle + 1
            else:
                high = middle
        last = low
        while last < len(order) and order[last][0].begin < end:
            last += 1
        return range(low, last)

    def _emit(self, block: SlabBlock, ps: int, number: int, send: Send) -> None:
        gradient = self._flats[self.slot][block.slab][block.begin : block.end]
        # One pass over cached data: NaN and infinity both propagate to the sum, and a sum costs half as much as minimum
        # and maximum. The sum of large numbers may overflow: then each value is checked.
        if not math.isfinite(gradient.sum().item()) and not torch.isfinite(gradient).all():
            raise NonFiniteGradientError(self._name_non_finite(block))
        residual = self._residuals[block.slab][block.begin : block.end] if self._residuals is not None else None
        frames, exponent = self._codec.encode(gradient, residual if gradient.dtype is torch.float32 else None)
        numbers, waiting, exponents, size = self._pending[ps]
        numbers.append(number)
        waiting.extend(frames)
        exponents.append(exponent)
        size += sum(frame.nbytes for frame in frames)
        self._pending[ps] = (numbers, waiting, exponents, size)
        if size >= PIECE_BYTES:
            self._flush(ps, send)

    def _flush(self, ps: int, send: Send) -> None:
        numbers, frames, exponents, _ = self._pending[ps]
        if numbers:
            self._pending[ps] = ([], [], [], 0)
            send(ps, numbers, frames, exponents)

    def _name_non_finite(self, block: SlabBlock) -> str:
        """Names of tensors with NaN or infinity in ``block``."""
        flat = self._flats[self.slot][block.slab]
        names = [
            f"`{member.name}`"
            for member in self._values.layout.slabs[block.slab].members
            if member.begin < block.end
            and block.begin < member.end
            and not torch.isfinite(flat[max(member.begin, block.begin) : min(member.end, block.end)]).all()
        ]
        return ", ".join(names)


@dataclass(frozen=True)
class WorkerModelView:
    """A worker's view of the model.

    ``memory``: holds gradients and values if it can be shared with a ps on this machine.
    """

    values: FlatParameters
    codec: Codec
    memory: Optional[SharedMemory]

    def install(self, ps: str, blocks: Sequence[SlabBlock], header: Mapping[str, Any], frames: Sequence[Any]) -> None:
        """Install the values of an answer, or of a piece of one, in the model. ``blocks``: all blocks of ``ps``."""
        if "shared" in header:
            self._copy_shared(ps, blocks, header["shared"])
        elif header.get("is_delta"):
            self._add(blocks, header["exponents"], frames)
        else:
            for block, frame in zip(blocks[header["first"] :], frames):
                dtype = self.values.layout.slabs[block.slab].dtype
                self.values.set(block, read(frame, dtype, block.end - block.begin))

    def _copy_shared(self, ps: str, blocks: Sequence[SlabBlock], slot: int) -> None:
        if self.memory is None:
            raise ParameterServerError(f"{ps} writes to memory that this worker does not have")
        for block in blocks:
            values = self.memory.values[slot][block.slab]
            if values is not self.values.flat[block.slab]:
                self.values.set(block, values[block.begin : block.end])

    def _add(self, blocks: Sequence[SlabBlock], exponents: Sequence[int], frames: Sequence[Any]) -> None:
        at = 0
        for block, exponent in zip(blocks, exponents):
            dtype = self.values.layout.slabs[block.slab].dtype
            count = self.codec.frame_count(dtype)
            self.values.add(block, self.codec.decode(frames[at : at + count], block.end - block.begin, dtype, exponent))
            at += count
