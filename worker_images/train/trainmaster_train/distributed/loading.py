"""Batches for a training of several processes, with a warning if all of them would read the same data."""

from __future__ import annotations

import sys
from typing import Any, Iterator, Optional, Set
from weakref import WeakKeyDictionary

from trainmaster_train import steps

_warned: Set[str] = set()
_last_epoch: "WeakKeyDictionary[Any, int]" = WeakKeyDictionary()  # of each DistributedSampler


def batches(loader: Any) -> Iterator[Any]:
    """The batches of a ``DataLoader``; the step timer measures the time waiting for them.

    Warns once on stderr if the processes would train on the same data: a loader without a ``DistributedSampler``, one
    whose sampler is of another number of processes, or a shuffling sampler whose ``set_epoch`` is never called. The
    loader is not changed.
    """
    sentence = _problem(loader)
    if sentence is not None and sentence not in _warned:
        _warned.add(sentence)
        print(f"trainmaster: {sentence}.", file=sys.stderr, flush=True)
    return steps.timer().data(loader)


def _problem(loader: Any) -> Optional[str]:
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
