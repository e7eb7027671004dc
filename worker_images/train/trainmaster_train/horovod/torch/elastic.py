"""``hvd.elastic`` for torch: training that continues when the gang changes."""

from __future__ import annotations

import copy
import math
from typing import Any, Callable, Dict, Iterator, List, Optional, Sized

import torch

from trainmaster_train.horovod.elastic import ObjectState, State, register_rejoin, run_elastic
from trainmaster_train.horovod.errors import HorovodInternalError, HostsUpdatedInterrupt
from trainmaster_train.horovod.reduction import Max
from trainmaster_train.horovod.torch import basics
from trainmaster_train.horovod.torch.functions import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from trainmaster_train.horovod.torch.ops import allreduce

__all__ = [
    "ElasticSampler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "TorchState",
    "register_rejoin",
    "run",
]


def run(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator: ``function(state, …)`` is run again with each new gang; after a loss, from the last commit.

    In an elastic job of the platform the gangs are its worlds; elsewhere see :func:`register_rejoin`.
    """
    return run_elastic(function, basics.init, basics.leave, basics.barrier, basics.membership.follow)


class TorchState(ObjectState):
    """Models, optimizers, samplers and plain values: ``TorchState(model=…, optimizer=…, epoch=0, batch=0)``."""

    def __init__(
        self,
        model: Optional[torch.nn.Module] = None,
        optimizer: Optional[torch.optim.Optimizer] = None,
        **values: Any,
    ) -> None:
        attributes = {"model": model, "optimizer": optimizer, **values}
        self._parts = {name: value for name, value in attributes.items() if _has_state(value)}
        for name, value in self._parts.items():
            setattr(self, name, value)
        self._saved: Dict[str, Any] = {}
        plain = {name: value for name, value in attributes.items() if name not in self._parts and value is not None}
        super().__init__(_any_rank, broadcast_object, allgather_object, **plain)
        self.save()

    def save(self) -> None:
        self._saved = {name: copy.deepcopy(part.state_dict()) for name, part in self._parts.items()}
        super().save()

    def restore(self) -> None:
        for name, part in self._parts.items():
            part.load_state_dict(copy.deepcopy(self._saved[name]))
        super().restore()

    def sync(self) -> None:
        """All ranks take the models and optimizers of the newest commit, or rank 0's before the first; the processed
        indices of samplers are merged from all ranks.
        """
        source = self.newest_rank()
        for part in self._parts.values():
            if isinstance(part, torch.nn.Module):
                broadcast_parameters(part.state_dict(), source)
            elif isinstance(part, torch.optim.Optimizer):
                broadcast_optimizer_state(part, source)
            elif isinstance(part, ElasticSampler):
                part.merge(allgather_object(part.state_dict()), source)
            else:
                part.load_state_dict(broadcast_object(part.state_dict(), source))
        # Not self.restore(): that would undo the synchronization.
        self._saved = {name: copy.deepcopy(part.state_dict()) for name, part in self._parts.items()}
        self.sync_values(source)
        super().restore()

    def reset(self) -> None:
        for part in self._parts.values():
            if isinstance(part, ElasticSampler):
                part.reset()


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Partitions a data set's indices over the ranks; after a change of the gang, only those not yet processed.

    Call :meth:`record_batch` after each batch, and :meth:`set_epoch` at the end of each epoch.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_indices: List[int] = []
        self.rank, self.num_replicas = 0, 1
        self.remaining_indices: List[int] = []
        self.num_samples = self.total_size = 0
        self.indices: List[int] = []
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch: a new order, nothing processed yet."""
        self.epoch = epoch
        self.processed_indices = []
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Note that this rank has processed a batch, so that it is not repeated in this epoch."""
        self.record_indices(self.get_indices(batch_idx, batch_size))

    def record_indices(self, indices: List[int]) -> None:
        self.processed_indices = [*self.processed_indices, *indices]

    def get_indices(self, batch_idx: int, batch_size: int) -> List[int]:
        return self.indices[batch_idx * batch_size : (batch_idx + 1) * batch_size]

    def state_dict(self) -> Dict[str, Any]:
        return {"epoch": self.epoch, "processed_indices": list(self.processed_indices)}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        self.epoch = state_dict["epoch"]
        self.processed_indices = list(state_dict["processed_indices"])
        self.reset()

    def merge(self, states: List[Dict[str, Any]], source: int = 0) -> None:
        """Merge the indices that all ranks have processed in the epoch of rank ``source``."""
        epoch = states[source]["epoch"]
        done = sorted({index for state in states if state["epoch"] == epoch for index in state["processed_indices"]})
        self.load_state_dict({"epoch": epoch, "processed_indices": done})

    def reset(self) -> None:
        """Partition the remaining indices again over the current ranks."""
        if basics.is_initialized():
            self.rank, self.num_replicas = basics.rank(), basics.size()
        done = set(self.processed_indices)
        order = list(range(len(self.dataset)))
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
            order = torch.randperm(len(order), generator=generator).tolist()
        self.remaining_indices = [index for index in order if index not in done]
        self.num_samples = math.ceil(len(self.remaining_indices) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        self.indices = self._own()

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples

    def _own(self) -> List[int]:
        left = self.remaining_indices
        if not left:
            return []
        # All ranks get the same number: the first indices are repeated as padding.
        padded = (left * math.ceil(self.total_size / len(left)))[: self.total_size]
        return padded[self.rank :: self.num_replicas]


def _has_state(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _any_rank(value: bool) -> bool:
    return bool(allreduce(torch.tensor([int(value)]), op=Max).item())
