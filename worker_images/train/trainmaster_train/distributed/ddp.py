"""DistributedDataParallel with configurable compression, gradient accumulation and the step timer; timing of FSDP;
batches, with a warning if all processes would read the same data.
"""

from __future__ import annotations

import os
import sys
import weakref
from contextlib import contextmanager
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple, TypeVar
from weakref import WeakKeyDictionary

from trainmaster_train import steps

T = TypeVar("T")

COMPRESSIONS = ("none", "fp16", "bf16", "powersgd")
_VARIABLE = "TRAINMASTER_COMPRESSION"
# PowerSGD (Vogels et al., 2019) works badly on the first, large gradients; torch's own default is 1000 steps.
POWERSGD_START_STEP = 100
# With CUDA, reading torch's measurements waits for the device; at this interval the cost is negligible.
_READ_EVERY_ON_GPU = 100
# Optimizers whose steps end the timer's steps: a script may wrap several models in turn with one optimizer.
_step_optimizers: Any = weakref.WeakSet()

_given_warnings: Set[str] = set()
_last_epoch: "WeakKeyDictionary[Any, int]" = WeakKeyDictionary()  # of each DistributedSampler


def watch_sharded(model: Any) -> bool:
    """Time the collectives of all modules in ``model`` with ``fully_shard``; ``False`` if there is none."""
    has_sharded = False
    for module in model.modules():
        state = getattr(module, "_get_fsdp_state", None)
        if state is None:
            continue
        has_sharded = True
        for group in _groups(state()):
            for name in ("_all_gather_comm", "_reduce_scatter_comm"):
                comm = getattr(group, name, None)
                if comm is not None and not isinstance(comm, _TimedCollective):
                    # torch's public `set_custom_…` does the same, but does not return the previous value.
                    setattr(group, name, _TimedCollective(comm))
    return has_sharded


def _groups(state: Any) -> Sequence[Any]:
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is not None:
        return tuple(groups)
    group = getattr(state, "_fsdp_param_group", None)  # before torch 2.13 one module had one at most
    return () if group is None else (group,)


class _TimedCollective:
    """A timed collective of FSDP. On CPUs training waits in it; on a GPU it is only enqueued on a stream."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self.allocate = comm.allocate

    def __call__(self, output_tensor: Any, input_tensor: Any, group: Any, **options: Any) -> Any:
        timer = steps.timer()
        with timer.part(steps.COMMUNICATION):
            work = self._comm(output_tensor=output_tensor, input_tensor=input_tensor, group=group, **options)
        full_tensor = max(output_tensor, input_tensor, key=lambda tensor: tensor.numel())
        # As a ring: each process sends all shares but one.
        timer.add_bytes_sent(full_tensor.numel() * full_tensor.element_size() * (group.size() - 1) // group.size())
        return work


def wrap(
    model: Any,
    *,
    optimizer: Optional[Any] = None,
    compression: Optional[str] = None,
    rank: int = 1,
    **options: Any,
) -> Any:
    """``model`` as ``DistributedDataParallel``, with its communication measured by the step timer.

    Args:
        optimizer: its steps end the timer's steps, for a loop without ``with timer.step()``.
        compression: of the gradients on the wire: ``none``, ``fp16``, ``bf16`` or ``powersgd``. Default:
            ``TRAINMASTER_COMPRESSION`` of the environment, which a job's spec can set; else ``none``.
        rank: of PowerSGD's approximation, usually 1 or 2.
        options: those of ``DistributedDataParallel``.

    Raises:
        ValueError: an unknown compression, or one that the model's types do not allow.
    """
    from torch.nn.parallel import DistributedDataParallel

    chosen = compression if compression is not None else os.environ.get(_VARIABLE) or "none"
    if chosen not in COMPRESSIONS:
        name = "compression" if compression is not None else _VARIABLE
        raise ValueError(f"{name}: {chosen!r} is none of {', '.join(COMPRESSIONS)}")
    if chosen == "powersgd":
        options.update(_single_bucket_options(model))
    wrapped = DistributedDataParallel(model, **options)
    ratio = _compress(wrapped, chosen, rank)
    watch(wrapped, optimizer=optimizer, sent_share=ratio)
    return wrapped


def watch(model: Any, *, optimizer: Optional[Any] = None, sent_share: float = 1.0) -> None:
    """Measure the communication of a ``DistributedDataParallel`` that the script creates itself.

    The part ``communication`` is the time that the backward pass waited; overlapped communication is reported apart.
    For a model with ``fully_shard`` the collectives are timed on CPUs, where training waits for them; call this last,
    after FSDP's own settings. It may be called again with the same optimizer, as in each world of elastic training,
    and holds no reference to the model. For any other model only ``optimizer`` is used.

    Args:
        optimizer: as in :func:`wrap`.
        sent_share: share of the gradients' bytes that remains after compression.
    """
    from torch.nn.parallel import DistributedDataParallel

    if not watch_sharded(model) and isinstance(model, DistributedDataParallel):
        forget = steps.timer().at_end(_DdpTiming(model, sent_share).read)
        weakref.finalize(model, forget).atexit = False
    if optimizer is not None and optimizer not in _step_optimizers:
        _step_optimizers.add(optimizer)
        optimizer.register_step_post_hook(_end_step)


def _end_step(*_: Any) -> None:
    steps.timer().end_step()


def accumulate(model: Any, batches: Iterable[T], every: int) -> Iterator[Tuple[T, bool]]:
    """``batches``, each with whether an optimizer step is due after it; gradients are exchanged only then::

        for batch, is_due in accumulate(model, batches, 4):
            (loss_of(batch) / 4).backward()
            if is_due:
                optimizer.step()
                optimizer.zero_grad()

    A step is always due after the last batch, even if its group is incomplete.

    Args:
        model: a ``DistributedDataParallel``, a module that ``fully_shard`` was called on, or a plain one.
    """
    if every < 1:
        raise ValueError(f"every: {every} must be at least 1")
    source = iter(batches)
    try:
        batch = next(source)
    except StopIteration:
        return
    number, is_last = 0, False
    while not is_last:
        number += 1
        try:
            following: List[T] = [next(source)]
        except StopIteration:
            following, is_last = [], True
        if is_last or number % every == 0:
            yield batch, True
        else:
            with _without_sync(model):
                yield batch, False
        if following:
            batch = following[0]


@contextmanager
def _without_sync(model: Any) -> Iterator[None]:
    if hasattr(model, "no_sync"):
        with model.no_sync():
            yield
    elif hasattr(model, "set_requires_gradient_sync"):  # of FSDP
        model.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            model.set_requires_gradient_sync(True)
    else:
        yield


class _DdpTiming:
    """Reads torch's own measurements of each backward pass."""

    def __init__(self, model: Any, sent_share: float) -> None:
        import torch.distributed as dist

        # A weak reference: torch may hang if the model is freed after its process group.
        self._model = weakref.ref(model)
        world_size = dist.get_world_size(model.process_group)
        gradients = sum(
            parameter.numel() * parameter.element_size() for parameter in model.parameters() if parameter.requires_grad
        )
        # A ring sends each byte twice, except for one share (Patarasuk and Yuan, 2009).
        self._sent_bytes = int(gradients * sent_share * 2 * (world_size - 1) / world_size)
        self._is_on_gpu = any(parameter.is_cuda for parameter in model.parameters())
        # Torch has no other way.
        model._set_ddp_runtime_logging_sample_rate(_READ_EVERY_ON_GPU if self._is_on_gpu else 1)  # noqa: SLF001
        self._ended: Optional[int] = None
        self._waited_s = self._hidden_s = 0.0

    def read(self, timer: steps.StepTimer) -> None:
        model = self._model()
        logger = getattr(model, "logger", None)
        if model is None or logger is None:  # the process group is gone
            return
        logger.set_runtime_stats_and_log()
        data = model._get_ddp_logging_data()  # noqa: SLF001 (as above)
        ended = data.get("backward_comm_time_end")
        if ended != self._ended:
            self._ended = ended
            self._hidden_s = max(0, data.get("backward_compute_comm_overlap_time", 0)) / 1e9
            self._waited_s = max(0.0, data.get("backward_comm_time", 0) / 1e9 - self._hidden_s)
        elif not self._is_on_gpu:
            return  # no gradient was exchanged in this step
        timer.claim(steps.COMMUNICATION, self._waited_s)
        timer.add_overlapped(steps.COMMUNICATION, self._hidden_s)
        timer.add_bytes_sent(self._sent_bytes)


def _single_bucket_options(model: Any) -> Dict[str, float]:
    """Options for a single gradient bucket: with two or more, PowerSGD's collectives dead-lock on gloo."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    types = sorted({str(parameter.dtype) for parameter in trained})
    if len(types) > 1:
        raise ValueError(f"compression: powersgd needs parameters of one type; these are {' and '.join(types)}")
    total = sum(parameter.numel() * parameter.element_size() for parameter in trained)
    return {"bucket_cap_mb": total / 2**20 + 1}


def _compress(model: Any, compression: str, rank: int) -> float:
    """Register the hook of ``compression``; returns the share of bytes that remains."""
    if compression == "none":
        return 1.0
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    if compression == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            process_group=model.process_group, matrix_approximation_rank=rank, start_powerSGD_iter=POWERSGD_START_STEP
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        return _powersgd_share(model, rank)
    # torch accepts only its own classes as a hook's annotations, or none, as a lambda has.
    bf16 = lambda group, bucket: _as_bf16(group, bucket)  # noqa: E731, PLW0108 (see above)
    hook = default_hooks.fp16_compress_hook if compression == "fp16" else bf16
    model.register_comm_hook(model.process_group, hook)
    size_bytes = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    half = sum(parameter.numel() * min(2, parameter.element_size()) for parameter in model.parameters())
    return half / size_bytes if size_bytes else 1.0


def _powersgd_share(model: Any, rank: int) -> float:
    """Share of a step's gradients that PowerSGD sends once it has begun: two thin matrices for each large tensor."""
    total = sent = 0
    for parameter in model.parameters():
        rows = parameter.shape[0] if parameter.dim() > 1 else 1
        thin = rank * (rows + parameter.numel() // rows)
        total += parameter.numel()
        sent += thin if parameter.dim() > 1 and thin * 2 < parameter.numel() else parameter.numel()
    return sent / total if total else 1.0


def _as_bf16(group: Any, bucket: Any) -> Any:
    """Gradients as bfloat16 on the wire. torch's own hook rejects every backend except NCCL."""
    import torch
    import torch.distributed as dist

    gradients = bucket.buffer()
    small = gradients.to(torch.bfloat16).div_(dist.get_world_size(group))
    work: Any = dist.all_reduce(small, group=group, async_op=True)
    return work.get_future().then(lambda future: gradients.copy_(future.value()[0]))


def batches(loader: Any) -> Iterator[Any]:
    """The batches of a ``DataLoader``; the step timer measures the time waiting for them.

    Warns once on stderr if the processes would train on the same data: a loader without a ``DistributedSampler``, one
    whose sampler is of another number of processes, or a shuffling sampler whose ``set_epoch`` is never called. The
    loader is not changed.
    """
    sentence = _sampling_problem(loader)
    if sentence is not None and sentence not in _given_warnings:
        _given_warnings.add(sentence)
        print(f"trainmaster: {sentence}.", file=sys.stderr, flush=True)
    return steps.timer().data(loader)


def _sampling_problem(loader: Any) -> Optional[str]:
    import torch.distributed as dist
    from torch.utils.data import BatchSampler, DistributedSampler, IterableDataset, RandomSampler, SequentialSampler

    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    if isinstance(getattr(loader, "dataset", None), IterableDataset):
        return None  # it may partition the data itself
    sampler = getattr(loader, "sampler", None)
    batch_sampler = getattr(loader, "batch_sampler", None)
    if isinstance(batch_sampler, BatchSampler):
        sampler = batch_sampler.sampler
    world_size = dist.get_world_size()
    if isinstance(sampler, (RandomSampler, SequentialSampler)):
        return (
            f"each of the {world_size} processes reads all of the data: give the DataLoader "
            "`sampler=DistributedSampler(dataset)`"
        )
    if not isinstance(sampler, DistributedSampler):
        return None  # a sampler of the user
    if sampler.num_replicas != world_size or sampler.rank != dist.get_rank():
        return (
            f"the DistributedSampler is of process {sampler.rank} of {sampler.num_replicas}, and this is process "
            f"{dist.get_rank()} of {world_size}: create it after init()"
        )
    before = _last_epoch.get(sampler)
    _last_epoch[sampler] = sampler.epoch
    if sampler.shuffle and before == sampler.epoch:
        return (
            "two epochs in the same order: call `sampler.set_epoch(epoch)` at the start of each, or the "
            "DistributedSampler repeats the same shuffle"
        )
    return None
