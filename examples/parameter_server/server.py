"""The ps: serves its shard to the workers until it is told to stop.

It never ends by itself, because it cannot know whether a worker that left comes back. The platform stops it (SIGTERM)
when the workers are done.
"""

from __future__ import annotations

import signal
import socket
import threading

import trainmaster_train as tm
from shard import Shard
from wire import MAX_PAYLOAD_BYTES, Channel, Op, Refused, Vector

MAX_CONNECTIONS = 1024
LOG_EVERY = 200  # updates


def serve(shard: Shard, address: str, key: bytes) -> None:
    """Serve ``shard`` at ``address`` (host:port); returns after SIGTERM or SIGINT, when no update is half applied."""
    # The signals are waited for below instead of being handled wherever they strike. Threads inherit the mask.
    stops = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    checkpoint = tm.latest()
    if checkpoint is not None:
        shard.restore(checkpoint)
        print(f"resuming from {checkpoint.name}: {shard.version} updates are done.", flush=True)
    listener = listen(address)
    threading.Thread(target=accept, args=(listener, shard, key), daemon=True).start()
    print(f"ps {shard.index} of {shard.count} serves at {address}.", flush=True)
    stop = signal.sigwait(stops)
    listener.close()
    shard.freeze()
    print(f"{signal.Signals(stop).name}: stopped after update {shard.version}; {shard.staleness}.", flush=True)


def listen(address: str) -> socket.socket:
    """A listening socket. On this machine's loopback alone when ``address`` is there, else on all its interfaces:
    a service name need not resolve to an address that this container has.
    """
    host, _, port = address.rpartition(":")
    is_local = host in ("127.0.0.1", "localhost")
    return socket.create_server(("127.0.0.1" if is_local else "", int(port)), backlog=128)


def accept(listener: socket.socket, shard: Shard, key: bytes) -> None:
    """Give each connection a thread, until ``listener`` is closed."""
    places = threading.BoundedSemaphore(MAX_CONNECTIONS)
    while True:
        try:
            sock, peer = listener.accept()
        except OSError:
            return
        if not places.acquire(blocking=False):
            sock.close()
            continue
        threading.Thread(target=converse, args=(sock, f"{peer[0]}:{peer[1]}", shard, key, places), daemon=True).start()


def converse(sock: socket.socket, peer: str, shard: Shard, key: bytes, places: threading.Semaphore) -> None:
    """Answer one worker until it leaves. Whatever goes wrong here ends this connection and nothing else."""
    who = peer
    try:
        with sock:
            channel = Channel(sock, key, is_server=True)
            while True:
                # Gradients are as large as the shard; before the first values its size is not known here.
                op, meta, values = channel.receive(shard.size_bytes or MAX_PAYLOAD_BYTES)
                if op is Op.HELLO:
                    who = f"worker {meta.get('worker')} at {peer}"
                    print(f"{who} joined.", flush=True)
                try:
                    channel.send(Op.OK, *answer(shard, op, meta, values))
                except Refused as refusal:
                    print(f"{who}: refused: {refusal}.", flush=True)
                    channel.send(Op.REFUSED, {"sentence": str(refusal)})
    except OSError as error:
        print(f"{who} left ({error}).", flush=True)
    finally:
        places.release()


def answer(shard: Shard, op: Op, meta: dict[str, object], values: Vector) -> tuple[dict[str, object], Vector | None]:
    """Carry out one request; the meta and the values of its answer. Raises ``Refused``."""
    match op:
        case Op.HELLO:
            shard.expect(number(meta, "parameters"), number(meta, "ps"))
            return {"is_ready": shard.size_bytes is not None}, None
        case Op.INIT:
            shard.fill(values)
            return {}, None
        case Op.PULL:
            version, current = shard.pull()
            return {"version": version}, current
        case Op.PUSH:
            version, staleness, current = shard.push(values, number(meta, "version"))
            if version % LOG_EVERY == 0:
                print(f"update {version}: {shard.staleness}.", flush=True)
            return {"version": version, "staleness": staleness}, current
        case Op.SAVE:
            shard.save(number(meta, "step"))
            return {}, None
        case Op.OK | Op.REFUSED:
            raise Refused(f"{op.name} is no request")


def number(meta: dict[str, object], name: str) -> int:
    value = meta.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise Refused(f"{name}: must be a whole number, 0 or more")
    return value
