"""torch's process group from world to world: joined with a fresh store each time, left in whatever state it is."""

from __future__ import annotations

import gc
import os
import socket
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any, Dict, Optional

from trainmaster_train.arguments import seconds
from trainmaster_train.elastic.worlds import ElasticWorld, newest_number

# Messages of torch's transports for a lost peer or store, if the error has no type of its own. A script's own errors
# may mention time-outs and sockets, too: single words are not enough.
_LOST_PEER = (
    "onnection closed by peer",
    "onnection reset by peer",
    "onnection refused",
    "roken pipe",
    "gloo/",
    "NCCL",
    "Socket Timeout",
)
_CONNECT_S = 1.0
_POLL_S = 0.003
# A port in use fails at once.
_RETRY_S = 0.1
# Once all processes are there, they need milliseconds to connect.
_INIT_S = 30.0


class WorldChanged(Exception):
    """There is a newer world than that of this process; nothing is lost."""


class PeerLost(RuntimeError):
    """A process of this world is lost: its pending collectives failed."""


def is_peer_loss(error: BaseException) -> bool:
    """Whether ``error`` was caused by a lost peer, and not by this process's own program."""
    if isinstance(error, PeerLost):
        return True
    if type(error).__name__ in ("DistBackendError", "DistNetworkError", "DistStoreError"):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _LOST_PEER)


class Group:
    """The default process group of one world after another.

    Args:
        backend: of ``init_process_group``; ``None``: NCCL where the process has a GPU, else gloo.
        timeout_s: of a collective. It alone detects a peer whose machine vanished.
    """

    def __init__(self, backend: Optional[str] = None, timeout_s: float = 300.0) -> None:
        self._backend = backend
        self._timeout = timedelta(seconds=seconds("timeout_s", timeout_s))
        self._store: Any = None
        self._connections: Dict[int, str] = {}

    def join(self, world: ElasticWorld) -> None:
        """Connect to all other processes of ``world``; blocks until all are there.

        Raises:
            WorldChanged: there is a newer world by now.
            PeerLost: the others could not be reached.
        """
        import torch
        import torch.distributed as dist

        stores: Any = dist  # torch's types leave them out
        backend = self._backend or ("nccl" if torch.cuda.is_available() else "gloo")
        if world.size == 1 and not world.master_port:
            self._store = stores.HashStore()
        else:
            self._store = self._rendezvous(world)
        before = _sockets()
        try:
            dist.init_process_group(
                backend,
                store=stores.PrefixStore(f"world-{world.number}", self._store),
                rank=world.rank,
                world_size=world.size,
                timeout=timedelta(seconds=_INIT_S),
            )
        except RuntimeError as error:
            raise PeerLost(f"world {world.number} could not be joined: {error}") from None
        # A short time-out while all connect detects a dying peer; a collective may take as long as the script allows.
        dist.distributed_c10d._set_pg_timeout(self._timeout)  # noqa: SLF001 - torch has no public one
        self._connections = dict(_sockets().items() - before.items())

    def cut(self) -> None:
        """Cut the connections to all peers, from another thread: a pending collective fails at once.

        With gloo only those of the default group, on Linux. torch's own abort waits for the collective's time-out.
        """
        import torch.distributed as dist

        if dist.get_backend() == "nccl":
            dist.distributed_c10d._abort_process_group()  # noqa: SLF001 - torch has no public one
            return
        now = _sockets()
        for fd, name in self._connections.items():
            if now.get(fd) == name:
                with suppress(OSError), socket.socket(fileno=os.dup(fd)) as connection:
                    connection.getpeername()  # raises for the listening socket: gloo ends the process if that fails
                    connection.shutdown(socket.SHUT_RDWR)

    def leave(self) -> None:
        """Destroy the group; the peers notice. Collects garbage first: torch may hang if parts are freed afterwards."""
        import torch.distributed as dist

        gc.collect()
        self._connections = {}
        if dist.is_available() and dist.is_initialized():
            try:
                if dist.get_backend() == "nccl":
                    # Its own destroy waits for pending collectives, which never end after the loss of a peer.
                    dist.distributed_c10d._abort_process_group()  # noqa: SLF001 - torch has no public one
                else:
                    dist.destroy_process_group()
            except RuntimeError:
                pass  # it is destroyed nevertheless
        self._store = None

    def _rendezvous(self, world: ElasticWorld) -> Any:
        """The world's store, once every rank has registered there."""
        import torch.distributed as dist

        stores: Any = dist
        end = time.monotonic() + self._timeout.total_seconds()
        store: Any = None
        while store is None:
            try:
                if world.rank:
                    # torch prints a stack trace for each failed try, and waits for seconds after it.
                    socket.create_connection((world.master_addr, world.master_port), _CONNECT_S).close()
                store = stores.TCPStore(
                    world.master_addr,
                    world.master_port,
                    is_master=world.rank == 0,
                    timeout=timedelta(seconds=_CONNECT_S if world.rank else _INIT_S),
                    wait_for_workers=False,
                )
            except (RuntimeError, OSError) as error:
                self._check(world, end, f"rank 0 at {world.master_addr}:{world.master_port}", str(error))
                time.sleep(_RETRY_S)  # noqa: TID251 - the port is asked, with a deadline above
        missing = [f"here/{rank}" for rank in range(world.size)]
        try:
            store.set(f"here/{world.rank}", b"1")
            while missing:
                missing = [key for key in missing if not store.check([key])]
                if missing:
                    ranks = ", ".join(key.rpartition("/")[2] for key in missing[:8])
                    self._check(world, end, f"rank {ranks}", "not there")
                    time.sleep(_POLL_S)  # noqa: TID251 - the store is asked, with a deadline above
            store.set_timeout(timedelta(seconds=_INIT_S))
        except RuntimeError as error:
            raise PeerLost(f"world {world.number}: the store of rank 0 is gone: {error}") from None
        return store

    @staticmethod
    def _check(world: ElasticWorld, end: float, peers: str, why: str) -> None:
        if newest_number() > world.number:
            raise WorldChanged
        if time.monotonic() >= end:
            raise PeerLost(f"world {world.number}: waited for {peers} for too long: {why}")


def _sockets() -> Dict[int, str]:
    """The sockets of this process, by descriptor, as the kernel names them."""
    sockets = {}
    with suppress(OSError):
        for entry in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                name = os.readlink(f"/proc/self/fd/{entry}")
                if name.startswith("socket:"):
                    sockets[int(entry)] = name
    return sockets
