"""Asking replicas for their health: whatever a server does, the answer comes in time."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from scheduler.control.serving.probe import ProbeResult, probe_all, probe_health

Serve = Callable[[Callable[[socket.socket], object]], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Begins a server of one connection, and gives its address."""
    threads, listeners = [], []

    def begin(answer: Callable[[socket.socket], object]) -> str:
        listener = socket.create_server(("127.0.0.1", 0))

        def run() -> None:
            try:
                stream, _ = listener.accept()
                with stream:
                    stream.recv(4096)
                    answer(stream)
            except OSError:
                pass  # the other side has gone

        thread = threading.Thread(target=run)
        thread.start()
        threads.append(thread)
        listeners.append(listener)
        return f"127.0.0.1:{listener.getsockname()[1]}"

    yield begin
    for listener in listeners:
        listener.close()
    for thread in threads:
        thread.join(120)


def _drip(*, until_s: float) -> Callable[[socket.socket], object]:
    """A header that never ends, byte by byte."""

    def answer(stream: socket.socket) -> None:
        stream.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        end = time.monotonic() + until_s
        while time.monotonic() < end:
            stream.sendall(b"a")
            time.sleep(0.02)

    return answer


def test_a_server_that_drips_its_answer_is_given_up_at_the_deadline(serve: Serve) -> None:
    address, begun = serve(_drip(until_s=240)), time.monotonic()
    assert probe_health(address, "/health", timeout_s=0.2) == ProbeResult(
        False, "its health route /health did not answer within 0.2 s."
    )
    assert time.monotonic() - begun < 120


def test_endless_headers_are_not_stored(serve: Serve) -> None:
    address = serve(lambda stream: stream.sendall(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 50_000))
    health = probe_health(address, "/health")
    assert not health.is_ready
    assert "headers of its answer are too long" in health.words


@pytest.mark.parametrize(
    ("answer", "health"),
    [
        (b"HTTP/1.0 200 OK\r\n\r\n", ProbeResult(True, "ready")),
        (b"HTTP/1.1 200\r\nContent-Length: 9\r\n\r\nwell then", ProbeResult(True, "ready")),
        (
            b"HTTP/1.1 503 Busy\r\nContent-Length: 7\r\n\r\nreading and more",
            ProbeResult(False, "its health route /h answers 503: reading"),
        ),
        (
            b'HTTP/1.1 503 Busy\r\nContent-Length: 36\r\n\r\n{"error": "the model is being read"}',
            ProbeResult(False, "its health route /h answers 503: the model is being read"),
        ),
        (b"HTTP/1.1 404 No\r\n\r\n", ProbeResult(False, "its health route /h answers 404.")),
        (b"SSH-2.0-x\r\n\r\n", ProbeResult(False, "its health route /h cannot be asked: what it answers is not HTTP.")),
        (b"", ProbeResult(False, "its health route /h cannot be asked: it closed the connection.")),
    ],
)
def test_an_answer_of_the_server_is_reported(serve: Serve, answer: bytes, health: ProbeResult) -> None:
    assert probe_health(serve(lambda stream: stream.sendall(answer)), "/h") == health


def test_a_closed_port_is_not_ready() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert probe_health(f"127.0.0.1:{port}", "/h").words == "nothing listens at its port yet."


def test_of_many_those_that_answer_in_time_are_known() -> None:
    go_on = threading.Event()

    def probe(address: str, route: str) -> ProbeResult:
        if address == "slow":
            go_on.wait(120)
        return ProbeResult(True, route)

    requested = {"a": ("quick", "/a"), "b": ("slow", "/b"), "c": ("quick", "/c")}
    try:
        begun = time.monotonic()
        heard = probe_all(probe, requested, within_s=3)
        assert time.monotonic() - begun < 60
    finally:
        go_on.set()
    assert heard == {"a": ProbeResult(True, "/a"), "c": ProbeResult(True, "/c")}
