"""The engine's operations on numpy arrays, and the rendezvous without torch: by the platform's key-value store."""

from __future__ import annotations

import http.client
import math
import os
import secrets
import socket
import threading
import time
from dataclasses import replace
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

import numpy as np

from trainmaster_train.elastic import ElasticWorld
from trainmaster_train.horovod.controller.handshake import KEY_BYTES, is_local, mac, own_key
from trainmaster_train.horovod.controller.link import listen
from trainmaster_train.horovod.controller.messages import (
    ADASUM,
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BROADCAST,
    REDUCESCATTER,
    CollectiveRequest,
    CollectiveResponse,
)
from trainmaster_train.horovod.errors import HorovodInternalError
from trainmaster_train.horovod.gang import ProcessGang, rendezvous
from trainmaster_train.horovod.mesh import Mesh
from trainmaster_train.horovod.reduction import AVERAGE, adasum, split_rows
from trainmaster_train.horovod.session import RENDEZVOUS_S
from trainmaster_train.horovod.settings import HorovodSettings, own_announcement, rank_and_size, ranks_of

REDUCERS: Dict[str, Any] = {
    AVERAGE: np.add,
    "sum": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "product": np.multiply,
}
_RETRY_S = 0.05
_KEY_PATH = "/trainmaster/key"


class ArrayEntry:
    """One submitted array; ``output`` is the result, a new array. ``received``: rows from each rank (alltoall)."""

    __slots__ = ("array", "output", "received", "request")

    def __init__(self, request: CollectiveRequest, array: Any) -> None:
        self.request = request
        self.array = np.asarray(array, order="C")
        self.output: Any = None
        self.received: List[int] = []


class CompletedBatch(NamedTuple):
    """A batch that is done as soon as it started: operations over sockets are synchronous here."""

    def is_done(self) -> bool:
        return True

    def wait(self, timeout_s: float) -> bool:  # noqa: ARG002 (the protocol's signature)
        return True

    def finish(self) -> None:
        pass


class ArrayBackend:
    """``mesh``: ``None`` for a single process."""

    has_fast_path = False  # one connection for each pair of ranks

    def __init__(self, rank: int, mesh: Optional[Mesh]) -> None:
        self._rank = rank
        self._mesh = mesh
        self._runners: Dict[
            str, Callable[[CollectiveResponse, Sequence[Optional[ArrayEntry]], Sequence[int]], None]
        ] = {
            ALLREDUCE: self._allreduce,
            ALLGATHER: self._allgather,
            BROADCAST: self._broadcast,
            ALLTOALL: self._alltoall,
            REDUCESCATTER: self._reducescatter,
        }

    def start(
        self, response: CollectiveResponse, entries: Sequence[Optional[ArrayEntry]], members: Sequence[int]
    ) -> CompletedBatch:
        runner = self._runners.get(response.kind)
        if runner is not None:
            try:
                runner(response, entries, members)
            except OSError:
                self.abort()  # so that the neighbours do not wait
                raise
        return CompletedBatch()

    def abort(self) -> None:
        if self._mesh is not None:
            self._mesh.close()

    abort_fast_path = abort

    def close(self) -> None:
        self.abort()

    def _allreduce(
        self, response: CollectiveResponse, entries: Sequence[Optional[ArrayEntry]], members: Sequence[int]
    ) -> None:
        requests = [response.zeros_like[i] if entry is None else entry.request for i, entry in enumerate(entries)]
        first = requests[0]
        if first.op == ADASUM:
            self._adasum(entries, members)
            return
        flat = np.concatenate(
            [
                np.zeros(math.prod(request.shape), _dtype(request.dtype)) if entry is None else entry.array.reshape(-1)
                for entry, request in zip(entries, requests)
            ]
        )
        flat = self._reduce(flat, first, members)
        begin = 0
        for entry, request in zip(entries, requests):
            end = begin + math.prod(request.shape)
            if entry is not None:
                entry.output = flat[begin:end].reshape(request.shape)
            begin = end

    def _reduce(self, flat: Any, request: CollectiveRequest, members: Sequence[int]) -> Any:
        """``flat`` reduced over all members; ``flat`` may be overwritten."""
        flat = _scaled(flat, request.prescale)
        if self._mesh is not None:
            self._mesh.allreduce(flat, members, REDUCERS[request.op])
        if request.op == AVERAGE:
            flat = flat / len(members) if flat.dtype.kind in "fcV" else flat // len(members)
        return _scaled(flat, request.postscale).astype(_dtype(request.dtype), copy=False)

    def _adasum(self, entries: Sequence[Optional[ArrayEntry]], members: Sequence[int]) -> None:
        """Every rank gathers all arrays and adds them pairwise, which is Adasum's reduction tree."""
        (entry,) = entries
        assert entry is not None  # noqa: S101 (a joined rank takes no part in an Adasum: zeros would halve the result)
        position = list(members).index(self._rank)
        parts = [np.empty_like(entry.array) for _ in members]
        parts[position] = np.array(_scaled(entry.array, entry.request.prescale))
        if self._mesh is not None:
            self._mesh.allgather(parts, members)
        total = adasum(parts, lambda part: part.astype(np.float64), lambda part: part.astype(entry.array.dtype))
        entry.output = _scaled(total, entry.request.postscale)

    def _reducescatter(
        self, _response: CollectiveResponse, entries: Sequence[Optional[ArrayEntry]], members: Sequence[int]
    ) -> None:
        (entry,) = entries
        assert entry is not None  # noqa: S101 (no reducescatter among ranks that joined)
        shape = entry.request.shape
        # An allreduce of which each rank keeps its rows: twice the bytes, but rarely used.
        reduced = self._reduce(np.array(entry.array).reshape(-1), entry.request, members).reshape(shape)
        rows = split_rows(shape[0], len(members))
        position = list(members).index(self._rank)
        begin = sum(rows[:position])
        entry.output = reduced[begin : begin + rows[position]].copy()

    def _allgather(
        self, response: CollectiveResponse, entries: Sequence[Optional[ArrayEntry]], members: Sequence[int]
    ) -> None:
        (entry,) = entries
        request = response.zeros_like[0] if entry is None else entry.request
        shape = request.shape[1:]
        output = np.empty((sum(response.rows), *shape), _dtype(request.dtype))
        parts = np.split(output, np.cumsum(response.rows)[:-1])
        if entry is not None:
            parts[list(members).index(self._rank)][...] = entry.array
            entry.output = output
        if self._mesh is not None:
            self._mesh.allgather(parts, members)

    def _broadcast(
        self, _response: CollectiveResponse, entries: Sequence[Optional[ArrayEntry]], members: Sequence[int]
    ) -> None:
        (entry,) = entries
        assert entry is not None  # noqa: S101 (no broadcast among ranks that joined)
        entry.output = entry.array.copy()
        if self._mesh is not None:
            self._mesh.broadcast(entry.output, entry.request.root, members)

    def _alltoall(
        self, response: CollectiveResponse, entries: Sequence[Optional[ArrayEntry]], members: Sequence[int]
    ) -> None:
        (entry,) = entries
        assert entry is not None  # noqa: S101 (no alltoall among ranks that joined)
        position = list(members).index(self._rank)
        entry.received = [int(splits[position]) for splits in response.rows]
        entry.output = np.empty((sum(entry.received), *entry.array.shape[1:]), entry.array.dtype)
        into = np.split(entry.output, np.cumsum(entry.received)[:-1])
        if self._mesh is None:
            entry.output[...] = entry.array
        else:
            self._mesh.alltoall(np.split(entry.array, np.cumsum(entry.request.splits)[:-1]), into, members)


def join_gang(settings: HorovodSettings, world: Optional[ElasticWorld] = None) -> ProcessGang:
    """Rendezvous with the other processes. The ranks and the store's address are in ``HOROVOD_RANK HOROVOD_SIZE
    HOROVOD_GLOO_RENDEZVOUS_ADDR HOROVOD_GLOO_RENDEZVOUS_PORT``, which the platform sets.

    Args:
        world: that of an elastic job, in which gangs follow one another.

    Raises:
        HorovodInternalError: a rank did not come in time; names it.
        ValueError: there are several ranks but no store, or no key although the store is on the network.
    """
    rank, size = rank_and_size()
    announcement = own_announcement()
    if size == 1:
        return ProcessGang(ranks_of(0, [announcement]), {}, ArrayBackend(0, None), settings)
    if world is not None:
        settings = replace(settings, start_s=min(settings.start_s, RENDEZVOUS_S))
    store = _RendezvousStore(settings)
    key = _key(rank, store)
    # The store may outlive a world: each gang has an address of its own there.
    label = b"address" if world is None else b"address in world %d" % world.number
    address = f"/trainmaster/gang/{mac(key, label).hex()}"
    listener = listen(store.host)
    try:
        announcement.update(data=[_own_address(store), listener.getsockname()[1]])
        links, announcements = rendezvous(
            rank,
            size,
            announcement,
            rank_0_host=store.host,
            publish=lambda text: store.put(address, text),
            fetch=lambda: store.get(address),
            settings=settings,
            key=key,
        )
        mesh = Mesh(
            rank,
            listener,
            [(entry["data"][0], entry["data"][1]) for entry in announcements],
            key,
            start_s=settings.start_s,
            timeout_s=settings.stall_end_s,
        )
    except OSError as error:
        raise HorovodInternalError(f"hvd.init: rank {rank} of {size} did not reach the others: {error}.") from error
    finally:
        listener.close()
    return ProcessGang(ranks_of(rank, announcements), links, ArrayBackend(rank, mesh), settings)


def _key(rank: int, store: _RendezvousStore) -> bytes:
    """The gang's key. On one machine without a given key, rank 0 creates one: only local processes can read it."""
    key = own_key()
    if key is not None:
        return key
    if not is_local(store.host):
        raise ValueError(
            "no key: outside the platform, where there is no TRAINMASTER_TOKEN_FILE, set HOROVOD_KEY to the same long "
            "random text for every process."
        )
    if rank == 0:
        store.put(_KEY_PATH, secrets.token_hex(KEY_BYTES))
    return bytes.fromhex(store.get(_KEY_PATH))


class _RendezvousStore:
    """The key-value store that the runtime of rank 0 serves, a fresh one for each attempt.

    Knowing a path suffices to read and write it; the path of a gang is derived from its key.
    """

    def __init__(self, settings: HorovodSettings) -> None:
        self.host = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR", "")
        port = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_PORT", "")
        if not self.host or not port.isdigit():
            raise ValueError(
                "HOROVOD_GLOO_RENDEZVOUS_ADDR and HOROVOD_GLOO_RENDEZVOUS_PORT are not set, but there are several "
                "ranks: they name the key-value store for the rendezvous, which the platform serves."
            )
        self.port = int(port)
        self._timeout_s = settings.start_s

    def put(self, path: str, text: str) -> None:
        self._request("PUT", path, text)

    def get(self, path: str) -> str:
        return self._request("GET", path, None).decode()

    def _request(self, method: str, path: str, body: Optional[str]) -> bytes:
        deadline_s = time.monotonic() + self._timeout_s
        problem = "no answer"
        while time.monotonic() < deadline_s:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=10.0)
            try:
                connection.request(method, path, body)
                answer = connection.getresponse()
                data = answer.read()
                if answer.status == 200:
                    return data
                problem = f"answer {answer.status}"
            except OSError as error:
                problem = str(error)
            finally:
                connection.close()
            threading.Event().wait(_RETRY_S)
        raise HorovodInternalError(
            f"hvd.init: rank 0 published nothing at {self.host}:{self.port} within {self._timeout_s:g} s ({problem}): "
            "it did not start, or has another key."
        )


def _own_address(store: _RendezvousStore) -> str:
    """The address from which this host reaches the store, and at which others reach this host."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((store.host, store.port))
        return str(probe.getsockname()[0])


def _dtype(name: str) -> Any:
    try:
        return np.dtype(name)
    except TypeError:
        # Comes with TensorFlow, for bfloat16.
        import ml_dtypes  # pyright: ignore[reportMissingImports]

        return np.dtype(getattr(ml_dtypes, name))


def _scaled(flat: Any, factor: float) -> Any:
    return flat if factor == 1.0 else (flat * factor).astype(flat.dtype, copy=False)
