"""``hvd.init()`` for torch: ranks, process sets, available transports, and torch.distributed's default group."""

from __future__ import annotations

import atexit
import os
import socket
from dataclasses import replace
from datetime import timedelta
from typing import Any, Dict, Optional, Tuple

import torch
import torch.distributed as dist

from trainmaster_train import elastic
from trainmaster_train.horovod.errors import HorovodInternalError, first_line
from trainmaster_train.horovod.gang import ProcessGang, rendezvous
from trainmaster_train.horovod.session import RENDEZVOUS_S, ElasticMembership, HorovodSession
from trainmaster_train.horovod.settings import HorovodSettings, own_announcement, rank_and_size, ranks_of
from trainmaster_train.horovod.torch.backend import TorchBackend, new_group


def leave_group() -> None:
    elastic.Group().leave()


def join_group(world: elastic.ElasticWorld, timeout_s: float) -> None:
    """Form torch.distributed's default group from ``world``.

    Raises:
        HorovodInternalError: a process did not come, or there is a newer world.
    """
    try:
        elastic.Group("gloo", timeout_s).join(world)
    except elastic.WorldChanged:
        raise HorovodInternalError(f"world {world.number} is over: there is a newer one.") from None
    except elastic.PeerLost as lost:
        raise HorovodInternalError(str(lost)) from None


membership = ElasticMembership(leave_group)

_RENDEZVOUS_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "HOROVOD_RANK", "HOROVOD_SIZE")


class OwnedDefaultGroup:
    """torch.distributed's default group, if ``hvd.init()`` created it.

    It outlives ``hvd.shutdown()``, for the next ``hvd.init()`` at the same address. The ranks shut down one after
    another: if each destroyed the group then, the first one to return would still find rank 0's old store at the same
    address, and in it the addresses of ranks that are gone.
    """

    def __init__(self) -> None:
        self._made_at: Optional[Tuple[Optional[str], ...]] = None

    def remember(self) -> None:
        """Note that the group was just created, at the address in the environment."""
        self._made_at = _rendezvous_address()

    def leave_if_moved(self) -> None:
        """Destroy the group if the environment names another address by now."""
        if self._made_at != _rendezvous_address():
            self.leave()

    def leave(self) -> None:
        """Destroy the group; does nothing if the script itself created it."""
        is_own, self._made_at = self._made_at is not None, None
        if is_own and dist.is_initialized():
            dist.destroy_process_group()


def _rendezvous_address() -> Tuple[Optional[str], ...]:
    return tuple(os.environ.get(name) for name in _RENDEZVOUS_VARIABLES)


# A group connects every pair of ranks; above this size a second group costs more than the fast path gains.
_FAST_PATH_MAX_RANKS = 64


def gloo_built() -> bool:
    return dist.is_gloo_available()


def gloo_enabled() -> bool:
    return dist.is_gloo_available()


def nccl_built() -> int:
    """NCCL's version as one number, as in Horovod; 0 without NCCL."""
    if not (torch.cuda.is_available() and dist.is_nccl_available()):
        return 0
    from torch.cuda import nccl

    major, minor, patch = (*nccl.version(), 0, 0)[:3]
    return int(major) * 10000 + int(minor) * 100 + int(patch)


def cuda_built() -> bool:
    return torch.version.cuda is not None


def rocm_built() -> bool:
    return torch.version.hip is not None


def _form_gang(settings: HorovodSettings) -> ProcessGang:
    announcement = own_announcement()
    _default_group.leave_if_moved()
    if dist.is_initialized():
        rank, size = dist.get_rank(), dist.get_world_size()
    else:
        rank, size = rank_and_size()
        world = membership.own()
        if world is not None and size > 1:
            join_group(world, settings.start_s)
            _default_group.remember()
            settings = replace(settings, start_s=min(settings.start_s, RENDEZVOUS_S))
        elif size > 1:
            _init_default(rank, size, settings)
            _default_group.remember()
    if size == 1:
        own_ranks = ranks_of(0, [announcement])
        return ProcessGang(own_ranks, {}, TorchBackend(0, None), settings)
    try:
        return _connect_gang(rank, size, announcement, settings)
    except HorovodInternalError:
        _default_group.leave()
        raise
    except RuntimeError as error:
        _default_group.leave()
        raise HorovodInternalError(f"hvd.init: rank {rank} lost the others ({first_line(error)}).") from error


def _connect_gang(rank: int, size: int, announcement: Dict[str, Any], settings: HorovodSettings) -> ProcessGang:
    links, announcements = rendezvous(
        rank,
        size,
        announcement,
        rank_0_host=os.environ.get("MASTER_ADDR") or socket.gethostname(),
        publish=_publish,
        fetch=_fetch,
        settings=settings,
    )
    own_ranks = ranks_of(rank, announcements)
    # A separate group: its operations run in the negotiated order, whatever the script does with other groups.
    group = new_group(backend=_backends(own_ranks.local_size))
    fast_path = new_group(backend="gloo") if size <= _FAST_PATH_MAX_RANKS else None
    return ProcessGang(own_ranks, links, TorchBackend(rank, group, fast_path), settings)


def _init_default(rank: int, size: int, settings: HorovodSettings) -> None:
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise ValueError(
            f"{missing[0]} is not set, but this is rank {rank} of {size}: start the script by the platform, by "
            "torchrun, or with MASTER_ADDR and MASTER_PORT of rank 0."
        )
    timeout = timedelta(seconds=settings.start_s)
    try:
        if os.environ.get("WORLD_SIZE"):  # torchrun has a store of its own, which only env:// can use
            dist.init_process_group("gloo", timeout=timeout)
        else:
            dist.init_process_group("gloo", timeout=timeout, rank=rank, world_size=size)
    except (RuntimeError, ValueError) as error:
        raise HorovodInternalError(
            f"hvd.init: rank {rank} did not meet all {size} ranks at {os.environ['MASTER_ADDR']}:"
            f"{os.environ['MASTER_PORT']} within {settings.start_s:g} s ({first_line(error)})."
        ) from error


def _backends(local_size: int) -> str:
    if not torch.cuda.is_available():
        return "gloo"
    # NCCL needs a GPU for each process; for a shared GPU gloo moves the tensors through the host's memory.
    has_own_gpu = dist.is_nccl_available() and torch.cuda.device_count() >= local_size
    return "cpu:gloo,cuda:nccl" if has_own_gpu else "cpu:gloo,cuda:gloo"


def _publish(text: str) -> None:
    dist.broadcast_object_list([text], src=0)


def _fetch() -> str:
    box = [""]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def leave() -> None:
    """``hvd.shutdown()`` before the process joins another gang."""
    _session.shutdown()
    _default_group.leave()


_default_group = OwnedDefaultGroup()
atexit.register(_default_group.leave)  # after the session's end, which is registered later
_session = HorovodSession(_form_gang, membership)
init = _session.init
shutdown = _session.shutdown
is_initialized = _session.is_initialized
gang = _session.gang
rank = _session.rank
size = _session.size
local_rank = _session.local_rank
local_size = _session.local_size
cross_rank = _session.cross_rank
cross_size = _session.cross_size
is_homogeneous = _session.is_homogeneous
barrier = _session.barrier
add_process_set = _session.add_process_set
remove_process_set = _session.remove_process_set
global_process_set = _session.global_process_set
