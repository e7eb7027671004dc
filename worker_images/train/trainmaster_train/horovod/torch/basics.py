"""``hvd.init()`` and what it knows afterwards: ranks, process sets, what is built in."""

from __future__ import annotations

import atexit
import os
import socket
from dataclasses import replace
from datetime import timedelta
from typing import Iterable, List, Optional, Sequence, Union

import torch
import torch.distributed as dist

from trainmaster_train.horovod import place as places
from trainmaster_train.horovod.errors import HorovodInternalError
from trainmaster_train.horovod.gang import Gang, meet
from trainmaster_train.horovod.messages import GLOBAL_SET
from trainmaster_train.horovod.settings import Settings, read_settings
from trainmaster_train.horovod.torch import worlds
from trainmaster_train.horovod.torch.backend import TorchBackend, new_group

_gang: Optional[Gang] = None


class ProcessSet:
    """Some of the ranks, that run operations among themselves: ``process_set=`` of each operation."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self.ranks: Optional[List[int]] = sorted({int(rank) for rank in ranks})
        self.process_set_id: Optional[int] = None

    def included(self) -> bool:
        """Whether this process is one of them."""
        return gang().place.rank in gang().engine.members(set_number(self))

    def rank(self) -> int:
        """This process's number in the set; -1 where it is not in it."""
        members = gang().engine.members(set_number(self))
        return members.index(gang().place.rank) if self.included() else -1

    def size(self) -> int:
        return len(gang().engine.members(set_number(self)))

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


class _GlobalSet(ProcessSet):
    def __init__(self) -> None:
        super().__init__([])
        self.ranks = None  # all, whatever init finds
        self.process_set_id = GLOBAL_SET


global_process_set = _GlobalSet()


def init(comm: Optional[Sequence[int]] = None, process_sets: Union[str, Sequence[ProcessSet], None] = None) -> None:
    """Meet the other processes. Does nothing the second time.

    The ranks come from ``HOROVOD_RANK``/``HOROVOD_SIZE`` or ``RANK``/``WORLD_SIZE``, the place to meet from
    ``MASTER_ADDR`` and ``MASTER_PORT``: the platform sets them, and so does torchrun. Where torch.distributed is
    initialized already, that world is taken. A process that nothing is said to is alone.

    Args:
        comm: as in Horovod; only all ranks can be given here.
        process_sets: sets to add right away; ``"dynamic"`` is accepted, for sets can always be added.

    Raises:
        HorovodInternalError: not all processes came in time; says which are missing.
        ValueError: a variable holds what it cannot hold.
    """
    global _gang  # noqa: PLW0603 (one gang for each process, as in Horovod)
    if _gang is not None and _gang.engine.failure is None:
        return
    shutdown()
    worlds.wait_to_join()
    _gang = _join_newest(read_settings())
    if comm is not None and sorted(comm) not in ([], list(range(_gang.place.size))):
        shutdown()
        raise ValueError("hvd.init(comm=…) takes all ranks or none here; for some of them use process sets.")
    if process_sets is not None and not isinstance(process_sets, str):
        for process_set in process_sets:
            add_process_set(process_set)


def shutdown() -> None:
    """Leave the gang: what others still want of this process fails at once. ``init`` may be called again."""
    global _gang
    leaving, _gang = _gang, None
    if leaving is not None:
        leaving.close()


atexit.register(shutdown)


def is_initialized() -> bool:
    return _gang is not None


def gang() -> Gang:
    """Raises ``ValueError`` before ``init``, as Horovod does."""
    if _gang is None:
        raise ValueError("Horovod has not been initialized; use hvd.init().")
    return _gang


def rank() -> int:
    return gang().place.rank


def size() -> int:
    return gang().place.size


def local_rank() -> int:
    """Among the processes of this host (of this replica): the number of the process's GPU."""
    return gang().place.local_rank


def local_size() -> int:
    return gang().place.local_size


def cross_rank() -> int:
    """This host's number among those that have a process of this local rank."""
    return gang().place.cross_rank


def cross_size() -> int:
    return gang().place.cross_size


def is_homogeneous() -> bool:
    """Whether all hosts have as many processes."""
    return gang().place.is_homogeneous


def add_process_set(process_set: Union[ProcessSet, Sequence[int]]) -> ProcessSet:
    """Make a process set usable. All ranks call it, members or not, in the same order."""
    added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    if added.process_set_id is not None:
        raise ValueError(f"{added} was added already.")
    added.process_set_id = gang().add_set(added.ranks or [])
    return added


def remove_process_set(process_set: ProcessSet) -> bool:
    """Forget a set; ``False`` for the one of all ranks, and for one that is not there."""
    number = process_set.process_set_id
    if number is None or number == GLOBAL_SET:
        return False
    gang().engine.remove_set(number)
    process_set.process_set_id = None
    return True


def set_number(process_set: ProcessSet) -> int:
    """Raises ``ValueError`` for a set that was never added."""
    if process_set.process_set_id is None:
        raise ValueError(f"{process_set} is not known: call hvd.add_process_set() with it on all ranks first.")
    return process_set.process_set_id


def mpi_built() -> bool:
    return False


def mpi_enabled() -> bool:
    return False


def mpi_threads_supported() -> bool:
    return False


def gloo_built() -> bool:
    return dist.is_gloo_available()


def gloo_enabled() -> bool:
    return dist.is_gloo_available()


def nccl_built() -> int:
    """NCCL's version as one number, as Horovod tells it; 0 without NCCL."""
    if not (torch.cuda.is_available() and dist.is_nccl_available()):
        return 0
    from torch.cuda import nccl

    major, minor, patch = (*nccl.version(), 0, 0)[:3]
    return int(major) * 10000 + int(minor) * 100 + int(patch)


def cuda_built() -> bool:
    return torch.version.cuda is not None


def rocm_built() -> bool:
    return torch.version.hip is not None


def ddl_built() -> bool:
    return False


def ccl_built() -> bool:
    return False


def _join_newest(settings: Settings) -> Gang:
    """Where the platform tells of worlds, one that breaks while all meet is followed by the next."""
    while True:
        try:
            return _join(settings)
        except HorovodInternalError:
            if worlds.own_world() is None or not worlds.rejoin():
                raise


def _join(settings: Settings) -> Gang:
    said = places.hello()
    owns_default = not dist.is_initialized()
    if not owns_default:
        rank, size = dist.get_rank(), dist.get_world_size()
    else:
        rank, size = places.world()
        world = worlds.own_world()
        if world is not None and size > 1:
            worlds.join_group(world, settings.start_s)
            settings = replace(settings, start_s=min(settings.start_s, worlds.MEET_S))
        elif size > 1:
            _init_default(rank, size, settings)
    if size == 1:
        place = places.place_of(0, [said])
        return Gang(place, {}, TorchBackend(0, None), settings)
    links, everybody = meet(
        rank,
        size,
        said,
        rank_0_host=os.environ.get("MASTER_ADDR") or socket.gethostname(),
        publish=_publish,
        fetch=_fetch,
        settings=settings,
    )
    place = places.place_of(rank, everybody)
    # A group of our own: its operations come in the order that the ranks agree on, whatever the script does with others.
    group = new_group(backend=_backends(place.local_size))
    return Gang(place, links, TorchBackend(rank, group, owns_default=owns_default), settings)


def _init_default(rank: int, size: int, settings: Settings) -> None:
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise ValueError(
            f"{missing[0]} is not set, but this is rank {rank} of {size}: start the script by the platform, by torchrun, "
            "or with MASTER_ADDR and MASTER_PORT of rank 0."
        )
    timeout = timedelta(seconds=settings.start_s)
    try:
        if os.environ.get("WORLD_SIZE"):  # torchrun keeps a store of its own, which only env:// alone knows how to use
            dist.init_process_group("gloo", timeout=timeout)
        else:
            dist.init_process_group("gloo", timeout=timeout, rank=rank, world_size=size)
    except (RuntimeError, ValueError) as error:
        first = (str(error).strip().splitlines() or [""])[0]
        raise HorovodInternalError(
            f"hvd.init: rank {rank} did not meet all {size} ranks at {os.environ['MASTER_ADDR']}:"
            f"{os.environ['MASTER_PORT']} within {settings.start_s:g} s ({first})."
        ) from error


def _backends(local_size: int) -> str:
    if not torch.cuda.is_available():
        return "gloo"
    # NCCL wants a GPU for each process; where they share one, gloo carries the tensors through the host's memory.
    has_own_gpu = dist.is_nccl_available() and torch.cuda.device_count() >= local_size
    return "cpu:gloo,cuda:nccl" if has_own_gpu else "cpu:gloo,cuda:gloo"


def _publish(text: str) -> None:
    dist.broadcast_object_list([text], src=0)


def _fetch() -> str:
    told = [""]
    dist.broadcast_object_list(told, src=0)
    return told[0]
