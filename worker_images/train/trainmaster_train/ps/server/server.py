"""A parameter server: serves its shard to the workers until it is stopped.

One thread does everything except receiving and sending (ZeroMQ's own threads) and writing checkpoints: so an update is
applied completely or not at all. A ps does not end when the workers leave, because they may come back; the platform
stops it when the training is done.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set

import torch
import zmq

from trainmaster_train.ps.checkpoint.shard_writer import ShardWriter
from trainmaster_train.ps.errors import ParameterServerError, RefusedError
from trainmaster_train.ps.layout import difference
from trainmaster_train.ps.options import Options
from trainmaster_train.ps.server.aggregation import WorkerMembership
from trainmaster_train.ps.server.sessions import PartialPush, PullRequest, WorkerListener, WorkerRequest, WorkerSession
from trainmaster_train.ps.server.shard import Shard, no_memory
from trainmaster_train.ps.server.updates import UpdateScheduler
from trainmaster_train.ps.wire.codec import Codec, raw, read
from trainmaster_train.ps.wire.messages import WireError, bind_address, zap_password
from trainmaster_train.ps.wire.shared_memory import FdReceiver, SharedShard, map_shared_memory, retain_freed_memory

TICK_S = 1.0
MAX_WORKERS = 1 << 16
MAX_SLOTS = 2  # pushes of a worker that are on their way
_FAREWELL_S = 0.5


class ParameterServer:
    """``workers``: their number in the layout; ``is_initialised``: the shard has values (of a checkpoint)."""

    def __init__(
        self, shard: Shard, options: Options, *, key: bytes, address: str, workers: int, is_initialised: bool = False
    ) -> None:
        """Listen at ``address``.

        Raises:
            ParameterServerError: the address is not free.
        """
        retain_freed_memory()
        self._shard = shard
        self._options = options
        self._membership = WorkerMembership(workers, options, now=time.monotonic())
        self._codec = Codec(options.wire, options.topk_ratio)
        self.is_done = False  # set by the chief when the training is done
        largest = shard.layout.largest_frame(shard.ps, shard.count)
        self._listener = WorkerListener(key, zap_password(key), largest_frame=largest)
        try:
            self._listener.socket.bind(bind_address(address))
        except zmq.ZMQError as error:
            self._listener.close()
            raise ParameterServerError(f"ps {shard.ps} cannot listen at {address}: {error.strerror}") from error
        self._connections = WorkerConnections(self._listener, ps=shard.ps, on_lost=self._note_lost)
        self._wake_read, self._wake_write = os.pipe()
        self._is_stopped = False
        self._shard_writer = ShardWriter(shard, self._wake)
        self._updates = UpdateScheduler(
            shard,
            options,
            membership=self._membership,
            sessions=self._connections.sessions,
            codec=self._codec,
            shard_writer=self._shard_writer,
            send=self._connections.send,
            is_initialised=is_initialised,
        )
        self._fd_receiver = FdReceiver()

    @property
    def summary(self) -> str:
        return self._updates.summary

    @property
    def version(self) -> int:
        return self._shard.version

    @property
    def is_initialised(self) -> bool:
        """Whether the shard has values."""
        return self._updates.is_initialised

    def stop(self) -> None:
        """Let :meth:`serve` return after the update that is being applied. From any thread or signal handler."""
        self._is_stopped = True
        self._wake()

    def serve(self) -> None:
        """Serve until :meth:`stop`.

        Raises:
            ParameterServerError: there is not enough memory, an update failed, or no worker came within the
                time-out.
        """
        poller = zmq.Poller()
        poller.register(self._listener.socket, zmq.POLLIN)
        poller.register(self._listener.zap, zmq.POLLIN)
        poller.register(self._wake_read, zmq.POLLIN)
        next_tick = time.monotonic() + TICK_S
        try:
            while not self._is_stopped:
                ready = dict(poller.poll(int(max(0.0, next_tick - time.monotonic()) * 1000)))
                if self._listener.zap in ready:
                    self._connections.answer_zap()
                with no_memory("its answers"):
                    if self._wake_read in ready:
                        os.read(self._wake_read, 4096)
                    if self._listener.socket in ready:
                        self._receive()
                    if time.monotonic() >= next_tick:
                        next_tick = time.monotonic() + TICK_S
                        self._tick()
                    self._send_save_answers()
        except MemoryError as error:
            sentence = f"ps {self._shard.ps} has no memory for {error}: give the ps more memory, or the job more ps"
            self._connections.announce_failure(sentence)
            raise ParameterServerError(sentence) from error
        except ParameterServerError as error:
            self._connections.announce_failure(str(error))
            raise
        finally:
            self._listener.close(linger_s=1.0)
            self._fd_receiver.close()
            os.close(self._wake_read)
            os.close(self._wake_write)

    def _wake(self) -> None:
        with suppress(OSError):
            os.write(self._wake_write, b"x")

    def _receive(self) -> None:
        """Handle one message; an error in it ends only its connection."""
        request = self._connections.receive()
        if request is None:
            return
        try:
            self._dispatch(request)
        except WireError as error:
            self._connections.disconnect(request.session.identity, error)
        except zmq.ZMQError:
            self._connections.drop(request.session.identity)

    def _dispatch(self, request: WorkerRequest) -> None:
        name = request.header.get("op")
        operation = getattr(self, f"_op_{name}", None)
        try:
            if operation is None:
                self._connections.refuse(request, f"{name!r} is not an operation of a ps; use one version everywhere")
            elif not request.session.has_joined and name not in ("join", "watch"):
                self._connections.refuse(request, "join first")
            else:
                with no_memory(f"the {name} of {request.session.peer_name}"):
                    operation(request)
        except RefusedError as error:
            self._connections.refuse(request, str(error))
        except (MemoryError, ParameterServerError, zmq.ZMQError):
            raise
        except Exception as error:  # noqa: BLE001 (malformed requests raise anything)
            self._connections.refuse(request, f"a malformed request ({type(error).__name__}: {error})"[:500])

    # Requests of the workers.

    def _op_join(self, request: WorkerRequest) -> None:
        worker, count = int(request.header["worker"]), int(request.header["ps"])
        if not 0 <= worker < MAX_WORKERS:
            raise RefusedError(f"worker {worker} is not in 0 to {MAX_WORKERS - 1}")
        request.session.peer_name = str(request.header["name"])[:100]
        if count != self._shard.count:
            raise RefusedError(
                f"you see {count} ps and this is one of {self._shard.count}: start all with the same layout"
            )
        mismatch = difference(self._shard.layout.signature, request.header["signature"])
        if mismatch is not None:
            raise RefusedError(
                f"{request.session.peer_name} has another model than ps {self._shard.ps}: {mismatch} "
                f"(here: the ps, there: {request.session.peer_name}); "
                "start all replicas with the same script and arguments"
            )
        if request.header["wire"] != self._options.wire or request.header["mode"] != self._options.mode:
            raise RefusedError(
                f"{request.session.peer_name} wants mode {request.header['mode']} and wire {request.header['wire']}, "
                f"ps {self._shard.ps} has {self._options.mode} and {self._options.wire}; "
                "start all replicas with the same options"
            )
        request.session.worker, request.session.has_joined, request.session.is_chief = (
            worker,
            True,
            bool(request.header["chief"]),
        )
        describe_arrival = self._membership.describe_arrival(worker, time.monotonic())
        before = self._membership.mark_joined(worker, request.session.identity)
        if before is not None:  # a lost connection that was not noticed yet
            self._connections.sessions.pop(before, None)
        self._updates.drop_pushes(worker)
        print(
            f"ps {self._shard.ps}: {request.session.peer_name} {describe_arrival} at update {self._shard.version}.",
            flush=True,
        )
        socket_name = self._fd_receiver.name if self._options.shared_memory and not self._codec.is_lossy else ""
        about = {
            "version": self._shard.version,
            "is_initialised": self._updates.is_initialised,
            "fd_socket": socket_name,
        }
        self._connections.reply(request, about)

    def _op_share(self, request: WorkerRequest) -> None:
        """A worker on this machine offers shared memory; it has sent the file descriptor before this request."""
        slots = int(request.header["slots"])
        if not 1 <= slots <= MAX_SLOTS:
            raise RefusedError(f"{slots} pushes at once are not in 1 to {MAX_SLOTS}")
        descriptor = self._fd_receiver.take(request.session.seal.ticket)
        memory = map_shared_memory(descriptor, self._shard.layout, slots) if descriptor is not None else None
        request.session.memory = SharedShard(memory, self._shard.blocks) if memory is not None else None
        self._connections.reply(request, {"is_taken": memory is not None})

    def _op_watch(self, request: WorkerRequest) -> None:
        """An evaluator joins, which only asks for the status."""
        request.session.peer_name, request.session.has_joined = "an evaluator", True
        self._connections.reply(request, {"version": self._shard.version})

    def _op_initialise(self, request: WorkerRequest) -> None:
        """First values, in several messages; ignored if the shard has values already."""
        if not request.session.is_chief:
            raise RefusedError("the first values come from the chief")
        if not self._updates.is_initialised:
            if "table" in request.header:
                table = self._shard.check_rows(request.header["table"], torch.empty(0))
                values = read(request.frames[0], table.dtype, None).view(-1, table.columns)
                self._shard.set_rows(table.name, int(request.header["begin"]), values)
            for number, frame in zip(request.header.get("blocks", ()), request.frames):
                block = self._shard.values[number]
                block.copy_(read(frame, block.dtype, block.numel()))
        if request.header.get("last"):
            self._set_rates(request.header)
            self._connections.reply(request, {})
            self._updates.mark_initialised()

    def _op_pull(self, request: WorkerRequest) -> None:
        pull = PullRequest(int(request.header["id"]), int(request.header.get("least", 0)))
        request.session.pending_pulls.append(pull)
        request.session.slot = 0
        self._updates.answer_pulls()

    def _op_rows(self, request: WorkerRequest) -> None:
        rows = self._shard.rows(request.header["table"], read(request.frames[0], torch.int64, None))
        self._connections.reply(request, {"version": self._shard.version}, [raw(rows)])

    def _op_push(self, request: WorkerRequest) -> None:
        if not self._updates.is_initialised:
            raise RefusedError(f"ps {self._shard.ps} has no values yet: the chief sends them first")
        partial = request.session.partial
        if partial is None or partial.push_id != request.header["id"]:
            partial = PartialPush(
                int(request.header["id"]), int(request.header["version"]), [None] * len(self._shard.blocks)
            )
            request.session.partial = partial
        partial.add(request.header, request.frames, self._shard, self._codec)
        if request.header.get("last"):
            session = request.session
            session.partial = None
            if session.memory is not None and "shared" in request.header:
                session.slot = int(request.header["shared"])
                partial.gradients = [*session.memory.gradients[session.slot]]
            self._set_rates(request.header)
            session.pending_push = partial.push_id
            self._updates.push(partial.to_push(session.worker, self._shard.values))

    def _op_hold(self, request: WorkerRequest) -> None:
        """Pause updates, so that a checkpoint is of the same step on every ps."""
        self._connections.reply(request, {"version": self._shard_writer.hold(time.monotonic())})

    def _op_save(self, request: WorkerRequest) -> None:
        """Write the shard into a staged checkpoint; answers when it is written."""
        if not self._updates.is_initialised:
            raise RefusedError(f"ps {self._shard.ps} has no values yet")
        self._shard_writer.ask(request, time.monotonic())
        self._updates.proceed()

    def _op_release(self, _request: WorkerRequest) -> None:
        self._shard_writer.release()
        self._updates.proceed()

    def _op_status(self, request: WorkerRequest) -> None:
        status = {"version": self._shard.version, "missing": self._updates.waiting_for(), "is_done": self.is_done}
        self._connections.reply(request, {**status, **self._updates.counts})

    def _op_bye(self, request: WorkerRequest) -> None:
        why = str(request.header.get("why") or "done")[:500]
        print(f"ps {self._shard.ps}: {request.session.peer_name} left: {why}.", flush=True)
        self.is_done = self.is_done or bool(request.header.get("is_done"))
        self._membership.mark_left(request.session.worker)
        self._connections.reply(request, {})
        self._connections.sessions.pop(request.session.identity, None)
        self._updates.proceed()

    # Consequences.

    def _send_save_answers(self) -> None:
        for request, answer in self._shard_writer.answers():
            self._connections.reply(request, answer)

    def _tick(self) -> None:
        now = time.monotonic()
        missing = self._updates.waiting_for()
        for session in list(self._connections.sessions.values()):
            # Detects lost connections, and tells the others what they wait for, for their error messages.
            self._connections.send(session, {"op": "note", "missing": missing})
        self._shard_writer.release_after(now)
        if self._membership.idle_s(now) > self._options.idle_timeout_s:
            raise ParameterServerError(
                f"ps {self._shard.ps}: no worker was there for {self._options.idle_timeout_s:.0f} s; "
                f"missing: {missing or 'all'}"
            )
        self._updates.proceed()
        self._updates.answer_pulls(at_once=True)

    def _note_lost(self, session: WorkerSession) -> None:
        if self._membership.mark_lost(session.worker, session.identity, time.monotonic()):
            self._updates.drop_pushes(session.worker)
            print(
                f"ps {self._shard.ps}: {session.peer_name} is gone at update {self._shard.version}; it may come back.",
                flush=True,
            )

    def _set_rates(self, header: Mapping[str, Any]) -> None:
        if header.get("rates"):
            self._shard.set_learning_rates([float(rate) for rate in header["rates"]])


class WorkerConnections:
    """Sessions by the peers' identities. ``on_lost`` is called with a session whose connection was dropped."""

    def __init__(self, listener: WorkerListener, *, ps: int, on_lost: Callable[[WorkerSession], None]) -> None:
        self._listener = listener
        self._ps = ps
        self._on_lost = on_lost
        self._logged: Set[str] = set()
        self.sessions: Dict[bytes, WorkerSession] = {}

    def answer_zap(self) -> None:
        if not self._listener.answer_zap():
            self._log_once("a connection with a wrong token was refused")

    def receive(self) -> Optional[WorkerRequest]:
        """Read one message; ``None`` if it is no request. An error in it ends only its connection."""
        identity, *parts = self._listener.socket.recv_multipart(copy=False)
        name = identity.bytes
        session = self.sessions.get(name)
        try:
            if session is None:
                self._greet(name, parts)
                return None
            return WorkerRequest(session, session.seal.open(parts[0].bytes, len(parts) - 1), parts[1:])
        except WireError as error:
            self.disconnect(name, error)
        except zmq.ZMQError:
            self.drop(name)
        return None

    def disconnect(self, identity: bytes, error: WireError) -> None:
        """Drop the connection of a peer that breaks the protocol."""
        session = self.sessions.get(identity)
        peer_name = session.peer_name if session else "an unknown process"
        print(f"ps {self._ps}: {peer_name} is disconnected: {error}.", flush=True)
        self.drop(identity)

    def refuse(self, request: WorkerRequest, sentence: str) -> None:
        print(f"ps {self._ps}: {request.session.peer_name} is refused: {sentence}.", flush=True)
        self.reply(request, {"refused": sentence})

    def reply(self, to: WorkerRequest, header: Mapping[str, Any], frames: Sequence[Any] = ()) -> None:
        self.send(to.session, {"re": to.header.get("id"), **header}, frames)

    def send(
        self, session: WorkerSession, header: Dict[str, Any], frames: Sequence[Any] = (), *, track: bool = False
    ) -> Any:
        try:
            return self._listener.send(session, header, frames, track=track)
        except zmq.ZMQError:  # the worker has left, or does not read its answers
            self.drop(session.identity)
            return None

    def drop(self, identity: bytes) -> None:
        session = self.sessions.pop(identity, None)
        if session is not None:
            self._on_lost(session)

    def announce_failure(self, sentence: str) -> None:
        """Send the workers the reason why this ps ends. Reads on for a moment: closing a socket with unread data
        resets the connection, and the reason would never arrive.
        """
        for session in list(self.sessions.values()):
            self.send(session, {"op": "fatal", "sentence": sentence})
        deadline = time.monotonic() + _FAREWELL_S
        while self.sessions and self._listener.socket.poll(int(max(0.0, deadline - time.monotonic()) * 1000)):
            self._listener.socket.recv_multipart(copy=False)

    def _greet(self, identity: bytes, parts: List[Any]) -> None:
        session = self._listener.greet(identity, parts[0].bytes if parts else b"")
        if session is not None:
            self.sessions[identity] = session
            self.send(session, {"op": "welcome"})

    def _log_once(self, sentence: str) -> None:
        if sentence not in self._logged:
            self._logged.add(sentence)
            print(f"ps {self._ps}: {sentence}.", flush=True)
