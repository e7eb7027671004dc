"""Codec of blocks of values: frames with optional compression.

``full``: the values unchanged, one frame. ``bf16``: half precision, one frame. ``fp16``: half precision, scaled by a
power of two that puts the largest value near fp16's limit (so that small ones do not vanish), one frame and the
exponent. ``topk``: indices (int32) and values (bf16) of the largest elements, two frames. Blocks of other dtypes than
float32 are sent full.

The compression error is stored in the block's *residual*, if there is one, and added to the next values: error
feedback.
"""

from __future__ import annotations

import math
from typing import Any, List, Optional, Sequence, Tuple

import torch

from trainmaster_train.ps.wire.messages import WireError

# fp16 ends at 65504 = almost 2^16: the largest value lands in [2^14, 2^15).
_FP16_EXPONENT = 15
# Two to this and to minus this are ordinary numbers of float32; older torch multiplies by them.
_LARGEST_EXPONENT = 126
_SAMPLE = 8192


class Codec:
    def __init__(self, wire: str, topk_ratio: float) -> None:
        self._wire = wire
        self._ratio = topk_ratio

    @property
    def is_lossy(self) -> bool:
        return self._wire != "full"

    @property
    def uses_error_feedback(self) -> bool:
        """Whether the compression error of a gradient is too large to be ignored."""
        return self._wire == "topk"

    def frame_count(self, dtype: torch.dtype) -> int:
        return 2 if self._applied(dtype) == "topk" else 1

    def encode(self, values: torch.Tensor, residual: Optional[torch.Tensor] = None) -> Tuple[List[Any], int]:
        """Frames of ``values`` (flat, on the CPU) plus ``residual``, and the exponent for ``decode``.

        The new compression error is stored in ``residual``. A frame of ``full`` is the memory of ``values`` itself.
        """
        wire = self._applied(values.dtype)
        if wire == "full":
            return [raw(values)], 0
        if residual is not None:
            values = residual.add_(values)
        exponent = 0
        if wire == "topk":
            chosen = largest(values, max(1, int(values.numel() * self._ratio)))
            halves = values[chosen].to(torch.bfloat16)
            if residual is not None:
                residual[chosen] -= halves.float()
            return [raw(chosen.to(torch.int32)), raw(halves)], 0
        if wire == "fp16":
            low, high = torch.aminmax(values)
            largest_value = max(-float(low), float(high))
            # frexp: the value is below 2**e.
            exponent = min(_FP16_EXPONENT - math.frexp(largest_value)[1], _LARGEST_EXPONENT) if largest_value else 0
            halves = torch.ldexp(values, torch.tensor(exponent)).to(torch.float16)
            sent = torch.ldexp(halves.float(), torch.tensor(-exponent)) if residual is not None else None
        else:
            halves = values.to(torch.bfloat16)
            sent = halves.float() if residual is not None else None
        if residual is not None and sent is not None:
            residual -= sent
        return [raw(halves)], exponent

    def decode(self, frames: Sequence[Any], size: int, dtype: torch.dtype, exponent: int) -> torch.Tensor:
        """The values in ``frames``: flat, of ``size`` elements. May be the frame's own memory: read only.

        Raises:
            WireError: the frames have another size.
        """
        wire = self._applied(dtype)
        if wire == "full":
            return read(frames[0], dtype, size)
        if wire == "topk":
            values = read(frames[1], torch.bfloat16, None)
            chosen = read(frames[0], torch.int32, values.numel()).long()
            if values.numel() and (int(chosen.min()) < 0 or int(chosen.max()) >= size):
                raise WireError("an index outside of its block")
            return torch.zeros(size, dtype=dtype).index_copy_(0, chosen, values.to(dtype))
        if wire == "fp16":
            return torch.ldexp(read(frames[0], torch.float16, size).to(dtype), torch.tensor(-exponent))
        return read(frames[0], torch.bfloat16, size).to(dtype)

    def _applied(self, dtype: torch.dtype) -> str:
        return self._wire if dtype is torch.float32 else "full"


def largest(values: torch.Tensor, count: int) -> torch.Tensor:
    """The indices of about ``count`` values of largest magnitude.

    ``torch.topk`` over a block costs tens of milliseconds on a CPU; a threshold from a sample costs one. So the number
    varies by some per cent; if the sample is misleading (nearly all values equal, or zero), ``topk`` is used.
    """
    magnitudes = values.abs()
    if values.numel() <= _SAMPLE:
        return magnitudes.topk(count, sorted=False).indices
    sample = magnitudes[:: values.numel() // _SAMPLE]
    place = max(1, round(sample.numel() * count / values.numel()))
    threshold = sample.topk(place, sorted=True).values[-1]
    chosen = (magnitudes >= threshold).nonzero().flatten()
    if threshold == 0 or not count // 2 <= chosen.numel() <= count * 2:
        return magnitudes.topk(count, sorted=False).indices
    return chosen


def raw(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU. Keeps the tensor alive."""
    array: Any = tensor.detach().view(torch.uint8).numpy()
    return memoryview(array)


def read(frame: Any, dtype: torch.dtype, size: Optional[int]) -> torch.Tensor:
    """A frame as a flat tensor of ``size`` elements (``None``: of any size), without a copy."""
    buffer = frame if isinstance(frame, memoryview) else frame.buffer
    if buffer.nbytes % dtype.itemsize or (size is not None and buffer.nbytes != size * dtype.itemsize):
        raise WireError(f"a frame of {buffer.nbytes} bytes where {size} values of {dtype} belong")
    if not buffer.nbytes:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(buffer, dtype=dtype)
