"""``hvd.init()`` and what it knows afterwards: ranks, process sets, what is built in."""

from __future__ import annotations

import atexit
import os
import socket
from dataclasses import replace
from datetime import timedelta
from typing import Any, Dict

import torch
import torch.distributed as dist

from trainmaster_train.horovod import ranks as places
from trainmaster_train.horovod.errors import HorovodInternalError, first_line
from trainmaster_train.horovod.gang import Gang, meet
from trainmaster_train.horovod.session import Session
from trainmaster_train.horovod.settings import Settings
from trainmaster_train.horovod.torch.backend import TorchBackend, new_group
from trainmaster_train.horovod.torch.default import OwnDefault
from trainmaster_train.horovod.torch.worlds import join_group, worlds
from trainmaster_train.horovod.worlds import MEET_S

# A group connects each rank with each other; of so many ranks, a second one costs more than the lane gains.
_LANE_SIZE = 64


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


def _join(settings: Settings) -> Gang:
    said = places.hello()
    _default.leave_elsewhere()
    if dist.is_initialized():
        rank, size = dist.get_rank(), dist.get_world_size()
    else:
        rank, size = places.world()
        world = worlds.own()
        if world is not None and size > 1:
            join_group(world, settings.start_s)
            _default.note()
            settings = replace(settings, start_s=min(settings.start_s, MEET_S))
        elif size > 1:
            _init_default(rank, size, settings)
            _default.note()
    if size == 1:
        place = places.place_of(0, [said])
        return Gang(place, {}, TorchBackend(0, None), settings)
    try:
        return _meet(rank, size, said, settings)
    except HorovodInternalError:
        _default.leave()
        raise
    except RuntimeError as error:
        _default.leave()
        raise HorovodInternalError(f"hvd.init: rank {rank} lost the others ({first_line(error)}).") from error


def _meet(rank: int, size: int, said: Dict[str, Any], settings: Settings) -> Gang:
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
    lane = new_group(backend="gloo") if size <= _LANE_SIZE else None
    return Gang(place, links, TorchBackend(rank, group, lane), settings)


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


def leave() -> None:
    """``hvd.shutdown()`` of a gang that meets anew with others."""
    _session.shutdown()
    _default.leave()


_default = OwnDefault()
atexit.register(_default.leave)  # after the session's end, which is registered later
_session = Session(_join, worlds)
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
