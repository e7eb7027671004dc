"""The process group of a training: formed from the launcher's environment, destroyed without a dead-lock."""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Callable, Optional

from trainmaster_train.arguments import shown
from trainmaster_train.context import ContextError, current
from trainmaster_train.distributed.peer_monitor import PeerMonitor, heartbeat_key
from trainmaster_train.distributed.rank_discovery import RankAssignment, discover_ranks

# How long a process that has finished waits for the others before it leaves.
_LEAVE_TIMEOUT = timedelta(minutes=5)
# torch's own.
_RENDEZVOUS_TIMEOUT = timedelta(minutes=5)
_SILENCE = timedelta(minutes=5)
_SHOWN = 8  # ranks in one sentence
_monitor: Optional[PeerMonitor] = None


class DistributedError(RuntimeError):
    """The processes cannot train together; the message names what is missing."""


@dataclass(frozen=True)
class RankInfo:
    """This process's ranks. ``device``: its ``torch.device``. ``contract``: the source, such as ``torchrun``."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    device: Any
    contract: str

    @property
    def is_writer(self) -> bool:
        """Whether this process writes checkpoints and results for all processes."""
        return self.rank == 0


def init(
    *,
    backend: Optional[str] = None,
    local_rank: Optional[int] = None,
    timeout: Optional[timedelta] = None,
    silence: Optional[timedelta] = _SILENCE,
) -> RankInfo:
    """Form the process group of this training, and bind this process to its device.

    Reads the launcher's environment, see :func:`discover_ranks`; a single process gets a group of its own. An existing
    group is used as it is. If the replica has a fraction of a GPU (``TRAINMASTER_GPU_FRACTION``), torch is limited to
    that share of its memory.

    Args:
        backend: torch's name; default ``cpu:gloo,cuda:nccl`` with whole GPUs, else ``gloo``: NCCL rejects two processes
            on one device, which is possible with fractions of GPUs.
        local_rank: as in :func:`discover_ranks`.
        timeout: of the rendezvous, and of every collective afterwards; default: torch's (5 min, and half an hour).
        silence: a process without a heartbeat for this long (it is stopped, or its machine is unreachable) is given up:
            processes that wait for it end with exit code 1 and name it. After a fifth of that time stderr says which
            process waits for which, also for one that is alive but does not come. ``None`` turns both off.

    Raises:
        ContextError: the environment contradicts itself.
        DistributedError: other processes did not come in time; the message names them.
        ValueError: ``timeout`` or ``silence`` is not a duration.
    """
    import torch
    import torch.distributed as dist

    _check_time("timeout", timeout)
    _check_time("silence", silence)
    assignment = discover_ranks(local_rank=local_rank)
    share = _gpu_share(assignment.local_world_size)
    device = _bind(assignment.local_rank, share)
    if not dist.is_initialized():
        # torch itself reads the address from the environment; other variables may belong to another launcher.
        host, port = assignment.address or ("127.0.0.1", 0)
        own_name = f"rank {assignment.rank} of {assignment.world_size} ({assignment.contract})"
        try:
            store = _store(host, port, assignment, timeout, is_server=assignment.rank == 0)
            _wait_for_all(store, assignment, own_name, timeout or _RENDEZVOUS_TIMEOUT)
            dist.init_process_group(
                backend or ("cpu:gloo,cuda:nccl" if device.type == "cuda" and share is None else "gloo"),
                store=store,
                rank=assignment.rank,
                world_size=assignment.world_size,
                timeout=timeout,
            )
            if silence is not None and assignment.world_size > 1:
                _start_monitor(_store(host, port, assignment, timeout, is_server=False), assignment, silence)
        except (torch.distributed.DistError, TimeoutError) as error:
            raise DistributedError(
                f"{own_name} could not meet the others at {host}:{port}: check whether all of them were started, and "
                "whether that is rank 0's address"
            ) from error
    return RankInfo(
        rank=dist.get_rank(),
        size=dist.get_world_size(),
        local_rank=assignment.local_rank,
        local_size=assignment.local_world_size,
        device=device,
        contract=assignment.contract,
    )


def shutdown() -> None:
    """Leave the process group once all other processes are done, too.

    Avoids a hang of torch: a DistributedDataParallel that outlives the group, or is freed after it, can wait for ever
    for a lock; its references to the group are removed first.

    Raises:
        DistributedError: another process did not come within 5 minutes; the message names the ranks (with gloo).
    """
    global _monitor  # noqa: PLW0603 (there is one default group in each process)
    import torch.distributed as dist

    if not dist.is_initialized():
        return
    try:
        monitored_barrier(_LEAVE_TIMEOUT)
    except RuntimeError as error:
        raise DistributedError(f"not all processes came to the end: {error}") from error
    if _monitor is not None:
        _monitor.leave()
        _monitor = None
    _release_ddp_references()
    dist.destroy_process_group()


def monitored_barrier(timeout: timedelta, group: Optional[Any] = None) -> None:
    """Wait for all processes of ``group`` (the default one).

    Raises:
        RuntimeError: some did not come in time; with gloo, also next to NCCL, rank 0 gets their names.
    """
    import torch.distributed as dist

    if "gloo" in dist.get_backend(group):
        # torch's own monitored_barrier rejects a group with gloo and another backend; the group's method accepts it.
        target_group: Any = group or dist.group.WORLD
        target_group.monitored_barrier(timeout, wait_all_ranks=True)
    else:
        dist.barrier(group)


def _release_ddp_references() -> None:
    from torch.nn.parallel import DistributedDataParallel

    for candidate in gc.get_objects():
        # isinstance would run code of lazy objects.
        if issubclass(type(candidate), DistributedDataParallel):
            candidate.__dict__.pop("reducer", None)
            candidate.__dict__.pop("logger", None)


def _gpu_share(local_size: int) -> Optional[float]:
    """This process's share of one device, 0 to 1; ``None``: whole devices, or none."""
    text = os.environ.get("TRAINMASTER_GPU_FRACTION", "")
    try:
        fraction = float(text) if text else 1.0
    except ValueError as error:
        raise ContextError(f"TRAINMASTER_GPU_FRACTION: {text[:40]!r} is not a number between 0 and 1") from error
    if not 0 < fraction <= 1:
        raise ContextError(f"TRAINMASTER_GPU_FRACTION: {text[:40]!r} is not a number between 0 and 1")
    return None if fraction == 1 else fraction / max(1, local_size)


def _bind(local_rank: int, share: Optional[float]) -> Any:
    import torch

    if not torch.cuda.is_available():
        return torch.device("cpu")
    # The platform shows a process only its own GPUs; other launchers show all, indexed by local rank.
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    if share is not None:
        torch.cuda.set_per_process_memory_fraction(share, device)
    return device


def _check_time(name: str, value: Optional[timedelta]) -> None:
    if value is not None and (not isinstance(value, timedelta) or value <= timedelta()):
        raise ValueError(f"{name}: {shown(value)} is not a timedelta above 0, such as timedelta(minutes=5)")


def _store(host: str, port: int, assignment: RankAssignment, timeout: Optional[timedelta], *, is_server: bool) -> Any:
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined] # torch exports them by a star

    # Under torchrun its agent serves the store at this address; otherwise rank 0 does.
    is_served = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    limit = timeout or _RENDEZVOUS_TIMEOUT
    store = TCPStore(host, port, assignment.world_size, is_server and not is_served, limit, wait_for_workers=False)
    if is_served:
        # A key prefix for each attempt: otherwise the addresses of dead processes would be found.
        return PrefixStore(f"attempt_{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    return store


def _wait_for_all(store: Any, assignment: RankAssignment, own_name: str, timeout: timedelta) -> None:
    import torch

    store.set(heartbeat_key(assignment.rank), "null")
    keys = [heartbeat_key(rank) for rank in range(assignment.world_size)]
    try:
        store.wait(keys, timeout)
    except torch.distributed.DistError as error:
        missing = [rank for rank, key in enumerate(keys) if not store.check([key])]
        if not missing:
            raise
        name_of = _rank_namer(assignment)
        names = ", ".join(map(name_of, missing[:_SHOWN]))
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise DistributedError(
            f"{own_name} waited for {timeout.total_seconds():g} s, and {names}{more} did not come: see their logs, and "
            "check whether all of them were started"
        ) from error


def _start_monitor(store: Any, assignment: RankAssignment, silence: timedelta) -> None:
    global _monitor  # noqa: PLW0603 (as above)
    _monitor = PeerMonitor(
        store,
        rank=assignment.rank,
        size=assignment.world_size,
        silence_s=silence.total_seconds(),
        name_of=_rank_namer(assignment),
    )
    _monitor.start()


def _rank_namer(assignment: RankAssignment) -> Callable[[int], str]:
    """A function that names ranks for messages: with their replica if the platform names all of them."""
    try:
        peers = current().peers
    except ContextError:
        peers = {}
    replicas = [f"{role}-{index}" for role in ("chief", "worker") for index in range(len(peers.get(role, ())))]
    processes = max(1, assignment.local_world_size)
    if len(replicas) * processes != assignment.world_size:
        return lambda rank: f"rank {rank}"
    return lambda rank: f"rank {rank} ({replicas[rank // processes]})"
