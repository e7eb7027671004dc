"""A worker's connection to one ps. Every wait has a deadline, and its error names the missing replica.

One thread at a time. ZeroMQ's own thread sends and receives concurrently: a message is transferred while the caller
computes, and the answer to an early request has arrived when it is needed.
"""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import zmq
from zmq.utils.monitor import recv_monitor_message

from trainmaster_train.ps.errors import DeadlineError, LostError, ParameterServerError, RefusedError
from trainmaster_train.ps.wire.messages import (
    NONCE_BYTES,
    PROTOCOL,
    ZAP_USER,
    Seal,
    WireError,
    connect_address,
    plain,
    proof,
    read_plain,
    zap_password,
)

Message = Tuple[Dict[str, Any], List[zmq.Frame]]
Take = Callable[[Message], None]

_DISCONNECTED = zmq.EVENT_DISCONNECTED
_ZAP_REFUSED = zmq.EVENT_HANDSHAKE_FAILED_AUTH
_EVENTS = _DISCONNECTED | _ZAP_REFUSED | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
GREETING_S = 15.0
_POLL_OTHERS_S = 1.0


class Connection:
    """``ps``: its index, for messages; ``missing``: the replicas that it reports to wait for."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        ps: int,
        address: str,
        key: bytes,
        poll_others: Optional[Callable[[], None]] = None,
    ) -> None:
        """``poll_others``: called about every second of a wait; an exception from it ends the wait."""
        self._poll_others = poll_others
        self._polled_at = time.monotonic()
        self.ps = ps
        self.address = address
        self.missing = ""
        self._context = context
        self._key = key
        self._socket: Optional[zmq.Socket[bytes]] = None
        self._monitor: Any = None
        self._seal: Optional[Seal] = None
        self._next_id = 0
        self._first_id = 0  # of the current connection: a ps never answers requests of an earlier one
        self._answers: Dict[int, Message] = {}
        self._pieces: Dict[int, List[Message]] = {}  # of incomplete answers

    @property
    def name(self) -> str:
        return f"ps {self.ps} at {self.address}"

    def open(self, timeout_s: float) -> None:
        """Connect, with mutual authentication.

        Raises:
            DeadlineError: the ps did not answer within ``timeout_s``.
            WireError: it does not know this attempt's token, or rejects ours.
            LostError: the connection was lost again.
        """
        self.close()
        self._first_id = self._next_id + 1
        deadline = time.monotonic() + timeout_s
        socket = self._context.socket(zmq.DEALER)
        self._socket = socket
        socket.linger = 0
        socket.plain_username = ZAP_USER
        socket.plain_password = zap_password(self._key)
        socket.reconnect_ivl = 50
        socket.reconnect_ivl_max = 1_000
        socket.heartbeat_ivl = 5_000
        socket.heartbeat_timeout = 30_000
        socket.sndtimeo = 0
        self._monitor = socket.get_monitor_socket(_EVENTS)
        socket.connect(connect_address(self.address))
        nonce = os.urandom(NONCE_BYTES)
        try:
            # ZeroMQ keeps the greeting until the ps listens.
            socket.send(plain({"nonce": nonce.hex(), "protocol": PROTOCOL}))
        except zmq.Again:
            pass  # refused before it was sent: the socket's events say why
        answer = read_plain(self._receive_raw(deadline, "did not come")[0].bytes)
        try:
            nonces = nonce + bytes.fromhex(answer["nonce"])
            has_joined = answer["proof"] == proof(self._key, b"server", nonces)
        except (KeyError, TypeError, ValueError) as error:
            raise WireError(f"{self.name} does not speak the protocol of a ps") from error
        if not has_joined:
            raise WireError(f"{self.name} does not know this attempt's token: start all replicas with the same one")
        socket.send(proof(self._key, b"worker", nonces).encode())
        self._seal = Seal(self._key, nonces, is_server=False)
        self._receive(min(deadline, time.monotonic() + GREETING_S))  # the welcome

    def close(self) -> None:
        if self._socket is not None:
            self._socket.disable_monitor()
            self._monitor.close(linger=0)
            self._socket.close(linger=0)
        self._socket = None
        self._seal = None
        self._answers.clear()
        self._pieces.clear()

    def reserve(self) -> int:
        """Reserve a number for a request of several messages."""
        self._next_id += 1
        return self._next_id

    def is_stale(self, number: int) -> bool:
        """Whether request ``number`` is of an earlier connection, which will not be answered any more."""
        return number < self._first_id

    def send(self, header: Mapping[str, Any], frames: Sequence[Any] = (), *, number: Optional[int] = None) -> int:
        """Send a request; returns its number. The memory of ``frames`` must not change until the answer arrives.

        Raises:
            LostError: the connection is lost, or the ps accepts no more messages.
        """
        number = self.reserve() if number is None else number
        self._handle_socket_events()
        if self._socket is None or self._seal is None:
            raise LostError(f"{self.name} is not connected")
        head = self._seal.close({**header, "id": number}, frames)
        try:
            self._socket.send_multipart([head, *frames], copy=False)
        except zmq.ZMQError as error:
            raise LostError(f"{self.name} accepts no more messages ({error.strerror})") from error
        return number

    def answer(self, number: int, timeout_s: float, purpose: str, take: Optional[Take] = None) -> Message:
        """The answer to request ``number``. Of several messages it is the last; ``take`` is called with the others.

        Raises:
            RefusedError: the ps refused the request.
            LostError: the connection is lost, or the request is of an earlier one.
            DeadlineError: ``purpose`` was not answered within ``timeout_s``; names the replicas that the ps waits for.
        """
        self._check_current(number)
        deadline = time.monotonic() + timeout_s
        while True:
            for piece in self._pieces.pop(number, ()):
                if take is not None:
                    take(piece)
            if number in self._answers:
                break
            try:
                self._receive(deadline)
            except DeadlineError as error:
                waits = f"; it waits for {self.missing}" if self.missing else ""
                raise DeadlineError(f"{self.name} did not answer {purpose} within {timeout_s:.0f} s{waits}") from error
        header, frames = self._answers.pop(number)
        if "refused" in header:
            raise RefusedError(str(header["refused"]))
        return header, frames

    def answer_patiently(self, number: int, timeout_s: float, purpose: str, take: Take) -> Message:
        """As :meth:`answer`, but waits on as long as the set of replicas that the ps waits for changes."""
        while True:
            before = self.missing
            try:
                return self.answer(number, timeout_s, purpose, take)
            except DeadlineError:
                if self.missing == before:
                    raise

    def has_answer(self, number: int) -> bool:
        """Whether the answer to request ``number`` has arrived. Does not wait. Raises ``LostError``."""
        self._check_current(number)
        while number not in self._answers and self._socket is not None and self._socket.poll(0):
            self._receive(time.monotonic())
        return number in self._answers

    def receive_available(self) -> None:
        """Handle the messages that have arrived. Raises ``ParameterServerError`` if the ps announced its end."""
        while self._seal is not None and self._socket is not None and self._socket.poll(0):
            self._receive(time.monotonic())

    def ticket(self) -> bytes:
        """A secret of the two ends of this connection. Raises ``LostError`` if it is lost."""
        if self._seal is None:
            raise LostError(f"{self.name} is not connected")
        return self._seal.ticket

    def ask(self, header: Mapping[str, Any], frames: Sequence[Any] = (), *, timeout_s: float, purpose: str) -> Message:
        """Send a request and wait for its answer. Raises as :meth:`answer`."""
        return self.answer(self.send(header, frames), timeout_s, purpose)

    def _check_current(self, number: int) -> None:
        if self.is_stale(number):
            raise LostError(f"{self.name} was lost and came back meanwhile")

    def _receive(self, deadline: float) -> None:
        """Handle the next message: store an answer, or note the ps's status."""
        parts = self._receive_raw(deadline, "did not answer")
        if self._seal is None:
            raise LostError(f"{self.name} is not connected")
        header = self._seal.open(parts[0].bytes, len(parts) - 1)
        if header.get("op") == "note":
            self.missing = str(header.get("missing", ""))
        elif header.get("op") == "fatal":
            raise ParameterServerError(str(header.get("sentence")))
        elif header.get("more"):
            self._pieces.setdefault(header["re"], []).append((header, parts[1:]))
        elif "re" in header:
            self._answers[header["re"]] = (header, parts[1:])

    def _receive_raw(self, deadline: float, purpose: str) -> List[zmq.Frame]:
        while True:
            if self._socket is None:
                raise LostError(f"{self.name} is not connected")
            try:
                return self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                pass
            self._handle_socket_events()
            now = time.monotonic()
            if now >= deadline:
                raise DeadlineError(f"{self.name} {purpose}")
            if self._poll_others is not None and now - self._polled_at >= _POLL_OTHERS_S:
                self._polled_at = now
                self._poll_others()
            poller = zmq.Poller()
            poller.register(self._socket, zmq.POLLIN)
            poller.register(self._monitor, zmq.POLLIN)
            poller.poll(int(min(deadline - now, _POLL_OTHERS_S) * 1000 + 1))

    def _handle_socket_events(self) -> None:
        """Handle events of the socket. A reconnected socket is useless: the ps does not know it."""
        while self._socket is not None and self._monitor.poll(0):
            event = recv_monitor_message(self._monitor)["event"]
            if event == _ZAP_REFUSED:
                self.close()
                raise WireError(
                    f"{self.name} rejects this replica's token: start all replicas of a job with the same one"
                )
            if event == _DISCONNECTED and self._seal is None:
                continue  # before the handshake: ZeroMQ connects again
            if event == _DISCONNECTED:
                try:
                    self.receive_available()  # the reason of its end may have arrived before
                finally:
                    self.close()
                raise LostError(f"{self.name} is gone")
            self.close()
            raise WireError(f"{self.name} speaks another protocol")
