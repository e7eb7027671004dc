"""From TensorFlow's tensors to the engine: values pass through numpy on the CPU, eagerly or whenever a graph runs."""

from __future__ import annotations

from typing import Any, Callable, List, Sequence

import numpy as np
import tensorflow as tf  # pyright: ignore[reportMissingImports] (the user's)

from trainmaster_train.horovod.arrays import ArrayEntry
from trainmaster_train.horovod.controller.messages import CollectiveRequest
from trainmaster_train.horovod.tensorflow.session import gang

Function = Callable[..., Sequence[Any]]


def through_numpy(function: Function, tensors: Sequence[Any], dtypes: Sequence[Any]) -> List[Any]:
    """``function`` of the tensors' values, as tensors of ``dtypes``: eagerly, or each time that the graph runs."""
    if not dtypes:
        return []
    if tf.executing_eagerly():
        # Not as an operation, which would wrap the exception in one of TensorFlow's.
        results = function(*(tensor.numpy() for tensor in tensors))
        return [tf.convert_to_tensor(result, dtype) for result, dtype in zip(results, dtypes)]
    found = tf.numpy_function(function, list(tensors), list(dtypes))
    return list(found) if isinstance(found, (list, tuple)) else [found]


def run(arrays: Sequence[Any], names: Sequence[str], kind: str, **fields: Any) -> List[Any]:
    return [entry.output for entry in submit(arrays, names, kind, **fields)]


def submit(arrays: Sequence[Any], names: Sequence[str], kind: str, **fields: Any) -> List[ArrayEntry]:
    """Run operations that may be fused, and wait for all."""
    entries = []
    for name, value in zip(names, arrays):
        array = np.asarray(value)
        request = CollectiveRequest(
            name=f"{kind}.{name}",
            kind=kind,
            dtype=array.dtype.name,
            shape=tuple(array.shape),
            item_bytes=array.dtype.itemsize,
            **fields,
        )
        entries.append(ArrayEntry(request, array))
    engine = gang().engine
    for handle in engine.submit([entry.request for entry in entries], entries, will_wait=True):
        engine.wait(handle)
    return entries
