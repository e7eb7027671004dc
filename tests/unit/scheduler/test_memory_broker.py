from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from kombu import Connection, Consumer, Queue

from scheduler.messaging.memory_broker import TRANSPORT


@pytest.fixture
def connection() -> Iterator[Any]:
    with Connection(transport=TRANSPORT) as opened:
        yield opened


def test_a_consumer_that_waits_gets_a_message_at_once(connection: Any) -> None:
    received: list[tuple[str, float]] = []
    queue = Queue("work-at-once")

    def receive(body: str, message: Any) -> None:
        received.append((body, time.monotonic()))
        message.ack()

    def send() -> None:
        with Connection(transport=TRANSPORT) as other:
            for number in range(3):
                time.sleep(0.05)
                other.Producer().publish(str(number), routing_key=queue.name, exchange="")

    with Consumer(connection, [queue], callbacks=[receive]):
        sender = threading.Thread(target=send)
        sender.start()
        for _ in range(3):
            connection.drain_events(timeout=30)
        sender.join()
    assert [body for body, _ in received] == ["0", "1", "2"]


def test_a_consumer_without_a_message_waits_without_work(connection: Any) -> None:
    with Consumer(connection, [Queue("work-empty")]):
        cpu, start = time.thread_time(), time.monotonic()
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.5)
        assert time.monotonic() - start >= 0.5
        assert time.thread_time() - cpu < 0.1


def test_an_acknowledgement_makes_room_for_the_next_message(connection: Any) -> None:
    received: list[Any] = []
    queue = Queue("work-room")
    with Consumer(connection, [queue], prefetch_count=1, on_message=received.append):
        for _ in range(2):
            connection.Producer().publish("x", routing_key=queue.name, exchange="")
        connection.drain_events(timeout=30)
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.1)
        threading.Timer(0.1, received[0].ack).start()
        connection.drain_events(timeout=30)
    assert len(received) == 2
