"""Operations on torch tensors, by torch.distributed: gloo for the CPU, NCCL if each process has a GPU of its own."""

from __future__ import annotations

import math
import threading
from datetime import timedelta
from functools import lru_cache
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from trainmaster_train.horovod.controller.messages import (
    ADASUM,
    ADD_SET,
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BROADCAST,
    FAST_PATH,
    GLOBAL_SET,
    REDUCESCATTER,
    REMOVE_SET,
    CollectiveRequest,
    CollectiveResponse,
)
from trainmaster_train.horovod.reduction import AVERAGE, adasum, split_rows

Works = List[Any]
_QUERY_S = 0.0001
# torch takes a time-out of zero for an endless wait.
_MIN_TIMEOUT_S = 0.001


class CpuBatch:
    def __init__(self, works: Works, finish: Callable[[], None]) -> None:
        self._works = works
        self.finish = finish

    def is_done(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def wait(self, timeout_s: float) -> bool:
        for work in self._works:
            try:
                work.wait(_timeout(timeout_s))
            except RuntimeError:
                if not work.is_completed():
                    return False
                work.wait()  # raises the real error
        return True


@lru_cache(maxsize=None)  # the engine uses only a few durations
def _timeout(timeout_s: float) -> timedelta:
    return timedelta(seconds=max(timeout_s, _MIN_TIMEOUT_S))


class CudaBatch:
    """Results are delivered asynchronously on the device's stream; the event ``done`` marks their completion."""

    def __init__(self, works: Works, done: torch.cuda.Event, outputs: Sequence[torch.Tensor]) -> None:
        self._works = works
        self._done = done
        self._outputs = outputs
        self._pause = threading.Event()

    def is_done(self) -> bool:
        return bool(self._done.query())

    def wait(self, timeout_s: float) -> bool:
        # The event's own wait would never return after the death of a peer.
        for _ in range(max(1, int(timeout_s / _QUERY_S))):
            if self._done.query():
                return True
            self._pause.wait(_QUERY_S)
        return bool(self._done.query())

    def finish(self) -> None:
        for output in self._outputs:
            output.record_stream(torch.cuda.current_stream(output.device))


_REDUCE_OPS = {
    AVERAGE: dist.ReduceOp.SUM,
    "sum": dist.ReduceOp.SUM,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "product": dist.ReduceOp.PRODUCT,
}
# Types that gloo cannot add are sent as the next larger type.
_WIRE_TYPES = {torch.int16: torch.int32, torch.bool: torch.uint8}
# The name changed with torch 2.13.
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class TensorEntry:
    """One submitted tensor. ``output`` is the result; for an operation in place, the input itself."""

    __slots__ = ("event", "is_in_place", "output", "received", "request", "tensor")

    def __init__(self, request: CollectiveRequest, tensor: torch.Tensor, *, is_in_place: bool = False) -> None:
        self.request = request
        self.tensor = tensor.detach()
        self.is_in_place = is_in_place
        self.output: Optional[torch.Tensor] = None
        self.received: Optional[torch.Tensor] = None  # alltoall: the number of rows from each rank
        self.event: Optional[torch.cuda.Event] = None
        if tensor.is_cuda:
            self.event = torch.cuda.Event()
            self.event.record(torch.cuda.current_stream(tensor.device))


StartedWorks = Tuple[Works, Callable[[], None]]


class TorchBackend:
    """``group``: of all ranks; ``None`` for a single process. ``fast_path``: a second group of all ranks, by gloo, for
    operations that skip the negotiation.
    """

    def __init__(
        self,
        rank: int,
        group: Optional[dist.ProcessGroup],
        fast_path: Optional[dist.ProcessGroup] = None,
    ) -> None:
        self._rank = rank
        self.has_fast_path = fast_path is not None
        self._groups: Dict[int, Any] = {GLOBAL_SET: group, FAST_PATH: fast_path}
        self._streams: Dict[torch.device, torch.cuda.Stream] = {}
        self._starters = {
            ALLREDUCE: self._allreduce,
            ALLGATHER: self._allgather,
            BROADCAST: self._broadcast,
            ALLTOALL: self._alltoall,
            REDUCESCATTER: self._reducescatter,
        }

    def start(
        self, response: CollectiveResponse, entries: Sequence[Optional[TensorEntry]], members: Sequence[int]
    ) -> CpuBatch | CudaBatch:
        if response.kind == ADD_SET:
            self._add_set(response, entries)
        elif response.kind == REMOVE_SET:
            self._remove_set(response.result)
        starter = self._starters.get(response.kind)
        if starter is None:  # the operation is only an agreement
            return CpuBatch([], _no_op)
        device = next((entry.tensor.device for entry in entries if entry is not None), None)
        if device is None:
            device = (
                torch.device(response.zeros_like[0].device, torch.cuda.current_device()) if _is_cuda(response) else None
            )
        if device is None or device.type != "cuda":
            return CpuBatch(*starter(response, entries, members))
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = torch.cuda.Stream(device)
        with torch.cuda.stream(stream):
            for entry in entries:
                if entry is not None and entry.event is not None:
                    stream.wait_event(entry.event)
                    entry.tensor.record_stream(stream)
            works, finish = starter(response, entries, members)
            for work in works:
                work.wait()  # NCCL: this stream waits, not this thread
            finish()
            done = torch.cuda.Event()
            done.record(stream)
        return CudaBatch(
            works, done, [entry.output for entry in entries if entry is not None and entry.output is not None]
        )

    def abort(self) -> None:
        for group in self._groups.values():
            _abort_group(group)

    def abort_fast_path(self) -> None:
        _abort_group(self._groups[FAST_PATH])

    def close(self) -> None:
        groups = dict(self._groups)
        self._groups.clear()
        for group in groups.values():
            if group is not None and dist.is_initialized():
                dist.destroy_process_group(group)

    def start_on_fast_path(self, tensor: torch.Tensor, op: str) -> CpuBatch:
        """Start an allreduce in place. ``tensor``: contiguous, on the CPU, of a type that gloo supports."""
        return CpuBatch([self._groups[FAST_PATH].allreduce([tensor], _allreduce_options(op))], _no_op)

    # Operations: each starts its collectives and returns a function that finishes it.

    def _allreduce(
        self, response: CollectiveResponse, entries: Sequence[Optional[TensorEntry]], members: Sequence[int]
    ) -> StartedWorks:
        requests = _requests(response, entries)
        first, only = requests[0], entries[0]
        if first.op == ADASUM:
            return self._adasum(response, entries, members)
        if len(entries) == 1 and only is not None:
            # Use the tensor itself as the buffer if possible.
            flat = only.tensor if only.is_in_place and only.tensor.is_contiguous() else _copy(only.tensor)
        else:
            flat = torch.cat([_flat_input(entry, request) for entry, request in zip(entries, requests)])
        wire = flat.to(_WIRE_TYPES[flat.dtype]) if flat.dtype in _WIRE_TYPES else flat
        _scale(wire, first.prescale)
        works = []
        group = self._groups[response.process_set]
        if group is not None:
            works.append(_start_allreduce(wire, first.op, group))

        def finish() -> None:
            if first.op == AVERAGE:
                divide(wire, len(members))
            _scale(wire, first.postscale)
            if wire is not flat:
                flat.copy_(wire)
            if len(entries) == 1 and only is not None:
                _deliver(only, flat)
                return
            parts = flat.split([math.prod(request.shape) for request in requests])
            for entry, part in zip(entries, parts):
                if entry is not None:
                    _deliver(entry, part.view(entry.tensor.shape))

        return works, finish

    def _adasum(
        self, response: CollectiveResponse, entries: Sequence[Optional[TensorEntry]], members: Sequence[int]
    ) -> StartedWorks:
        """Every rank gathers all tensors and adds them pairwise, which is Adasum's reduction tree."""
        (entry,) = entries
        assert entry is not None  # noqa: S101 (a joined rank takes no part in an Adasum: zeros would halve the result)
        flat = _copy(entry.tensor)
        _scale(flat, entry.request.prescale)
        gathered = flat.new_empty((len(members), *flat.shape))
        works = []
        group = self._groups[response.process_set]
        if group is None:
            gathered[0].copy_(flat)
        else:
            works.append(dist.all_gather(list(gathered.unbind()), flat, group, async_op=True))

        def finish() -> None:
            total = adasum(gathered.unbind(), torch.Tensor.double, lambda part: part.to(flat.dtype))
            _scale(total, entry.request.postscale)
            _deliver(entry, total)

        return works, finish

    def _broadcast(
        self, response: CollectiveResponse, entries: Sequence[Optional[TensorEntry]], _members: Sequence[int]
    ) -> StartedWorks:
        (entry,) = entries
        assert entry is not None  # noqa: S101 (no broadcast among ranks that joined)
        buffer = entry.tensor if entry.is_in_place and entry.tensor.is_contiguous() else _copy(entry.tensor)
        works = []
        group = self._groups[response.process_set]
        if group is not None and buffer.numel():
            works.append(dist.broadcast(_as_bytes(buffer), entry.request.root, group, async_op=True))
        return works, lambda: _deliver(entry, buffer)

    def _allgather(
        self, response: CollectiveResponse, entries: Sequence[Optional[TensorEntry]], members: Sequence[int]
    ) -> StartedWorks:
        (entry,) = entries
        (request,) = _requests(response, entries)
        rows = [int(count) for count in response.rows]
        dtype = entry.tensor.dtype if entry is not None else _dtype(request)
        device = entry.tensor.device if entry is not None else torch.device(request.device)
        output = torch.empty((sum(rows), *request.shape[1:]), dtype=dtype, device=device)
        local = output.new_empty((0, *request.shape[1:])) if entry is None else entry.tensor.contiguous()
        works: Works = []
        group = self._groups[response.process_set]
        if group is None:
            output.copy_(local)
        elif output.numel():
            if len(set(rows)) == 1:
                works.append(_ALL_GATHER(_as_bytes(output), _as_bytes(local), group, async_op=True))
            else:
                # Ragged: each rank's rows go straight to their place.
                for member, part in zip(members, output.split(rows)):
                    if member == self._rank:
                        part.copy_(local)
                    if part.numel():
                        works.append(dist.broadcast(_as_bytes(part), member, group, async_op=True))
        return works, lambda: None if entry is None else _deliver(entry, output)

    def _alltoall(
        self, response: CollectiveResponse, entries: Sequence[Optional[TensorEntry]], members: Sequence[int]
    ) -> StartedWorks:
        (entry,) = entries
        assert entry is not None  # noqa: S101 (no alltoall among ranks that joined)
        position = list(members).index(self._rank)
        sent, received = list(entry.request.splits), [int(splits[position]) for splits in response.rows]
        output = entry.tensor.new_empty((sum(received), *entry.tensor.shape[1:]))
        entry.received = torch.tensor(received, dtype=torch.int32)
        return self._exchange(response.process_set, entry.tensor, output, sent, received), lambda: _deliver(
            entry, output
        )

    def _reducescatter(
        self, response: CollectiveResponse, entries: Sequence[Optional[TensorEntry]], members: Sequence[int]
    ) -> StartedWorks:
        (entry,) = entries
        assert entry is not None  # noqa: S101 (no reducescatter among ranks that joined)
        request = entry.request
        rows = split_rows(request.shape[0], len(members))
        own = rows[list(members).index(self._rank)]
        source = entry.tensor.contiguous()
        if request.prescale != 1.0:
            source = _copy(source)
            _scale(source, request.prescale)
        parts = source.new_empty((len(members), own, *request.shape[1:]))
        received = parts.view(len(members) * own, *request.shape[1:])
        works = self._exchange(response.process_set, source, received, rows, [own] * len(members))

        def finish() -> None:
            total = parts[0].clone()
            for part in parts[1:]:
                total.add_(part)
            if request.op == AVERAGE:
                divide(total, len(members))
            _scale(total, request.postscale)
            _deliver(entry, total)

        return works, finish

    def _exchange(
        self, process_set: int, source: torch.Tensor, output: torch.Tensor, sent: List[int], received: List[int]
    ) -> Works:
        """Rows of ``source`` to each rank, rows of ``output`` from each."""
        group = self._groups[process_set]
        if group is None:
            output.copy_(source)
            return []
        row = source.element_size() * math.prod(source.shape[1:])
        nothing = torch.empty(0, dtype=torch.uint8, device=source.device)
        into = _as_bytes(output) if output.numel() else nothing
        out = _as_bytes(source.contiguous()) if source.numel() else nothing
        sizes_in, sizes_out = [count * row for count in received], [count * row for count in sent]
        return [dist.all_to_all_single(into, out, sizes_in, sizes_out, group, async_op=True)]

    def _add_set(self, response: CollectiveResponse, entries: Sequence[Any]) -> None:
        members = entries[0]
        if self._groups[GLOBAL_SET] is None:
            self._groups[response.result] = None
        else:
            self._groups[response.result] = new_group(list(members))

    def _remove_set(self, number: int) -> None:
        group = self._groups.pop(number, None)
        if group is not None:
            dist.destroy_process_group(group)


def new_group(members: Optional[List[int]] = None, backend: Optional[str] = None) -> dist.ProcessGroup:
    """A group of ``members`` (default: all ranks). Every rank calls it; only members may use the result."""
    group: Any = dist.new_group(members, backend=backend)
    made: dist.ProcessGroup = group
    return made


def _start_allreduce(wire: torch.Tensor, op: str, group: dist.ProcessGroup) -> Any:
    if wire.is_complex():
        return dist.all_reduce(wire, _REDUCE_OPS[op], group, async_op=True)
    # The group's own method skips the checks of torch.distributed, which cost as much as sending a small tensor.
    return group.allreduce([wire], _allreduce_options(op))


@lru_cache(maxsize=None)
def _allreduce_options(op: str) -> Any:
    options: Any = dist.AllreduceOptions()
    options.reduceOp = _REDUCE_OPS[op]
    return options


def _abort_group(group: Optional[dist.ProcessGroup]) -> None:
    stop = getattr(group, "abort", None)
    if stop is not None:
        stop()


def _requests(response: CollectiveResponse, entries: Sequence[Optional[TensorEntry]]) -> List[CollectiveRequest]:
    return [response.zeros_like[i] if entry is None else entry.request for i, entry in enumerate(entries)]


def _is_cuda(response: CollectiveResponse) -> bool:
    return bool(response.zeros_like) and response.zeros_like[0].device == "cuda"


def _dtype(request: CollectiveRequest) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, request.dtype)
    return dtype


def _flat_input(entry: Optional[TensorEntry], request: CollectiveRequest) -> torch.Tensor:
    if entry is not None:
        return entry.tensor.reshape(-1)
    device = torch.device("cuda", torch.cuda.current_device()) if request.device == "cuda" else torch.device("cpu")
    return torch.zeros(math.prod(request.shape), dtype=_dtype(request), device=device)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def _deliver(entry: TensorEntry, result: torch.Tensor) -> None:
    """Set the entry's output to ``result``; in place: copy it there, unless it is there already."""
    if not entry.is_in_place:
        entry.output = result
        return
    if result.data_ptr() != entry.tensor.data_ptr() or result.stride() != entry.tensor.stride():
        entry.tensor.copy_(result)
    entry.output = entry.tensor


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A non-empty contiguous tensor as bytes: data that is only moved may be of a type that gloo does not support."""
    return tensor.view(-1).view(torch.uint8)


def divide(tensor: torch.Tensor, by: int) -> None:
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.div_(by)
    else:
        tensor.div_(by, rounding_mode="trunc")


def _scale(tensor: torch.Tensor, factor: float) -> None:
    if factor == 1.0:
        return
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.mul_(factor)
    else:
        tensor.copy_((tensor.double() * factor).to(tensor.dtype))


def _no_op() -> None:
    pass
