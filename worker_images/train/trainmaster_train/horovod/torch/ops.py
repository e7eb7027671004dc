"""The operations of ``hvd``, blocking and asynchronous, in place, in groups, and the compression of what they send."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple, Union

import torch

from trainmaster_train.horovod.controller.messages import ALLGATHER, ALLTOALL
from trainmaster_train.horovod.reduction import Average, ReduceOp, Reduction, Sum, check_scatter_op, resolve_op
from trainmaster_train.horovod.session import ProcessSet, set_number
from trainmaster_train.horovod.torch.basics import gang, global_process_set
from trainmaster_train.horovod.torch.submit import (
    AnyHandle,
    AsyncHandle,
    SparseHandle,
    blocking_allreduce,
    check_rows,
    splits_of,
    submit,
    submit_allgather,
    submit_allreduce,
    submit_broadcast,
    submit_reducescatter,
)

Tensor = torch.Tensor


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


Compressor = Any


def poll(handle: AnyHandle) -> bool:
    """Whether :func:`synchronize` would return at once."""
    return handle.is_done()


def synchronize(handle: AnyHandle) -> Any:
    """Wait for the operation; returns its result.

    Raises:
        HorovodInternalError: it failed.
    """
    return handle.result()


def join(device: int = -1) -> int:
    """Wait until all ranks have joined; meanwhile take part in their allreduces with zeros and in their allgathers
    without rows. Returns the rank that joined last.
    """
    if device >= 0 and torch.cuda.is_available():
        torch.cuda.set_device(device)
    return gang().join()


# Allreduce


def allreduce(
    tensor: Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    compression: Compressor = Compression.none,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Reduce the tensors of all ranks into a new tensor; by default their average. Differentiable."""
    small, context = compression.compress(tensor)
    reduction = Reduction(resolve_op(average, op), prescale_factor, postscale_factor, set_number(process_set))
    # Without a gradient, autograd would only cost.
    result = (
        Allreduce.apply(small, name, reduction) if small.requires_grad else blocking_allreduce(small, name, reduction)
    )
    reduced: Tensor = compression.decompress(result, context)
    return reduced


def allreduce_async(
    tensor: Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> AsyncHandle:
    reduction = Reduction(resolve_op(average, op), prescale_factor, postscale_factor, set_number(process_set))
    return submit_allreduce([tensor], name, reduction)


def allreduce_(
    tensor: Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """:func:`allreduce` in place."""
    reduction = Reduction(resolve_op(average, op), prescale_factor, postscale_factor, set_number(process_set))
    blocking_allreduce(tensor, name, reduction, is_in_place=True)
    return tensor


def allreduce_async_(
    tensor: Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> AsyncHandle:
    reduction = Reduction(resolve_op(average, op), prescale_factor, postscale_factor, set_number(process_set))
    return submit_allreduce([tensor], name, reduction, is_in_place=True)


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    compression: Compressor = Compression.none,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> List[Tensor]:
    """:func:`allreduce` of several tensors that go together."""
    small, contexts = zip(*(compression.compress(tensor) for tensor in tensors))
    reduction = Reduction(resolve_op(average, op), prescale_factor, postscale_factor, set_number(process_set))
    results = GroupedAllreduce.apply(name, reduction, *small)
    return [compression.decompress(result, context) for result, context in zip(results, contexts)]


def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> AsyncHandle:
    reduction = Reduction(resolve_op(average, op), prescale_factor, postscale_factor, set_number(process_set))
    return submit_allreduce(tensors, name, reduction, is_group=True)


def grouped_allreduce_(
    tensors: Sequence[Tensor],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> List[Tensor]:
    """:func:`grouped_allreduce` in place."""
    reduction = Reduction(resolve_op(average, op), prescale_factor, postscale_factor, set_number(process_set))
    submit_allreduce(tensors, name, reduction, is_in_place=True, is_group=True, will_wait=True).result()
    return list(tensors)


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> AsyncHandle:
    reduction = Reduction(resolve_op(average, op), prescale_factor, postscale_factor, set_number(process_set))
    return submit_allreduce(tensors, name, reduction, is_in_place=True, is_group=True)


def sparse_allreduce_async(
    tensor: Tensor, name: str, op: ReduceOp, process_set: ProcessSet = global_process_set
) -> SparseHandle:
    """Sum or average of sparse tensors: values and indices are gathered, and values of equal indices added up."""
    if op not in (Average, Sum):
        raise ValueError(f"a sparse allreduce supports Average and Sum, not {op.name}.")
    tensor = tensor.coalesce()
    values = allgather_async(tensor.values(), f"{name}.values", process_set)
    indices = allgather_async(tensor.indices().transpose(0, 1).contiguous(), f"{name}.indices", process_set)
    divisor = len(gang().engine.members(set_number(process_set))) if op == Average else 1
    return SparseHandle(tensor, values, indices, divisor)


# Others


def allgather(tensor: Tensor, name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> Tensor:
    """The tensors of all ranks, concatenated by the first dimension, whose size may differ."""
    result: Tensor = Allgather.apply(tensor, name, set_number(process_set))
    return result


def allgather_async(
    tensor: Tensor, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> AsyncHandle:
    return submit_allgather(tensor, name, set_number(process_set))


def grouped_allgather(
    tensors: Sequence[Tensor], name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> List[Tensor]:
    """:func:`allgather` of several tensors that go together."""
    results: List[Tensor] = grouped_allgather_async(tensors, name, process_set).result()
    return results


def grouped_allgather_async(
    tensors: Sequence[Tensor], name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> AsyncHandle:
    number = set_number(process_set)
    for tensor in tensors:
        check_rows(tensor, ALLGATHER)
    return submit(tensors, ALLGATHER, name, number, is_group=True)


def broadcast(
    tensor: Tensor, root_rank: int, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """The tensor of ``root_rank`` (its global rank, also in a process set), in a new tensor on each rank."""
    result: Tensor = Broadcast.apply(tensor, root_rank, name, set_number(process_set))
    return result


def broadcast_async(
    tensor: Tensor, root_rank: int, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> AsyncHandle:
    return submit_broadcast(tensor, root_rank, name, set_number(process_set))


def broadcast_(
    tensor: Tensor, root_rank: int, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """:func:`broadcast` in place."""
    submit_broadcast(tensor, root_rank, name, set_number(process_set), is_in_place=True, will_wait=True).result()
    return tensor


def broadcast_async_(
    tensor: Tensor, root_rank: int, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> AsyncHandle:
    return submit_broadcast(tensor, root_rank, name, set_number(process_set), is_in_place=True)


def alltoall(
    tensor: Tensor,
    splits: Union[Tensor, Sequence[int], None] = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows of ``tensor`` to each rank: ``splits`` to each (default: equal numbers).

    Returns:
        The rows from all ranks, in rank order; with ``splits`` also their number from each rank.
    """
    number = set_number(process_set)
    output, received = Alltoall.apply(tensor, splits_of(tensor, splits, number), name, number)
    return output if splits is None else (output, received)


def alltoall_async(
    tensor: Tensor,
    splits: Union[Tensor, Sequence[int], None] = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> AsyncHandle:
    number = set_number(process_set)
    sent = splits_of(tensor, splits, number)
    return submit([tensor], ALLTOALL, name, number, splits=sent, with_splits=splits is not None)


def reducescatter(
    tensor: Tensor,
    op: ReduceOp = Average,
    name: Optional[str] = None,
    compression: Compressor = Compression.none,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Average (or sum) of all tensors; each rank gets its share of the rows, the first ranks one more."""
    small, context = compression.compress(tensor)
    reduction = Reduction(check_scatter_op(op), prescale_factor, postscale_factor, set_number(process_set))
    reduced: Tensor = compression.decompress(Reducescatter.apply(small, name, reduction), context)
    return reduced


def reducescatter_async(
    tensor: Tensor,
    op: ReduceOp = Average,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> AsyncHandle:
    return submit_reducescatter(
        [tensor], name, Reduction(check_scatter_op(op), prescale_factor, postscale_factor, set_number(process_set))
    )


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    op: ReduceOp = Average,
    name: Optional[str] = None,
    compression: Compressor = Compression.none,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> List[Tensor]:
    """:func:`reducescatter` of several tensors that go together."""
    small, contexts = zip(*(compression.compress(tensor) for tensor in tensors))
    reduction = Reduction(check_scatter_op(op), prescale_factor, postscale_factor, set_number(process_set))
    results = submit_reducescatter(small, name, reduction, is_group=True).result()
    return [compression.decompress(result, context) for result, context in zip(results, contexts)]


def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    op: ReduceOp = Average,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> AsyncHandle:
    reduction = Reduction(check_scatter_op(op), prescale_factor, postscale_factor, set_number(process_set))
    return submit_reducescatter(tensors, name, reduction, is_group=True)


class Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: Optional[str], reduction: Reduction) -> Any:
        ctx.reduction = reduction
        return blocking_allreduce(tensor, name, reduction)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return blocking_allreduce(gradients[0], None, ctx.reduction), None, None


class GroupedAllreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: Optional[str], reduction: Reduction, *tensors: Tensor) -> Any:
        ctx.reduction = reduction
        return tuple(submit_allreduce(tensors, name, reduction, is_group=True, will_wait=True).result())

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return (None, None, *submit_allreduce(gradients, None, ctx.reduction, is_group=True, will_wait=True).result())


class Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: Optional[str], process_set: int) -> Any:
        ctx.process_set = process_set
        ctx.rows = tensor.shape[0] if tensor.dim() else 0
        return submit_allgather(tensor, name, process_set, will_wait=True).result()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        reduction = Reduction(Average, 1.0, 1.0, ctx.process_set)
        reduced = blocking_allreduce(gradients[0], None, reduction)
        rows = submit_allgather(torch.tensor([ctx.rows]), None, ctx.process_set, will_wait=True).result().tolist()
        position = gang().engine.members(ctx.process_set).index(gang().ranks.rank)
        return reduced.narrow(0, sum(rows[:position]), ctx.rows), None, None


class Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root: int, name: Optional[str], process_set: int) -> Any:
        ctx.root, ctx.process_set = root, process_set
        return submit_broadcast(tensor, root, name, process_set, will_wait=True).result()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        reduction = Reduction(Average, 1.0, 1.0, ctx.process_set)
        reduced = blocking_allreduce(gradients[0], None, reduction)
        if gang().ranks.rank != ctx.root:
            reduced = torch.zeros_like(reduced)
        return reduced, None, None, None


class Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, splits: Tuple[int, ...], name: Optional[str], process_set: int) -> Any:
        ctx.process_set = process_set
        output, received = submit(
            [tensor], ALLTOALL, name, process_set, splits=splits, with_splits=True, will_wait=True
        ).result()
        ctx.received = tuple(received.tolist())
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        back = submit([gradients[0]], ALLTOALL, None, ctx.process_set, splits=ctx.received, will_wait=True).result()
        return back, None, None, None


class Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: Optional[str], reduction: Reduction) -> Any:
        ctx.reduction = reduction
        return submit_reducescatter([tensor], name, reduction).result()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        gradient = gradients[0]
        reduction: Reduction = ctx.reduction
        if reduction.op == Average:
            gradient = gradient / len(gang().engine.members(reduction.process_set))
        scale = reduction.prescale * reduction.postscale
        if scale != 1.0:
            gradient = gradient * scale
        return submit_allgather(gradient.contiguous(), None, reduction.process_set, will_wait=True).result(), None, None
