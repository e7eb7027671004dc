"""Compression of gradients on the wire: none, or half precision."""

from __future__ import annotations

from typing import Optional, Tuple

import torch


class NoneCompressor:
    """No compression."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> Tuple[torch.Tensor, Optional[torch.dtype]]:
        """``(compressed tensor, context for decompress)``."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, _context: Optional[torch.dtype]) -> torch.Tensor:
        return tensor


class FP16Compressor:
    """Floating point numbers as 16 bits; other types unchanged."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> Tuple[torch.Tensor, Optional[torch.dtype]]:
        """``(compressed tensor, context for decompress)``."""
        if tensor.dtype.is_floating_point and tensor.dtype != torch.float16:
            return tensor.to(torch.float16), tensor.dtype
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Optional[torch.dtype]) -> torch.Tensor:
        return tensor if context is None else tensor.to(context)


class Compression:
    """Values of ``compression=``."""

    none = NoneCompressor
    fp16 = FP16Compressor
