"""Values of ``compression=``: none, or half precision."""

from __future__ import annotations

from typing import Any, Tuple

import tensorflow as tf  # pyright: ignore[reportMissingImports] (the user's)


class Compression:
    class none:  # noqa: N801 (Horovod's name)
        """No compression."""

        @staticmethod
        def compress(tensor: Any) -> Tuple[Any, Any]:
            return tensor, None

        @staticmethod
        def decompress(tensor: Any, _context: Any) -> Any:
            return tensor

    class fp16:  # noqa: N801 (Horovod's name)
        """Floating point numbers as 16 bits."""

        @staticmethod
        def compress(tensor: Any) -> Tuple[Any, Any]:
            return (tf.cast(tensor, tf.float16), tensor.dtype) if tensor.dtype.is_floating else (tensor, None)

        @staticmethod
        def decompress(tensor: Any, context: Any) -> Any:
            return tensor if context is None else tf.cast(tensor, context)
