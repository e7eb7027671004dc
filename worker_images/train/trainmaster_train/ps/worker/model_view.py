"""A worker's view of the model, and how values from a ps are installed in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Optional, Sequence

from trainmaster_train.ps.errors import ParameterServerError
from trainmaster_train.ps.layout import SlabBlock
from trainmaster_train.ps.wire.codec import Codec, read
from trainmaster_train.ps.wire.shared_memory import SharedMemory
from trainmaster_train.ps.worker.gradients import FlatParameters


@dataclass(frozen=True)
class WorkerModelView:
    """``memory``: holds gradients and values if it can be shared with a ps on this machine."""

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
