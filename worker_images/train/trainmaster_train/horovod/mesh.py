"""Collectives on numpy arrays over plain sockets, without torch: one connection per pair of ranks, ring algorithms.

Needs only numpy and the standard library. Both sides of a connection are authenticated by the gang's key.
"""

from __future__ import annotations

import select
import socket
import time
from contextlib import closing
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from trainmaster_train.horovod.controller.handshake import HandshakeListener, greet

_PURPOSE = b"mesh"
_SLICE_MS = 200
_CHUNK_BYTES = 1 << 20


class Mesh:
    """``listener``: this rank's; ``addresses``: of every rank, in rank order. ``timeout_s``: for a peer that neither
    sends nor closes its connection.
    """

    def __init__(
        self,
        rank: int,
        listener: socket.socket,
        addresses: Sequence[Tuple[str, int]],
        key: bytes,
        *,
        start_s: float,
        timeout_s: float,
    ) -> None:
        self._rank = rank
        self._timeout_s = timeout_s
        self._is_closed = False
        self._links: Dict[int, socket.socket] = {}
        deadline_s = time.monotonic() + start_s
        for other in range(rank):
            link = socket.create_connection(addresses[other], timeout=start_s)
            self._links[other] = link
            greet(link, key, _PURPOSE, rank, other, timeout_s=start_s)
        with closing(HandshakeListener(listener, key, _PURPOSE, rank, len(addresses))) as handshakes:
            while len(self._links) < len(addresses) - 1:
                peer = handshakes.accept_peer(deadline_s)
                if peer is None:
                    raise TimeoutError(f"not all ranks connected within {start_s:g} s")
                other, link = peer
                if other in self._links:
                    link.close()
                    continue
                self._links[other] = link
        for link in self._links.values():
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.setblocking(False)

    def close(self) -> None:
        """Close all connections, so that operations that wait for this rank fail at once."""
        self._is_closed = True
        for link in self._links.values():
            link.close()

    def allreduce(self, flat: Any, members: Sequence[int], add: Any) -> None:
        """Reduce ``flat``, an array of one dimension, over all ranks by ``add(a, b, out=a)``, in place.

        The simple equivalent: gather all arrays and add them up. The ring sends each byte twice instead of once per
        rank: a reduce-scatter leaves every rank with one complete part, then an allgather passes the parts on.
        """
        size, position = len(members), list(members).index(self._rank)
        if size == 1 or not flat.size:
            return
        parts = np.array_split(flat, size)
        next_rank, previous_rank = members[(position + 1) % size], members[position - 1]
        scratch = np.empty_like(parts[0])
        for step in range(size - 1):
            sent, summed = parts[(position - step) % size], parts[(position - step - 1) % size]
            into = scratch[: summed.size]
            self._exchange(next_rank, sent, previous_rank, into)
            add(summed, into, out=summed)
        for step in range(size - 1):
            self._exchange(
                next_rank, parts[(position + 1 - step) % size], previous_rank, parts[(position - step) % size]
            )

    def allgather(self, parts: List[Any], members: Sequence[int]) -> None:
        """Fill ``parts``, one array for each member; this rank's own part is the input."""
        size, position = len(members), list(members).index(self._rank)
        next_rank, previous_rank = members[(position + 1) % size], members[position - 1]
        for step in range(size - 1):
            self._exchange(
                next_rank, parts[(position - step) % size], previous_rank, parts[(position - step - 1) % size]
            )

    def broadcast(self, array: Any, root: int, members: Sequence[int]) -> None:
        """Copy ``array`` of ``root`` to all, in place: pipelined along the ring in chunks."""
        size, position = len(members), list(members).index(self._rank)
        root_position = list(members).index(root)
        distance = (position - root_position) % size
        data = _memory(array)
        for begin in range(0, len(data), _CHUNK_BYTES):
            piece = data[begin : begin + _CHUNK_BYTES]
            if distance:
                self._move(None, None, members[position - 1], piece)
            if distance < size - 1:
                self._move(members[(position + 1) % size], piece, None, None)

    def alltoall(self, sent: List[Any], received: List[Any], members: Sequence[int]) -> None:
        """Send ``sent[i]`` to member ``i``; ``received[i]`` is filled with its data."""
        size, position = len(members), list(members).index(self._rank)
        received[position][...] = sent[position]
        for step in range(1, size):
            to, source = (position + step) % size, (position - step) % size
            self._exchange(members[to], sent[to], members[source], received[source])

    def _exchange(self, to: int, out: Any, source: int, into: Any) -> None:
        self._move(to, _memory(out), source, _memory(into))

    def _move(
        self, to: Optional[int], out: Optional[memoryview], source: Optional[int], into: Optional[memoryview]
    ) -> None:
        """Send ``out`` and fill ``into`` concurrently. Raises ``ConnectionError`` or ``TimeoutError``."""
        sending, receiving = out or memoryview(b""), into or memoryview(b"")
        quiet_since_s = time.monotonic()
        while len(sending) or len(receiving):
            if self._is_closed:
                raise ConnectionAbortedError("the gang is broken")
            poll = select.poll()
            events: Dict[int, int] = {}
            for rank, view, event in ((to, sending, select.POLLOUT), (source, receiving, select.POLLIN)):
                if rank is not None and len(view):
                    number = self._links[rank].fileno()
                    events[number] = events.get(number, 0) | event
            for number, event in events.items():
                poll.register(number, event)
            if not poll.poll(_SLICE_MS):
                if time.monotonic() - quiet_since_s > self._timeout_s:
                    raise TimeoutError(
                        f"rank {source if len(receiving) else to} was silent for {self._timeout_s:.0f} s"
                    )
                continue
            quiet_since_s = time.monotonic()
            if len(sending) and to is not None:
                try:
                    sending = sending[self._links[to].send(sending) :]
                except BlockingIOError:
                    pass
            if len(receiving) and source is not None:
                try:
                    count = self._links[source].recv_into(receiving)
                except BlockingIOError:
                    continue
                if not count:
                    raise ConnectionResetError(f"rank {source} hung up")
                receiving = receiving[count:]


def _memory(array: Any) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8)) if array.size else memoryview(b"")
