from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

KEY = b"k" * 32


@pytest.fixture
def ps(shard: ModuleType) -> Any:
    return shard.Shard(0, 1, lr=0.5, momentum=0.0, max_staleness=8)


@pytest.fixture
def address(server: ModuleType, ps: Any) -> Iterator[tuple[str, int]]:
    """Where ``ps`` is served."""
    listener = server.listen("127.0.0.1:0")
    name = listener.getsockname()
    thread = threading.Thread(target=server.accept, args=(listener, ps, KEY))
    thread.start()
    yield name
    listener.shutdown(socket.SHUT_RDWR)  # wakes the thread; closing alone does not
    listener.close()
    thread.join()


@pytest.fixture
def worker(wire: ModuleType, address: tuple[str, int]) -> Iterator[Any]:
    channel = wire.Channel(socket.create_connection(address), KEY, is_server=False)
    yield channel
    channel.close()


def test_a_worker_fills_pulls_and_pushes(wire: ModuleType, worker: Any) -> None:
    hello = {"worker": 0, "parameters": 2, "ps": 1}
    assert worker.ask(wire.Op.HELLO, hello)[0] == {"is_ready": False}
    worker.ask(wire.Op.INIT, values=np.ones(2, np.float32))
    assert worker.ask(wire.Op.HELLO, hello)[0] == {"is_ready": True}

    meta, values = worker.ask(wire.Op.PULL)
    assert (meta, values.tolist()) == ({"version": 0}, [1, 1])
    meta, values = worker.ask(wire.Op.PUSH, {"version": 0}, np.ones(2, np.float32))
    assert (meta, values.tolist()) == ({"version": 1, "staleness": 0}, [0.5, 0.5])


@pytest.mark.parametrize("version", [None, -1, 1.5, "1", True])
def test_a_request_that_makes_no_sense_is_refused_and_the_next_one_is_served(
    wire: ModuleType, worker: Any, version: Any
) -> None:
    worker.ask(wire.Op.INIT, values=np.ones(2, np.float32))

    with pytest.raises(wire.Refused, match="version: must be a whole number"):
        worker.ask(wire.Op.PUSH, {"version": version}, np.ones(2, np.float32))
    assert worker.ask(wire.Op.PULL)[0] == {"version": 0}


def test_an_answer_is_no_request(wire: ModuleType, worker: Any) -> None:
    with pytest.raises(wire.Refused, match="OK is no request"):
        worker.ask(wire.Op.OK)


def test_strangers_and_broken_connections_hurt_nobody_else(
    wire: ModuleType, address: tuple[str, int], worker: Any
) -> None:
    worker.ask(wire.Op.INIT, values=np.ones(2, np.float32))
    with socket.create_connection(address) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(100))
    with pytest.raises(OSError):  # noqa: PT011 (closed or reset: the kernel decides)
        wire.Channel(socket.create_connection(address), b"wrong" * 7, is_server=False)
    socket.create_connection(address).close()

    assert worker.ask(wire.Op.PULL)[1].tolist() == [1, 1]


def test_a_worker_that_comes_back_finds_the_values_of_before(
    wire: ModuleType, address: tuple[str, int], worker: Any
) -> None:
    worker.ask(wire.Op.INIT, values=np.ones(2, np.float32))
    worker.ask(wire.Op.PUSH, {"version": 0}, np.ones(2, np.float32))
    worker.close()

    again = wire.Channel(socket.create_connection(address), KEY, is_server=False)
    assert again.ask(wire.Op.HELLO, {"worker": 0, "parameters": 2, "ps": 1})[0] == {"is_ready": True}
    assert again.ask(wire.Op.PULL)[0] == {"version": 1}
    again.close()
