"""The process group of a training: met by whichever contract is there, left without a dead-lock."""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Optional

from trainmaster_train.distributed.place import find_place

# How long a process that has finished waits for the others before it leaves.
_LEAVE_TIMEOUT = timedelta(minutes=5)
# torch's own.
_MEET_TIMEOUT = timedelta(minutes=5)


class DistributedError(RuntimeError):
    """The processes cannot train together; the message says who or what is missing."""


@dataclass(frozen=True)
class World:
    """All processes of this training. ``device``: a ``torch.device``, this process's own. ``contract``: who told."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    device: Any
    contract: str

    @property
    def is_writer(self) -> bool:
        """Whether this process writes checkpoints and results for all."""
        return self.rank == 0


def init(
    *, backend: Optional[str] = None, local_rank: Optional[int] = None, timeout: Optional[timedelta] = None
) -> World:
    """Meet the other processes of this training and bind this one to its device.

    Reads whichever contract is in the environment, see :func:`find_place`; a process that is alone gets a group of
    its own. A group that exists already is taken as it is.

    Args:
        backend: torch's name for it; unstated ``cpu:gloo,cuda:nccl`` with a GPU, else ``gloo``.
        local_rank: as in :func:`find_place`.
        timeout: for meeting, and of every collective afterwards; torch's own when ``None``.

    Raises:
        ContextError: the environment contradicts itself.
        DistributedError: the others did not come in time.
    """
    import torch
    import torch.distributed as dist

    place = find_place(local_rank=local_rank)
    device = _bind(place.local_rank)
    if not dist.is_initialized():
        # An address in the environment serves torch's own look-ups; the rest of it may be of another contract.
        host, port = place.address or ("127.0.0.1", 0)
        try:
            dist.init_process_group(
                backend or ("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"),
                store=_store(host, port, place.rank, place.world_size, timeout),
                rank=place.rank,
                world_size=place.world_size,
                timeout=timeout,
            )
        except (torch.distributed.DistError, TimeoutError) as error:
            raise DistributedError(
                f"rank {place.rank} of {place.world_size} ({place.contract}) could not meet the others at "
                f"{host}:{port}: look whether all of them were started, and whether that address is rank 0's"
            ) from error
    return World(
        rank=dist.get_rank(),
        size=dist.get_world_size(),
        local_rank=place.local_rank,
        local_size=place.local_world_size,
        device=device,
        contract=place.contract,
    )


def shutdown() -> None:
    """Leave the process group, once all others are done as well.

    Safe where torch alone may hang: a DistributedDataParallel that lives on while the group is destroyed, or is freed
    after it, can wait for ever for a lock; what they hold of the group is let go of first.

    Raises:
        DistributedError: another process did not come in 5 minutes; the message names the ranks (with gloo).
    """
    import torch.distributed as dist

    if not dist.is_initialized():
        return
    try:
        meet(_LEAVE_TIMEOUT)
    except RuntimeError as error:
        raise DistributedError(f"not all processes came to the end: {error}") from error
    _let_go()
    dist.destroy_process_group()


def meet(timeout: timedelta, group: Optional[Any] = None) -> None:
    """Wait for all processes of ``group`` (the default one).

    Raises:
        RuntimeError: some did not come in time; with gloo, also beside NCCL, rank 0 is told which ones.
    """
    import torch.distributed as dist

    if "gloo" in dist.get_backend(group):
        # torch's function of this name refuses a group that has gloo beside another backend; the group itself does it.
        everyone: Any = group or dist.group.WORLD
        everyone.monitored_barrier(timeout, wait_all_ranks=True)
    else:
        dist.barrier(group)


def _let_go() -> None:
    from torch.nn.parallel import DistributedDataParallel

    for thing in gc.get_objects():
        # Asking a thing for its class, as isinstance does, runs code of lazy ones.
        if issubclass(type(thing), DistributedDataParallel):
            thing.__dict__.pop("reducer", None)
            thing.__dict__.pop("logger", None)


def _bind(local_rank: int) -> Any:
    import torch

    if not torch.cuda.is_available():
        return torch.device("cpu")
    # The platform shows a process its own GPUs only; a launcher that shows all of them counts by local rank.
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _store(host: str, port: int, rank: int, world_size: int, timeout: Optional[timedelta]) -> Any:
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined] # torch exports them by a star

    # Under torchrun its agent serves the store at this address; everywhere else rank 0 does.
    is_served = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = TCPStore(host, port, world_size, rank == 0 and not is_served, timeout or _MEET_TIMEOUT)
    if is_served:
        # Each attempt its own keys: the addresses of the dead would be found otherwise.
        return PrefixStore(f"attempt_{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    return store
