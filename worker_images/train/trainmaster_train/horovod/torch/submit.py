"""Builds requests from tensors and submits them; handles to wait for the results.

A blocking allreduce that the response cache expects takes the cached fast path. The simple equivalent is to submit the
operation and to wait for it, which skips the negotiation, too (controller/response_cache.py). Compared with reducing a
megabyte, the Python code of that is noticeable, and it computes nothing new: request and response are known. So the
fast path only checks that the tensor matches the expected operation, and calls gloo. Everything unusual is submitted.
"""

from __future__ import annotations

from typing import Any, Dict, Optional, Sequence, Tuple, Union

import torch

from trainmaster_train.horovod.controller.messages import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BROADCAST,
    REDUCESCATTER,
    CollectiveRequest,
    Handle,
)
from trainmaster_train.horovod.gang import ProcessGang
from trainmaster_train.horovod.reduction import AVERAGE, Adasum, Average, Reduction, check_adasum
from trainmaster_train.horovod.torch.backend import TensorEntry, TorchBackend, divide
from trainmaster_train.horovod.torch.basics import gang

# Types that gloo supports directly, and their names in a request.
_GLOO_TYPES = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int32: "int32",
    torch.int64: "int64",
}
# No factors, and all ranks.
_PLAIN_REDUCTION = Reduction(Average)[1:]

Tensor = torch.Tensor


def _cached_allreduce(
    process_gang: ProcessGang, tensor: torch.Tensor, name: Optional[str], reduction: Reduction, *, is_in_place: bool
) -> Optional[torch.Tensor]:
    """The result, or ``None`` if the operation is not the expected one, or needs more than a call of gloo.

    Raises:
        HorovodInternalError: it failed, or the gang is broken.
    """
    engine, backend = process_gang.engine, process_gang.backend
    expected = engine.fast_path.expected
    if (
        expected is None
        or expected.shape != tensor.shape
        or expected.name != (f"{ALLREDUCE}.{name}" if name else ALLREDUCE)
        or expected.op != reduction.op.name
        or expected.dtype != _GLOO_TYPES.get(tensor.dtype)
        or reduction[1:] != _PLAIN_REDUCTION
        or expected.prescale != 1.0
        or expected.postscale != 1.0
        or not (tensor.is_cpu and tensor.is_contiguous())
        or not isinstance(backend, TorchBackend)
    ):
        return None
    buffer = tensor.detach() if tensor.requires_grad else tensor
    if not is_in_place:
        buffer = buffer.clone()
    request = expected if name else expected._replace(name=process_gang.next_name(ALLREDUCE))
    if not engine.run_cached(request, expected, lambda: backend.start_on_fast_path(buffer, expected.op)):
        if not name:
            process_gang.return_name(ALLREDUCE)
        return None
    if expected.op == AVERAGE:
        divide(buffer, process_gang.ranks.size)
    return buffer


class AsyncHandle:
    """Result of an operation ``…_async``, for :func:`poll` and :func:`synchronize`."""

    def __init__(
        self, handles: Sequence[Handle], entries: Sequence[TensorEntry], *, is_group: bool, with_splits: bool
    ) -> None:
        self._handles = handles
        self._jobs = entries
        self._is_group = is_group
        self._with_splits = with_splits

    def is_done(self) -> bool:
        return all(gang().engine.poll(handle) for handle in self._handles)

    def result(self) -> Any:
        for handle in self._handles:
            gang().engine.wait(handle)
        outputs = [entry.output for entry in self._jobs]
        if self._is_group:
            return outputs
        return (outputs[0], self._jobs[0].received) if self._with_splits else outputs[0]


class SparseHandle:
    """Handle of a sparse allreduce, which gathers values and indices."""

    def __init__(self, tensor: Tensor, values: AsyncHandle, indices: AsyncHandle, divisor: int) -> None:
        self._tensor = tensor
        self._values = values
        self._indices = indices
        self._divisor = divisor

    def is_done(self) -> bool:
        return self._values.is_done() and self._indices.is_done()

    def result(self) -> Tensor:
        values, indices = self._values.result(), self._indices.result()
        if self._divisor != 1:
            values = values / self._divisor
        return torch.sparse_coo_tensor(
            indices.transpose(0, 1), values, self._tensor.shape, check_invariants=False
        ).coalesce()


AnyHandle = Union[AsyncHandle, SparseHandle]


def submit_allreduce(
    tensors: Sequence[Tensor],
    name: Optional[str],
    reduction: Reduction,
    *,
    is_in_place: bool = False,
    is_group: bool = False,
    will_wait: bool = False,
) -> AsyncHandle:
    members = gang().engine.members(reduction.process_set)
    if reduction.op == Adasum:
        check_adasum(len(members), is_floating=all(tensor.is_floating_point() for tensor in tensors))
    return submit(
        tensors,
        ALLREDUCE,
        name,
        reduction.process_set,
        op=reduction.op.name,
        prescale=reduction.prescale,
        postscale=reduction.postscale,
        is_in_place=is_in_place,
        is_group=is_group,
        will_wait=will_wait,
    )


def blocking_allreduce(
    tensor: Tensor, name: Optional[str], reduction: Reduction, *, is_in_place: bool = False
) -> Tensor:
    """Allreduce one tensor, and wait for the result."""
    result = _cached_allreduce(gang(), tensor, name, reduction, is_in_place=is_in_place)
    if result is None:
        result = submit_allreduce([tensor], name, reduction, is_in_place=is_in_place, will_wait=True).result()
    return result


def submit_reducescatter(
    tensors: Sequence[Tensor], name: Optional[str], reduction: Reduction, *, is_group: bool = False
) -> AsyncHandle:
    for tensor in tensors:
        check_rows(tensor, REDUCESCATTER)
    return submit(
        tensors,
        REDUCESCATTER,
        name,
        reduction.process_set,
        op=reduction.op.name,
        prescale=reduction.prescale,
        postscale=reduction.postscale,
        is_group=is_group,
    )


def submit_allgather(tensor: Tensor, name: Optional[str], process_set: int, *, will_wait: bool = False) -> AsyncHandle:
    check_rows(tensor, ALLGATHER)
    return submit([tensor], ALLGATHER, name, process_set, will_wait=will_wait)


def submit_broadcast(
    tensor: Tensor,
    root: int,
    name: Optional[str],
    process_set: int,
    *,
    is_in_place: bool = False,
    will_wait: bool = False,
) -> AsyncHandle:
    gang().check_root(root, process_set)
    return submit([tensor], BROADCAST, name, process_set, root=root, is_in_place=is_in_place, will_wait=will_wait)


def submit(
    tensors: Sequence[Tensor],
    kind: str,
    name: Optional[str],
    process_set: int,
    *,
    is_in_place: bool = False,
    is_group: bool = False,
    will_wait: bool = False,
    with_splits: bool = False,
    **more: Any,
) -> AsyncHandle:
    process_gang = gang()
    base = name or process_gang.next_name(f"grouped_{kind}" if is_group else kind, process_set)
    if name:
        base = f"{kind}.{name}"
    fields: Dict[str, Any] = {"process_set": process_set, **more}
    if is_group:
        fields.update(group=base, group_size=len(tensors))
    entries = []
    for number, tensor in enumerate(tensors):
        request = CollectiveRequest(
            name=f"{base}_{number + 1}of{len(tensors)}" if is_group else base,
            kind=kind,
            dtype=str(tensor.dtype)[len("torch.") :],
            shape=tuple(tensor.shape),
            device=tensor.device.type,
            item_bytes=tensor.element_size(),
            **fields,
        )
        entries.append(TensorEntry(request, tensor, is_in_place=is_in_place))
    handles = process_gang.engine.submit([entry.request for entry in entries], entries, will_wait=will_wait)
    return AsyncHandle(handles, entries, is_group=is_group, with_splits=with_splits)


def check_rows(tensor: Tensor, kind: str) -> None:
    if tensor.dim() == 0:
        raise ValueError(f"{kind} needs a tensor with at least one dimension; use tensor.unsqueeze(0) for a scalar.")


def splits_of(tensor: Tensor, splits: Union[Tensor, Sequence[int], None], process_set: int) -> Tuple[int, ...]:
    check_rows(tensor, ALLTOALL)
    size = len(gang().engine.members(process_set))
    if splits is None:
        if tensor.shape[0] % size:
            raise ValueError(f"alltoall: {tensor.shape[0]} rows do not divide evenly over {size} ranks; give splits=.")
        return (tensor.shape[0] // size,) * size
    rows = tuple(int(count) for count in (splits.tolist() if isinstance(splits, Tensor) else splits))
    if len(rows) != size or min(rows) < 0 or sum(rows) != tensor.shape[0]:
        raise ValueError(f"alltoall: splits {list(rows)} must be {size} counts that add up to {tensor.shape[0]} rows.")
    return rows
