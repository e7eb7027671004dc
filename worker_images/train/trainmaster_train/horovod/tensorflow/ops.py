"""Operations on TensorFlow's tensors, eager or in a ``tf.function``, and the compression of what they send.

Values pass through numpy on the CPU.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf  # pyright: ignore[reportMissingImports] (the user's)

from trainmaster_train.horovod.arrays import ArrayEntry
from trainmaster_train.horovod.controller.messages import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BROADCAST,
    REDUCESCATTER,
    CollectiveRequest,
)
from trainmaster_train.horovod.reduction import (
    Adasum,
    Average,
    ReduceOp,
    Reduction,
    Sum,
    check_adasum,
    check_scatter_op,
    resolve_op,
)
from trainmaster_train.horovod.session import ProcessSet, set_number
from trainmaster_train.horovod.tensorflow.session import gang, global_process_set


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


Function = Callable[..., Sequence[Any]]

# Horovod pins an operation to a device by these; here all data pass through the host's memory.
Device = str


def through_numpy(function: Function, tensors: Sequence[Any], dtypes: Sequence[Any]) -> List[Any]:
    """``function`` of the tensors' values, as tensors of ``dtypes``: eagerly, or each time that the graph runs."""
    if not dtypes:
        return []
    if tf.executing_eagerly():
        # Not as an operation, which would wrap the exception in one of TensorFlow's.
        results = function(*(tensor.numpy() for tensor in tensors))
        return [tf.convert_to_tensor(result, dtype) for result, dtype in zip(results, dtypes)]
    outputs = tf.numpy_function(function, list(tensors), list(dtypes))
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


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


def allreduce(
    tensor: Any,
    average: Optional[bool] = None,
    device_dense: Device = "",  # noqa: ARG001 (Horovod's signature)
    device_sparse: Device = "",  # noqa: ARG001 (Horovod's signature)
    compression: Any = Compression.none,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Reduce the tensors of all ranks; by default to their average. Rows of ``IndexedSlices`` are gathered, and add up
    where they are applied. Differentiable for dense tensors.
    """
    reduction = Reduction(resolve_op(average, op), prescale_factor, postscale_factor, set_number(process_set))
    if isinstance(tensor, tf.IndexedSlices):
        return _allreduce_sparse(tensor, reduction.op, name, process_set)
    small, context = compression.compress(tf.convert_to_tensor(tensor))
    label = name or gang().next_name(ALLREDUCE, reduction.process_set)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def reduced(value: Any) -> Any:
        def back(gradient: Any) -> Any:
            return reduce([gradient], [f"{label}.gradient"], reduction)[0]

        return reduce([value], [label], reduction)[0], back

    return compression.decompress(reduced(small), context)


def grouped_allreduce(
    tensors: Sequence[Any],
    average: Optional[bool] = None,
    device_dense: Device = "",  # noqa: ARG001 (Horovod's signature)
    device_sparse: Device = "",  # noqa: ARG001 (Horovod's signature)
    compression: Any = Compression.none,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    name: Optional[str] = None,
) -> List[Any]:
    """:func:`allreduce` of several dense tensors, as few messages as possible."""
    reduction = Reduction(resolve_op(average, op), prescale_factor, postscale_factor, set_number(process_set))
    pairs = [compression.compress(tf.convert_to_tensor(tensor)) for tensor in tensors]
    results = reduce(
        [small for small, _ in pairs], _names(name, "grouped", len(pairs), reduction.process_set), reduction
    )
    return [compression.decompress(result, context) for result, (_, context) in zip(results, pairs)]


def allgather(tensor: Any, name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> Any:
    """The tensors of all ranks, concatenated by the first dimension, whose size may differ."""
    number = set_number(process_set)
    return _allgather_tensors([tensor], [name or gang().next_name(ALLGATHER, number)], number)[0]


def grouped_allgather(
    tensors: Sequence[Any], name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> List[Any]:
    """:func:`allgather` of several tensors."""
    number = set_number(process_set)
    return _allgather_tensors(tensors, _names(name, "gathered", len(tensors), number), number)


def broadcast(
    tensor: Any, root_rank: int, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Any:
    """The tensor of ``root_rank`` (its global rank, also in a process set) on each rank."""
    number = set_number(process_set)
    gang().check_root(root_rank, number)
    tensor = tf.convert_to_tensor(tensor)
    label = name or gang().next_name(BROADCAST, number)
    (result,) = through_numpy(
        lambda value: run([value], [label], BROADCAST, root=root_rank, process_set=number), [tensor], [tensor.dtype]
    )
    result.set_shape(tensor.shape)
    return result


def alltoall(
    tensor: Any,
    splits: Optional[Sequence[int]] = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows of ``tensor`` to each rank: ``splits`` to each (default: equal numbers); eager only.

    Returns:
        The rows from all ranks, in rank order; with ``splits`` also their number from each rank.
    """
    number = set_number(process_set)
    size = len(gang().engine.members(number))
    value = tf.convert_to_tensor(tensor).numpy()
    rows = [len(value) // size] * size if splits is None else [int(count) for count in splits]
    if len(rows) != size or sum(rows) != len(value):
        raise ValueError(f"alltoall: splits {rows} must be {size} counts that add up to {len(value)} rows.")
    label = name or gang().next_name(ALLTOALL, number)
    entry = submit([value], [label], ALLTOALL, splits=tuple(rows), process_set=number)[0]
    output = tf.convert_to_tensor(entry.output)
    return output if splits is None else (output, tf.constant(entry.received, tf.int32))


def reducescatter(
    tensor: Any,
    device_dense: Device = "",
    compression: Any = Compression.none,
    op: ReduceOp = Average,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Average (or sum) of all tensors; each rank gets its share of the rows, the first ranks one more."""
    number = set_number(process_set)
    named = name or gang().next_name(REDUCESCATTER, number)
    return grouped_reducescatter(
        [tensor], device_dense, compression, op, named, process_set, prescale_factor, postscale_factor
    )[0]


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: Device = "",  # noqa: ARG001 (Horovod's signature)
    compression: Any = Compression.none,
    op: ReduceOp = Average,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> List[Any]:
    """:func:`reducescatter` of several tensors."""
    number = set_number(process_set)
    fields = {"op": check_scatter_op(op).name, "prescale": prescale_factor, "postscale": postscale_factor}
    pairs = [compression.compress(_require_rows(tensor, REDUCESCATTER)) for tensor in tensors]
    names = _names(name, "scattered", len(pairs), number)
    results = through_numpy(
        lambda *values: run(values, names, REDUCESCATTER, process_set=number, **fields),
        [small for small, _ in pairs],
        [small.dtype for small, _ in pairs],
    )
    for result, (small, _) in zip(results, pairs):
        result.set_shape([None, *small.shape[1:]])
    return [compression.decompress(result, context) for result, (_, context) in zip(results, pairs)]


def reduce_gradients(
    gradients: Sequence[Any],
    *,
    op: ReduceOp = Average,
    compression: Any = Compression.none,
    predivide: float = 1.0,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    label: str = "gradients",
) -> List[Any]:
    """Reduce gradients over all ranks; ``None`` stays ``None``. Each is named by its index."""
    if predivide != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor goes with op=hvd.Average only.")
    results = list(gradients)
    dense = []
    for number, gradient in enumerate(gradients):
        if isinstance(gradient, tf.IndexedSlices) and not sparse_as_dense:
            results[number] = allreduce(gradient, op=op, name=f"{label}.{number}", process_set=process_set)
        elif gradient is not None:
            dense.append(number)
    reduction = Reduction(op, 1.0 / predivide, predivide, set_number(process_set))
    pairs = [compression.compress(tf.convert_to_tensor(gradients[number])) for number in dense]
    reduced = reduce([small for small, _ in pairs], [f"{label}.{number}" for number in dense], reduction)
    for number, value, (_, context) in zip(dense, reduced, pairs):
        results[number] = compression.decompress(value, context)
    return results


def reduce(tensors: Sequence[Any], names: Sequence[str], reduction: Reduction) -> List[Any]:
    if reduction.op == Adasum:
        size = len(gang().engine.members(reduction.process_set))
        check_adasum(size, is_floating=all(tensor.dtype.is_floating for tensor in tensors))
    fields = reduction._asdict()
    fields["op"] = reduction.op.name
    results = through_numpy(
        lambda *values: run(values, names, ALLREDUCE, **fields), tensors, [tensor.dtype for tensor in tensors]
    )
    for result, tensor in zip(results, tensors):
        result.set_shape(tensor.shape)
    return results


def _allreduce_sparse(slices: Any, op: ReduceOp, name: Optional[str], process_set: ProcessSet) -> Any:
    if op not in (Average, Sum):
        raise ValueError(f"IndexedSlices support Average and Sum, not {op.name}.")
    number = set_number(process_set)
    label = name or gang().next_name("sparse", number)
    values = _allgather_tensors([slices.values], [f"{label}.values"], number)[0]
    indices = _allgather_tensors([slices.indices], [f"{label}.indices"], number)[0]
    if op == Average:
        # Evaluated at run time: the gang may have changed since the graph was built.
        (size,) = through_numpy(lambda: [np.int64(len(gang().engine.members(number)))], [], [tf.int64])
        values = values / tf.cast(size, values.dtype)
    return tf.IndexedSlices(values, indices, dense_shape=slices.dense_shape)


def _allgather_tensors(tensors: Sequence[Any], names: Sequence[str], number: int) -> List[Any]:
    checked = [_require_rows(tensor, ALLGATHER) for tensor in tensors]
    results = through_numpy(
        lambda *values: run(values, names, ALLGATHER, process_set=number), checked, [tensor.dtype for tensor in checked]
    )
    for result, tensor in zip(results, checked):
        result.set_shape([None, *tensor.shape[1:]])
    return results


def _require_rows(tensor: Any, kind: str) -> Any:
    tensor = tf.convert_to_tensor(tensor)
    if tensor.shape.rank == 0:
        raise ValueError(f"{kind} needs a tensor with at least one dimension; use tf.expand_dims for a scalar.")
    return tensor


def _names(name: Optional[str], kind: str, count: int, number: int) -> List[str]:
    label = name or gang().next_name(kind, number)
    return [f"{label}.{i}" for i in range(count)]
