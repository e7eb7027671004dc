"""The engine's operations on numpy arrays, and how ranks meet where no torch is: by the platform's key-value store."""

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

from trainmaster_train.elastic import World
from trainmaster_train.horovod import ranks as places
from trainmaster_train.horovod.controller.handshake import KEY_BYTES, is_local, mac, own_key
from trainmaster_train.horovod.controller.link import listen
from trainmaster_train.horovod.controller.messages import (
    ADASUM,
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BROADCAST,
    REDUCESCATTER,
    Request,
    Response,
)
from trainmaster_train.horovod.errors import HorovodInternalError
from trainmaster_train.horovod.gang import Gang, meet
from trainmaster_train.horovod.mesh import Mesh
from trainmaster_train.horovod.reduction import AVERAGE, adasum, shares
from trainmaster_train.horovod.settings import Settings
from trainmaster_train.horovod.worlds import MEET_S

REDUCERS: Dict[str, Any] = {
    AVERAGE: np.add,
    "sum": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "product": np.multiply,
}
_ASK_AGAIN_S = 0.05
_KEY_PATH = "/trainmaster/key"


class ArrayJob:
    """One array on its way; ``output`` is the result, a new array. ``received``: rows from each rank (alltoall)."""

    __slots__ = ("array", "output", "received", "request")

    def __init__(self, request: Request, array: Any) -> None:
        self.request = request
        self.array = np.asarray(array, order="C")
        self.output: Any = None
        self.received: List[int] = []


class Done(NamedTuple):
    """A batch that was done when it started: sockets have no asynchronous side."""

    def is_done(self) -> bool:
        return True

    def wait(self, timeout_s: float) -> bool:  # noqa: ARG002 (a batch's)
        return True

    def finish(self) -> None:
        pass


class ArrayBackend:
    """``mesh``: ``None`` for a lone process."""

    has_lane = False  # one connection for each pair of ranks

    def __init__(self, rank: int, mesh: Optional[Mesh]) -> None:
        self._rank = rank
        self._mesh = mesh
        self._runners: Dict[str, Callable[[Response, Sequence[Optional[ArrayJob]], Sequence[int]], None]] = {
            ALLREDUCE: self._allreduce,
            ALLGATHER: self._allgather,
            BROADCAST: self._broadcast,
            ALLTOALL: self._alltoall,
            REDUCESCATTER: self._reducescatter,
        }

    def start(self, response: Response, jobs: Sequence[Optional[ArrayJob]], members: Sequence[int]) -> Done:
        runner = self._runners.get(response.kind)
        if runner is not None:
            try:
                runner(response, jobs, members)
            except OSError:
                self.abort()  # the neighbours shall not wait
                raise
        return Done()

    def abort(self) -> None:
        if self._mesh is not None:
            self._mesh.close()

    abort_lane = abort

    def close(self) -> None:
        self.abort()

    def _allreduce(self, response: Response, jobs: Sequence[Optional[ArrayJob]], members: Sequence[int]) -> None:
        requests = [response.like[i] if job is None else job.request for i, job in enumerate(jobs)]
        first = requests[0]
        if first.op == ADASUM:
            self._adasum(jobs, members)
            return
        flat = np.concatenate(
            [
                np.zeros(math.prod(request.shape), _dtype(request.dtype)) if job is None else job.array.reshape(-1)
                for job, request in zip(jobs, requests)
            ]
        )
        flat = self._reduced(flat, first, members)
        begin = 0
        for job, request in zip(jobs, requests):
            end = begin + math.prod(request.shape)
            if job is not None:
                job.output = flat[begin:end].reshape(request.shape)
            begin = end

    def _reduced(self, flat: Any, request: Request, members: Sequence[int]) -> Any:
        """``flat``, which may be written to, of all members as one."""
        flat = _scaled(flat, request.prescale)
        if self._mesh is not None:
            self._mesh.allreduce(flat, members, REDUCERS[request.op])
        if request.op == AVERAGE:
            flat = flat / len(members) if flat.dtype.kind in "fcV" else flat // len(members)
        return _scaled(flat, request.postscale).astype(_dtype(request.dtype), copy=False)

    def _adasum(self, jobs: Sequence[Optional[ArrayJob]], members: Sequence[int]) -> None:
        """Every rank gets all arrays and adds them pairwise, which is Adasum's tree."""
        (job,) = jobs
        assert job is not None  # noqa: S101 (who joined takes no part in an Adasum: its zeros would halve the others)
        place = list(members).index(self._rank)
        parts = [np.empty_like(job.array) for _ in members]
        parts[place] = np.array(_scaled(job.array, job.request.prescale))
        if self._mesh is not None:
            self._mesh.allgather(parts, members)
        total = adasum(parts, lambda part: part.astype(np.float64), lambda part: part.astype(job.array.dtype))
        job.output = _scaled(total, job.request.postscale)

    def _reducescatter(self, _response: Response, jobs: Sequence[Optional[ArrayJob]], members: Sequence[int]) -> None:
        (job,) = jobs
        assert job is not None  # noqa: S101 (no reducescatter among ranks that joined)
        shape = job.request.shape
        # As an allreduce, of which each rank keeps its rows: twice the bytes, on a road that few take.
        whole = self._reduced(np.array(job.array).reshape(-1), job.request, members).reshape(shape)
        rows = shares(shape[0], len(members))
        place = list(members).index(self._rank)
        begin = sum(rows[:place])
        job.output = whole[begin : begin + rows[place]].copy()

    def _allgather(self, response: Response, jobs: Sequence[Optional[ArrayJob]], members: Sequence[int]) -> None:
        (job,) = jobs
        request = response.like[0] if job is None else job.request
        shape = request.shape[1:]
        output = np.empty((sum(response.rows), *shape), _dtype(request.dtype))
        parts = np.split(output, np.cumsum(response.rows)[:-1])
        if job is not None:
            parts[list(members).index(self._rank)][...] = job.array
            job.output = output
        if self._mesh is not None:
            self._mesh.allgather(parts, members)

    def _broadcast(self, _response: Response, jobs: Sequence[Optional[ArrayJob]], members: Sequence[int]) -> None:
        (job,) = jobs
        assert job is not None  # noqa: S101 (no broadcast among ranks that joined)
        job.output = job.array.copy()
        if self._mesh is not None:
            self._mesh.broadcast(job.output, job.request.root, members)

    def _alltoall(self, response: Response, jobs: Sequence[Optional[ArrayJob]], members: Sequence[int]) -> None:
        (job,) = jobs
        assert job is not None  # noqa: S101 (no alltoall among ranks that joined)
        place = list(members).index(self._rank)
        job.received = [int(splits[place]) for splits in response.rows]
        job.output = np.empty((sum(job.received), *job.array.shape[1:]), job.array.dtype)
        into = np.split(job.output, np.cumsum(job.received)[:-1])
        if self._mesh is None:
            job.output[...] = job.array
        else:
            self._mesh.alltoall(np.split(job.array, np.cumsum(job.request.splits)[:-1]), into, members)


def join_gang(settings: Settings, world: Optional[World] = None) -> Gang:
    """Meet the other processes; their ranks and the store are in ``HOROVOD_RANK HOROVOD_SIZE
    HOROVOD_GLOO_RENDEZVOUS_ADDR HOROVOD_GLOO_RENDEZVOUS_PORT``, which the platform sets.

    Args:
        world: of an elastic job, whose gangs follow one another.

    Raises:
        HorovodInternalError: not all came in time; says who is missing.
        ValueError: there are ranks, but no store, or no key for one on the network.
    """
    rank, size = places.world()
    said = places.hello()
    if size == 1:
        return Gang(places.place_of(0, [said]), {}, ArrayBackend(0, None), settings)
    if world is not None:
        settings = replace(settings, start_s=min(settings.start_s, MEET_S))
    store = _Store(settings)
    key = _key(rank, store)
    # The store outlives a world where its host does: each gang has an address of its own there.
    label = b"address" if world is None else b"address in world %d" % world.number
    address = f"/trainmaster/gang/{mac(key, label).hex()}"
    listener = listen(store.host)
    try:
        said.update(data=[_own_address(store), listener.getsockname()[1]])
        links, everybody = meet(
            rank,
            size,
            said,
            rank_0_host=store.host,
            publish=lambda text: store.put(address, text),
            fetch=lambda: store.get(address),
            settings=settings,
            key=key,
        )
        mesh = Mesh(
            rank,
            listener,
            [(entry["data"][0], entry["data"][1]) for entry in everybody],
            key,
            start_s=settings.start_s,
            timeout_s=settings.stall_end_s,
        )
    except OSError as error:
        raise HorovodInternalError(f"hvd.init: rank {rank} of {size} did not reach the others: {error}.") from error
    finally:
        listener.close()
    return Gang(places.place_of(rank, everybody), links, ArrayBackend(rank, mesh), settings)


def _key(rank: int, store: _Store) -> bytes:
    """The gang's. On one machine, where none was given, rank 0 makes one: only that machine's processes get at it."""
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


class _Store:
    """The key-value store that the runtime of rank 0 serves, anew for each attempt.

    Anybody can read and write there who knows a path; a gang's is made from its key.
    """

    def __init__(self, settings: Settings) -> None:
        self.host = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR", "")
        port = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_PORT", "")
        if not self.host or not port.isdigit():
            raise ValueError(
                "HOROVOD_GLOO_RENDEZVOUS_ADDR and HOROVOD_GLOO_RENDEZVOUS_PORT are not set, but there are several ranks: "
                "they name the key-value store where the ranks meet, which the platform serves."
            )
        self.port = int(port)
        self._timeout_s = settings.start_s

    def put(self, path: str, text: str) -> None:
        self._ask("PUT", path, text)

    def get(self, path: str) -> str:
        return self._ask("GET", path, None).decode()

    def _ask(self, method: str, path: str, body: Optional[str]) -> bytes:
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
            _pause(_ASK_AGAIN_S)
        raise HorovodInternalError(
            f"hvd.init: nothing of rank 0 at {self.host}:{self.port} within {self._timeout_s:g} s ({problem}): it did not "
            "start, or has another key."
        )


def _own_address(store: _Store) -> str:
    """The address by which this host reaches the store, and so the others this one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect((store.host, store.port))
        return str(asking.getsockname()[0])


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)


def _dtype(name: str) -> Any:
    try:
        return np.dtype(name)
    except TypeError:
        # Comes with TensorFlow, for bfloat16.
        import ml_dtypes  # pyright: ignore[reportMissingImports]

        return np.dtype(getattr(ml_dtypes, name))


def _scaled(flat: Any, factor: float) -> Any:
    return flat if factor == 1.0 else (flat * factor).astype(flat.dtype, copy=False)
