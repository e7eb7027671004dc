"""Horovod's settings and ranks of a process, from its environment: supported variables, and those of any launcher."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple

from trainmaster_train.context import environment_number

_MIB = 1024 * 1024
# Launchers, the most specific first: variables of rank, size, local rank, local size.
_LAUNCHERS = (
    ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
)


@dataclass(frozen=True)
class HorovodSettings:
    """Durations in seconds.

    ``fusion_bytes``: size limit of the fusion buffer; 0 turns tensor fusion off. ``stall_warn_s``: after this time a
    tensor that some ranks have not requested is reported; after ``stall_end_s`` it fails. ``start_s``: how long the
    ranks wait for each other in ``init``.
    """

    fusion_bytes: int = 64 * _MIB
    stall_warn_s: float = 60.0
    # Horovod waits for ever. Here every wait ends; half an hour is torch's own time-out with gloo.
    stall_end_s: float = 1800.0
    start_s: float = 300.0


def read_settings(environ: Optional[Mapping[str, str]] = None) -> HorovodSettings:
    """Raises ``ValueError``, which names the variable, for a value that is not a number."""
    env = os.environ if environ is None else environ
    default = HorovodSettings()
    disabled = env.get("HOROVOD_STALL_CHECK_DISABLE", "0") not in ("", "0", "false", "False")
    warn_s = _number(env, "HOROVOD_STALL_CHECK_TIME_SECONDS", default.stall_warn_s)
    return HorovodSettings(
        fusion_bytes=int(_number(env, "HOROVOD_FUSION_THRESHOLD", default.fusion_bytes)),
        stall_warn_s=float("inf") if disabled else warn_s,
        # In Horovod 0 means "unset".
        stall_end_s=_number(env, "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 0.0) or max(default.stall_end_s, 2 * warn_s),
        start_s=_number(env, "HOROVOD_GLOO_TIMEOUT_SECONDS", default.start_s) or default.start_s,
    )


def _number(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError as error:
        raise ValueError(f"{name}: {text!r} is not a number") from error
    if not value >= 0:
        raise ValueError(f"{name}: {text!r} must not be negative")
    return value


@dataclass(frozen=True)
class HorovodRanks:
    """``local_*`` count inside a host (a replica), ``cross_*`` over the hosts with this local rank."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    cross_rank: int = 0
    cross_size: int = 1
    is_homogeneous: bool = True


def rank_and_size(environ: Optional[Mapping[str, str]] = None) -> Tuple[int, int]:
    """``(rank, size)`` of this process; ``(0, 1)`` without a launcher.

    Raises:
        ValueError: a variable has an invalid value; names it.
    """
    env = os.environ if environ is None else environ
    for rank_name, size_name, _, _ in _LAUNCHERS:
        if env.get(rank_name) and env.get(size_name):
            rank, size = environment_number(env, rank_name), environment_number(env, size_name)
            if not 0 <= rank < size:
                raise ValueError(f"{rank_name}: {rank} is not a rank of {size_name}={size}")
            return rank, size
    return 0, 1


def own_announcement(environ: Optional[Mapping[str, str]] = None) -> Dict[str, Any]:
    """This process's host and local rank, by which all ranks compute the same local and cross ranks."""
    env = os.environ if environ is None else environ
    host = env.get("HOROVOD_HOSTNAME") or env.get("GROUP_RANK") or socket.gethostname()
    for _, _, local_name, local_size_name in _LAUNCHERS:
        if env.get(local_name) and env.get(local_size_name):
            return {"host": host, "local_rank": environment_number(env, local_name)}
    return {"host": host, "local_rank": None}


def ranks_of(rank: int, announcements: List[Dict[str, Any]]) -> HorovodRanks:
    """The ranks of ``rank``. ``announcements``: each rank's :func:`own_announcement`, in rank order."""
    hosts: Dict[str, List[int]] = {}
    for other, announcement in enumerate(announcements):
        hosts.setdefault(str(announcement["host"]), []).append(other)
    # The launcher's local ranks are used if they are complete on the host; else the order of ranks.
    local: Dict[int, int] = {}
    for members in hosts.values():
        local_ranks = [announcements[other]["local_rank"] for other in members]
        is_complete = sorted(t for t in local_ranks if t is not None) == list(range(len(members)))
        local.update({other: local_ranks[i] if is_complete else i for i, other in enumerate(members)})
    host_ranks = hosts[str(announcements[rank]["host"])]
    across = [members for members in hosts.values() if len(members) > local[rank]]
    return HorovodRanks(
        rank=rank,
        size=len(announcements),
        local_rank=local[rank],
        local_size=len(host_ranks),
        cross_rank=across.index(host_ranks),
        cross_size=len(across),
        is_homogeneous=len({len(members) for members in hosts.values()}) == 1,
    )
