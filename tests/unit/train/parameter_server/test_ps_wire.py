from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import ModuleType
from typing import Any

import numpy as np
import pytest

KEY = b"k" * 32


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a real TCP connection; the wire sets options that only TCP has."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    with client, server:
        client.settimeout(10)
        server.settimeout(10)
        yield client, server


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def pair(wire: ModuleType, ends: tuple[socket.socket, socket.socket], pool: ThreadPoolExecutor) -> tuple[Any, Any]:
    client, server = ends
    future = pool.submit(wire.Channel, server, KEY, is_server=True)
    return wire.Channel(client, KEY, is_server=False), future.result()


def test_a_vector_arrives_as_it_was_sent(wire: ModuleType, ends: Any, pool: ThreadPoolExecutor) -> None:
    client, server = pair(wire, ends, pool)
    values = np.arange(1000, dtype=np.float32)

    client.send(wire.Op.PUSH, {"version": 7}, values)
    op, meta, found = server.receive()

    assert (op, meta) == (wire.Op.PUSH, {"version": 7})
    assert found.dtype == np.float32
    assert np.array_equal(found, values)


def test_a_frame_without_values_is_an_empty_vector(wire: ModuleType, ends: Any, pool: ThreadPoolExecutor) -> None:
    client, server = pair(wire, ends, pool)

    client.send(wire.Op.HELLO)

    assert server.receive()[2].size == 0


def test_a_refusal_is_raised_with_its_sentence(wire: ModuleType, ends: Any, pool: ThreadPoolExecutor) -> None:
    client, server = pair(wire, ends, pool)
    future = pool.submit(client.ask, wire.Op.PULL)
    server.receive()
    server.send(wire.Op.REFUSED, {"sentence": "no values yet"})

    with pytest.raises(wire.Refused, match="no values yet"):
        future.result()


def test_an_answer_must_be_an_answer(wire: ModuleType, ends: Any, pool: ThreadPoolExecutor) -> None:
    client, server = pair(wire, ends, pool)
    server.send(wire.Op.PULL)

    with pytest.raises(wire.WireError, match="PULL is no answer"):
        client.ask(wire.Op.PULL)


def test_another_key_is_turned_away_by_both_sides(wire: ModuleType, ends: Any, pool: ThreadPoolExecutor) -> None:
    client, server = ends
    futures: list[Future[Any]] = [
        pool.submit(wire.Channel, server, KEY, is_server=True),
        pool.submit(wire.Channel, client, b"another" * 4, is_server=False),
    ]

    for future in futures:
        with pytest.raises(wire.WireError, match="does not know the job's key"):
            future.result()


def test_a_peer_that_sends_the_proof_back_is_turned_away(wire: ModuleType, ends: Any, pool: ThreadPoolExecutor) -> None:
    client, server = ends
    future = pool.submit(wire.Channel, server, KEY, is_server=True)
    for _ in range(2):  # the nonce, then the proof
        client.sendall(client.recv(wire.NONCE_BYTES, socket.MSG_WAITALL))

    with pytest.raises(wire.WireError, match="does not know the job's key"):
        future.result()


def test_a_peer_that_leaves_in_the_handshake_is_told(wire: ModuleType, ends: Any, pool: ThreadPoolExecutor) -> None:
    client, server = ends
    client.sendall(b"half a nonce")
    client.close()

    with pytest.raises(OSError):  # noqa: PT011 (closed or reset: the kernel decides)
        wire.Channel(server, KEY, is_server=True)


def test_a_silent_peer_does_not_hold_the_server(wire: ModuleType, ends: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "HANDSHAKE_TIMEOUT_S", 0.01)

    with pytest.raises(TimeoutError):
        wire.Channel(ends[1], KEY, is_server=True)


def frame(
    wire: ModuleType, client: Any, *, number: int = 0, op: int = 3, text: bytes = b"{}", payload: bytes = b""
) -> bytes:
    """A frame with the right tag, whatever is in it."""
    head = wire.HEADER.pack(wire.MAGIC, op, len(text), len(payload)) + text + payload
    return head + bytes(wire._mac(client._send_key, struct.pack(">Q", number), head))


def raw(send: Callable[[ModuleType, Any], bytes], wire: ModuleType, ends: Any, pool: ThreadPoolExecutor) -> Any:
    """The server's channel after a client that knows the key sent it bytes of its own making."""
    client, server = pair(wire, ends, pool)
    ends[0].sendall(send(wire, client))
    ends[0].shutdown(socket.SHUT_WR)
    return server


HOSTILE: dict[str, tuple[Callable[[ModuleType, Any], bytes], str]] = {
    "not this protocol": (lambda *_: b"GET / HTTP/1.1\r\nHost: ps\r\n\r\n", "not a frame"),
    "a frame cut in its header": (lambda wire, client: frame(wire, client)[:7], "closed"),
    "a frame cut in its payload": (lambda wire, client: frame(wire, client, payload=bytes(400))[:300], "closed"),
    "a frame cut in its tag": (lambda wire, client: frame(wire, client)[:-1], "closed"),
    "nothing at all": (lambda *_: b"", "closed"),
    "a changed byte": (lambda wire, client: frame(wire, client, payload=bytes(8))[:-40] + bytes([1] * 40), "tag"),
    "another frame's number": (lambda wire, client: frame(wire, client, number=1), "tag"),
    "no JSON": (lambda wire, client: frame(wire, client, text=b"{"), "JSON"),
    "JSON that is no object": (lambda wire, client: frame(wire, client, text=b"[1]"), "JSON object"),
    "JSON nested without end": (lambda wire, client: frame(wire, client, text=b"[" * 60_000), "JSON"),
    "no text": (lambda wire, client: frame(wire, client, text=b"\xff\xfe\xfd"), "JSON"),
    "an unknown kind": (lambda wire, client: frame(wire, client, op=200), "unknown kind"),
    "half a number": (lambda wire, client: frame(wire, client, payload=bytes(6)), "not allowed"),
    "a meta larger than allowed": (lambda wire, *_: wire.HEADER.pack(b"TMPS", 3, 2**32 - 1, 0), "not allowed"),
    "a payload of 16 EiB": (lambda wire, *_: wire.HEADER.pack(b"TMPS", 3, 2, 2**64 - 4), "not allowed"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_frame_ends_the_connection(name: str, wire: ModuleType, ends: Any, pool: ThreadPoolExecutor) -> None:
    send, message = HOSTILE[name]
    server = raw(send, wire, ends, pool)

    with pytest.raises(wire.WireError, match=message):
        server.receive()


def test_a_frame_larger_than_the_shard_is_not_read(wire: ModuleType, ends: Any, pool: ThreadPoolExecutor) -> None:
    client, server = pair(wire, ends, pool)
    client.send(wire.Op.PUSH, {}, np.zeros(11, np.float32))

    with pytest.raises(wire.WireError, match="not allowed"):
        server.receive(max_payload_bytes=40)


def test_a_frame_sent_twice_is_refused(wire: ModuleType, ends: Any, pool: ThreadPoolExecutor) -> None:
    server = raw(lambda wire, client: frame(wire, client) * 2, wire, ends, pool)

    assert server.receive()[0] is wire.Op.PULL
    with pytest.raises(wire.WireError, match="repeated"):
        server.receive()


def test_a_frame_sent_back_to_its_sender_is_refused(wire: ModuleType, ends: Any, pool: ThreadPoolExecutor) -> None:
    client, _ = pair(wire, ends, pool)
    client.send(wire.Op.PULL)
    ends[1].sendall(ends[1].recv(4096))

    with pytest.raises(wire.WireError, match="tag"):
        client.receive()


def test_closing_wakes_a_thread_that_waits_for_a_frame(wire: ModuleType, ends: Any, pool: ThreadPoolExecutor) -> None:
    client, _ = pair(wire, ends, pool)
    waiting = threading.Event()

    def receive() -> None:
        waiting.set()
        client.receive()

    future = pool.submit(receive)
    waiting.wait()
    client.close()

    with pytest.raises(OSError):  # noqa: PT011 (closed or a bad descriptor: both end the thread)
        future.result(timeout=10)
