"""The operations on TensorFlow's tensors, eager or in a ``tf.function``: their values go through numpy on the CPU."""

from __future__ import annotations

import pickle
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf  # pyright: ignore[reportMissingImports] (the user's)

from trainmaster_train.horovod.arrays import AVERAGE, REDUCERS, ArrayJob
from trainmaster_train.horovod.messages import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, Request
from trainmaster_train.horovod.tensorflow.session import gang, rank, size


class ReduceOp(NamedTuple):
    """How the ranks' tensors become one."""

    name: str


Average = ReduceOp(AVERAGE)
Sum = ReduceOp("sum")
Min = ReduceOp("min")
Max = ReduceOp("max")
Product = ReduceOp("product")


class Compression:
    """What ``compression=`` takes: gradients as they are, or as half precision."""

    class none:  # noqa: N801 (Horovod's name)
        """As they are."""

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


def allreduce(
    tensor: Any,
    average: Optional[bool] = None,
    compression: Any = Compression.none,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: Optional[str] = None,
) -> Any:
    """The tensors of all ranks as one; by default their average. Of ``IndexedSlices`` rows are gathered, and add up
    where they are applied. Gradients flow through dense ones.
    """
    how = _reduction(average, op)
    if isinstance(tensor, tf.IndexedSlices):
        if how not in (Average, Sum):
            raise ValueError(f"IndexedSlices know Average and Sum, not {how.name}.")
        label = name or gang().unnamed("sparse")
        values = allgather(tensor.values, f"{label}.values")
        indices = allgather(tensor.indices, f"{label}.indices")
        if how == Average:
            values = values / tf.cast(size(), values.dtype)
        return tf.IndexedSlices(values, indices, dense_shape=tensor.dense_shape)
    small, context = compression.compress(tf.convert_to_tensor(tensor))
    label = name or gang().unnamed(ALLREDUCE)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def reduced(value: Any) -> Any:
        def back(gradient: Any) -> Any:
            return _reduce([gradient], [f"{label}.gradient"], how, prescale_factor, postscale_factor)[0]

        return _reduce([value], [label], how, prescale_factor, postscale_factor)[0], back

    return compression.decompress(reduced(small), context)


def grouped_allreduce(
    tensors: Sequence[Any],
    average: Optional[bool] = None,
    compression: Any = Compression.none,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: Optional[str] = None,
) -> List[Any]:
    """:func:`allreduce` of several dense tensors, as few messages as possible."""
    pairs = [compression.compress(tf.convert_to_tensor(tensor)) for tensor in tensors]
    label = name or gang().unnamed("grouped")
    names = [f"{label}.{number}" for number in range(len(pairs))]
    results = _reduce([small for small, _ in pairs], names, _reduction(average, op), prescale_factor, postscale_factor)
    return [compression.decompress(result, context) for result, (_, context) in zip(results, pairs)]


def allgather(tensor: Any, name: Optional[str] = None) -> Any:
    """The tensors of all ranks one behind another, by their first dimension, in which they may differ."""
    tensor = tf.convert_to_tensor(tensor)
    if tensor.shape.rank == 0:
        raise ValueError("allgather needs a tensor with at least one dimension; use tf.expand_dims for a scalar.")
    label = name or gang().unnamed(ALLGATHER)
    (result,) = _through_numpy(lambda value: _run([value], [label], ALLGATHER), [tensor], [tensor.dtype])
    result.set_shape([None, *tensor.shape[1:]])
    return result


def broadcast(tensor: Any, root_rank: int, name: Optional[str] = None) -> Any:
    """The tensor of ``root_rank`` on each rank."""
    if not 0 <= root_rank < size():
        raise ValueError(f"root_rank={root_rank} is not among the ranks 0 to {size() - 1}.")
    tensor = tf.convert_to_tensor(tensor)
    label = name or gang().unnamed(BROADCAST)
    (result,) = _through_numpy(
        lambda value: _run([value], [label], BROADCAST, root=root_rank), [tensor], [tensor.dtype]
    )
    result.set_shape(tensor.shape)
    return result


def alltoall(tensor: Any, splits: Optional[Sequence[int]] = None, name: Optional[str] = None) -> Any:
    """Rows of ``tensor`` to each rank, ``splits`` to each (unstated: as many to each); eager only.

    Returns:
        The rows from all ranks in their order; with ``splits`` also how many came from each.
    """
    value = tf.convert_to_tensor(tensor).numpy()
    rows = [len(value) // size()] * size() if splits is None else [int(count) for count in splits]
    if len(rows) != size() or sum(rows) != len(value):
        raise ValueError(f"alltoall: splits {rows} must be {size()} counts that add up to {len(value)} rows.")
    job = _submit([value], [name or gang().unnamed(ALLTOALL)], ALLTOALL, splits=tuple(rows))[0]
    output = tf.convert_to_tensor(job.output)
    return output if splits is None else (output, tf.constant(job.received, tf.int32))


def broadcast_variables(variables: Sequence[Any], root_rank: int) -> None:
    """Make ``variables`` those of ``root_rank``. All ranks give theirs in the same order."""
    arrays = [np.asarray(variable.numpy()) for variable in variables]
    label = gang().unnamed("variables")
    names = [f"{label}.{number}" for number in range(len(arrays))]
    for variable, array in zip(variables, _run(arrays, names, BROADCAST, root=root_rank)):
        variable.assign(array)


def broadcast_object(obj: Any, root_rank: int = 0, name: Optional[str] = None) -> Any:
    """``obj`` of ``root_rank``, on every rank. Whatever pickle takes."""
    data = np.frombuffer(pickle.dumps(obj), np.uint8) if rank() == root_rank else np.empty(0, np.uint8)
    label = name or gang().unnamed("object")
    (length,) = _run([np.array([data.size])], [f"{label}.length"], BROADCAST, root=root_rank)
    if rank() != root_rank:
        data = np.empty(int(length[0]), np.uint8)
    (data,) = _run([data], [f"{label}.data"], BROADCAST, root=root_rank)
    return _unpickled(data)


def allgather_object(obj: Any, name: Optional[str] = None) -> List[Any]:
    """The objects of all ranks, in their order."""
    data = np.frombuffer(pickle.dumps(obj), np.uint8)
    label = name or gang().unnamed("objects")
    (lengths,) = _run([np.array([data.size])], [f"{label}.lengths"], ALLGATHER)
    (everything,) = _run([data], [f"{label}.data"], ALLGATHER)
    return [_unpickled(part) for part in np.split(everything, np.cumsum(lengths)[:-1])]


def reduce_gradients(
    gradients: Sequence[Any],
    *,
    op: ReduceOp = Average,
    compression: Any = Compression.none,
    predivide: float = 1.0,
    sparse_as_dense: bool = False,
    label: str = "gradients",
) -> List[Any]:
    """The gradients of all ranks; ``None`` stays ``None``. Each is named by its place among all."""
    if predivide != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor goes with op=hvd.Average only.")
    results = list(gradients)
    dense = []
    for number, gradient in enumerate(gradients):
        if isinstance(gradient, tf.IndexedSlices) and not sparse_as_dense:
            results[number] = allreduce(gradient, op=op, name=f"{label}.{number}")
        elif gradient is not None:
            dense.append(number)
    pairs = [compression.compress(tf.convert_to_tensor(gradients[number])) for number in dense]
    names = [f"{label}.{number}" for number in dense]
    reduced = _reduce([small for small, _ in pairs], names, op, 1.0 / predivide, predivide) if dense else []
    for number, value, (_, context) in zip(dense, reduced, pairs):
        results[number] = compression.decompress(value, context)
    return results


def _reduction(average: Optional[bool], op: Optional[ReduceOp]) -> ReduceOp:
    if average is not None and op is not None:
        raise ValueError("give op= or average=, not both (average= is the older one).")
    if op is None:
        return Sum if average is False else Average
    if getattr(op, "name", None) not in REDUCERS:
        raise ValueError(f"op={op!r}: use hvd.Average, hvd.Sum, hvd.Min, hvd.Max or hvd.Product.")
    return op


def _reduce(tensors: Sequence[Any], names: List[str], op: ReduceOp, prescale: float, postscale: float) -> List[Any]:
    results = _through_numpy(
        lambda *values: _run(values, names, ALLREDUCE, op=op.name, prescale=prescale, postscale=postscale),
        tensors,
        [tensor.dtype for tensor in tensors],
    )
    for result, tensor in zip(results, tensors):
        result.set_shape(tensor.shape)
    return results


def _through_numpy(function: Any, tensors: Sequence[Any], dtypes: Sequence[Any]) -> List[Any]:
    """``function`` of the tensors' values: at once, or whenever the graph runs."""
    found = tf.numpy_function(function, list(tensors), list(dtypes))
    return list(found) if isinstance(found, (list, tuple)) else [found]


def _run(arrays: Sequence[Any], names: Sequence[str], kind: str, **fields: Any) -> List[Any]:
    return [job.output for job in _submit(arrays, names, kind, **fields)]


def _submit(arrays: Sequence[Any], names: Sequence[str], kind: str, **fields: Any) -> List[ArrayJob]:
    """Run operations that may go together, and wait for all."""
    jobs = []
    for name, value in zip(names, arrays):
        array = np.asarray(value)
        request = Request(
            name=f"{kind}.{name}",
            kind=kind,
            dtype=array.dtype.name,
            shape=tuple(array.shape),
            item_bytes=array.dtype.itemsize,
            **fields,
        )
        jobs.append(ArrayJob(request, array))
    engine = gang().engine
    for handle in engine.submit([job.request for job in jobs], jobs, will_wait=True):
        engine.wait(handle)
    return jobs


def _unpickled(data: Any) -> Any:
    # From a rank of the same job, which runs the same user's code anyway.
    return pickle.loads(data.tobytes())  # noqa: S301
