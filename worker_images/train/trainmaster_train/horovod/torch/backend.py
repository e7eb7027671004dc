"""The operations on torch tensors, by torch.distributed: gloo for the CPU, NCCL where each process has a GPU of its own."""

from __future__ import annotations

import math
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
    GLOBAL_SET,
    LANE,
    REDUCESCATTER,
    REMOVE_SET,
    Request,
    Response,
)
from trainmaster_train.horovod.reduction import AVERAGE, adasum, shares
from trainmaster_train.horovod.torch.batches import CpuBatch, CudaBatch, Works

_REDUCE_OPS = {
    AVERAGE: dist.ReduceOp.SUM,
    "sum": dist.ReduceOp.SUM,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "product": dist.ReduceOp.PRODUCT,
}
# What gloo cannot add travels as the next type that it can.
_WIRE_TYPES = {torch.int16: torch.int32, torch.bool: torch.uint8}
# The name changed with torch 2.13.
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class Job:
    """One tensor on its way. ``output`` is the result, the input itself where it is changed in place."""

    __slots__ = ("event", "is_in_place", "output", "received", "request", "tensor")

    def __init__(self, request: Request, tensor: torch.Tensor, *, is_in_place: bool = False) -> None:
        self.request = request
        self.tensor = tensor.detach()
        self.is_in_place = is_in_place
        self.output: Optional[torch.Tensor] = None
        self.received: Optional[torch.Tensor] = None  # of an alltoall: the rows from each rank
        self.event: Optional[torch.cuda.Event] = None
        if tensor.is_cuda:
            self.event = torch.cuda.Event()
            self.event.record(torch.cuda.current_stream(tensor.device))


Started = Tuple[Works, Callable[[], None]]


class TorchBackend:
    """``group``: of all ranks; ``None`` for a lone process. ``lane``: a second one of all ranks, by gloo, for what goes
    unasked.
    """

    def __init__(
        self,
        rank: int,
        group: Optional[dist.ProcessGroup],
        lane: Optional[dist.ProcessGroup] = None,
    ) -> None:
        self._rank = rank
        self.has_lane = lane is not None
        self._groups: Dict[int, Any] = {GLOBAL_SET: group, LANE: lane}
        self._streams: Dict[torch.device, torch.cuda.Stream] = {}
        self._starters = {
            ALLREDUCE: self._allreduce,
            ALLGATHER: self._allgather,
            BROADCAST: self._broadcast,
            ALLTOALL: self._alltoall,
            REDUCESCATTER: self._reducescatter,
        }

    def start(self, response: Response, jobs: Sequence[Optional[Job]], members: Sequence[int]) -> CpuBatch | CudaBatch:
        if response.kind == ADD_SET:
            self._add_set(response, jobs)
        elif response.kind == REMOVE_SET:
            self._remove_set(response.last)
        starter = self._starters.get(response.kind)
        if starter is None:  # to agree is all there is to it
            return CpuBatch([], _nothing)
        device = next((job.tensor.device for job in jobs if job is not None), None)
        if device is None:
            device = torch.device(response.like[0].device, torch.cuda.current_device()) if _is_cuda(response) else None
        if device is None or device.type != "cuda":
            return CpuBatch(*starter(response, jobs, members))
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = torch.cuda.Stream(device)
        with torch.cuda.stream(stream):
            for job in jobs:
                if job is not None and job.event is not None:
                    stream.wait_event(job.event)
                    job.tensor.record_stream(stream)
            works, finish = starter(response, jobs, members)
            for work in works:
                work.wait()  # NCCL: this stream waits, not this thread
            finish()
            done = torch.cuda.Event()
            done.record(stream)
        return CudaBatch(works, done, [job.output for job in jobs if job is not None and job.output is not None])

    def abort(self) -> None:
        for group in self._groups.values():
            _stop(group)

    def abort_lane(self) -> None:
        _stop(self._groups[LANE])

    def close(self) -> None:
        groups = dict(self._groups)
        self._groups.clear()
        for group in groups.values():
            if group is not None and dist.is_initialized():
                dist.destroy_process_group(group)

    def start_on_lane(self, tensor: torch.Tensor, op: str) -> CpuBatch:
        """A sum, or whatever ``op`` is, on ``tensor`` itself: contiguous, on the CPU, of a type that gloo adds."""
        return CpuBatch([self._groups[LANE].allreduce([tensor], _allreduce_options(op))], _nothing)

    # Operations: each starts its collectives and says how to finish.

    def _allreduce(self, response: Response, jobs: Sequence[Optional[Job]], members: Sequence[int]) -> Started:
        requests = _requests(response, jobs)
        first, only = requests[0], jobs[0]
        if first.op == ADASUM:
            return self._adasum(response, jobs, members)
        if len(jobs) == 1 and only is not None:
            # The tensor itself is the buffer, if it can be.
            flat = only.tensor if only.is_in_place and only.tensor.is_contiguous() else _copy(only.tensor)
        else:
            flat = torch.cat([_flat_input(job, request) for job, request in zip(jobs, requests)])
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
            if len(jobs) == 1 and only is not None:
                _put(only, flat)
                return
            parts = flat.split([math.prod(request.shape) for request in requests])
            for job, part in zip(jobs, parts):
                if job is not None:
                    _put(job, part.view(job.tensor.shape))

        return works, finish

    def _adasum(self, response: Response, jobs: Sequence[Optional[Job]], members: Sequence[int]) -> Started:
        """Every rank gets all tensors and adds them pairwise, which is Adasum's tree."""
        (job,) = jobs
        assert job is not None  # noqa: S101 (who joined takes no part in an Adasum: its zeros would halve the others)
        flat = _copy(job.tensor)
        _scale(flat, job.request.prescale)
        gathered = flat.new_empty((len(members), *flat.shape))
        works = []
        group = self._groups[response.process_set]
        if group is None:
            gathered[0].copy_(flat)
        else:
            works.append(dist.all_gather(list(gathered.unbind()), flat, group, async_op=True))

        def finish() -> None:
            total = adasum(gathered.unbind(), torch.Tensor.double, lambda part: part.to(flat.dtype))
            _scale(total, job.request.postscale)
            _put(job, total)

        return works, finish

    def _broadcast(self, response: Response, jobs: Sequence[Optional[Job]], _members: Sequence[int]) -> Started:
        (job,) = jobs
        assert job is not None  # noqa: S101 (no broadcast among ranks that joined)
        buffer = job.tensor if job.is_in_place and job.tensor.is_contiguous() else _copy(job.tensor)
        works = []
        group = self._groups[response.process_set]
        if group is not None and buffer.numel():
            works.append(dist.broadcast(_bytes(buffer), job.request.root, group, async_op=True))
        return works, lambda: _put(job, buffer)

    def _allgather(self, response: Response, jobs: Sequence[Optional[Job]], members: Sequence[int]) -> Started:
        (job,) = jobs
        (request,) = _requests(response, jobs)
        rows = [int(count) for count in response.rows]
        dtype = job.tensor.dtype if job is not None else _dtype(request)
        device = job.tensor.device if job is not None else torch.device(request.device)
        output = torch.empty((sum(rows), *request.shape[1:]), dtype=dtype, device=device)
        mine = output.new_empty((0, *request.shape[1:])) if job is None else job.tensor.contiguous()
        works: Works = []
        group = self._groups[response.process_set]
        if group is None:
            output.copy_(mine)
        elif output.numel():
            if len(set(rows)) == 1:
                works.append(_ALL_GATHER(_bytes(output), _bytes(mine), group, async_op=True))
            else:
                # Ragged: each rank's rows go straight to their place.
                for member, part in zip(members, output.split(rows)):
                    if member == self._rank:
                        part.copy_(mine)
                    if part.numel():
                        works.append(dist.broadcast(_bytes(part), member, group, async_op=True))
        return works, lambda: None if job is None else _put(job, output)

    def _alltoall(self, response: Response, jobs: Sequence[Optional[Job]], members: Sequence[int]) -> Started:
        (job,) = jobs
        assert job is not None  # noqa: S101 (no alltoall among ranks that joined)
        place = list(members).index(self._rank)
        sent, received = list(job.request.splits), [int(splits[place]) for splits in response.rows]
        output = job.tensor.new_empty((sum(received), *job.tensor.shape[1:]))
        job.received = torch.tensor(received, dtype=torch.int32)
        return self._exchange(response.process_set, job.tensor, output, sent, received), lambda: _put(job, output)

    def _reducescatter(self, response: Response, jobs: Sequence[Optional[Job]], members: Sequence[int]) -> Started:
        (job,) = jobs
        assert job is not None  # noqa: S101 (no reducescatter among ranks that joined)
        request = job.request
        rows = shares(request.shape[0], len(members))
        own = rows[list(members).index(self._rank)]
        source = job.tensor.contiguous()
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
            _put(job, total)

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
        into = _bytes(output) if output.numel() else nothing
        out = _bytes(source.contiguous()) if source.numel() else nothing
        sizes_in, sizes_out = [count * row for count in received], [count * row for count in sent]
        return [dist.all_to_all_single(into, out, sizes_in, sizes_out, group, async_op=True)]

    def _add_set(self, response: Response, jobs: Sequence[Any]) -> None:
        members = jobs[0]
        if self._groups[GLOBAL_SET] is None:
            self._groups[response.last] = None
        else:
            self._groups[response.last] = new_group(list(members))

    def _remove_set(self, number: int) -> None:
        group = self._groups.pop(number, None)
        if group is not None:
            dist.destroy_process_group(group)


def new_group(members: Optional[List[int]] = None, backend: Optional[str] = None) -> dist.ProcessGroup:
    """A group of ``members`` (all ranks). Every rank calls it; who is no member gets one that it must not use."""
    group: Any = dist.new_group(members, backend=backend)
    made: dist.ProcessGroup = group
    return made


def _start_allreduce(wire: torch.Tensor, op: str, group: dist.ProcessGroup) -> Any:
    if wire.is_complex():
        return dist.all_reduce(wire, _REDUCE_OPS[op], group, async_op=True)
    # The group's own, without what torch.distributed looks after on the way: a small tensor is there as soon.
    return group.allreduce([wire], _allreduce_options(op))


@lru_cache(maxsize=None)
def _allreduce_options(op: str) -> Any:
    options: Any = dist.AllreduceOptions()
    options.reduceOp = _REDUCE_OPS[op]
    return options


def _stop(group: Optional[dist.ProcessGroup]) -> None:
    stop = getattr(group, "abort", None)
    if stop is not None:
        stop()


def _requests(response: Response, jobs: Sequence[Optional[Job]]) -> List[Request]:
    return [response.like[i] if job is None else job.request for i, job in enumerate(jobs)]


def _is_cuda(response: Response) -> bool:
    return bool(response.like) and response.like[0].device == "cuda"


def _dtype(request: Request) -> torch.dtype:
    found: torch.dtype = getattr(torch, request.dtype)
    return found


def _flat_input(job: Optional[Job], request: Request) -> torch.Tensor:
    if job is not None:
        return job.tensor.reshape(-1)
    device = torch.device("cuda", torch.cuda.current_device()) if request.device == "cuda" else torch.device("cpu")
    return torch.zeros(math.prod(request.shape), dtype=_dtype(request), device=device)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def _put(job: Job, result: torch.Tensor) -> None:
    """``result`` becomes the job's output; in place: is copied there, unless it is there."""
    if not job.is_in_place:
        job.output = result
        return
    if result.data_ptr() != job.tensor.data_ptr() or result.stride() != job.tensor.stride():
        job.tensor.copy_(result)
    job.output = job.tensor


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a contiguous tensor with something in it: what is only moved needs no type that gloo knows."""
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


def _nothing() -> None:
    pass
