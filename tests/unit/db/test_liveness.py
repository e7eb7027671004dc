from __future__ import annotations

import threading
import time

import psycopg
import pytest

from core.db import liveness as module
from core.db.liveness import ServerLiveness


class Server:
    """Answers knocks, or does not."""

    def __init__(self, *, is_there: bool = True) -> None:
        self.is_there = is_there
        self.says_no = ""
        self.knocks = 0
        self.hold = threading.Event()
        self.hold.set()

    def __call__(self) -> None:
        self.knocks += 1
        self.hold.wait(5)
        if self.says_no:
            raise psycopg.errors.TooManyConnections("53300")
        if not self.is_there:
            raise psycopg.OperationalError("no answer")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROBE_INTERVAL_S", 0.01)


def until(holds) -> None:
    deadline = time.monotonic() + 5
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_slow_statement_may_wait_while_the_server_answers_knocks():
    pulse = ServerLiveness(Server())
    assert pulse.may_wait()
    assert not pulse.is_away


def test_a_server_that_answers_no_knock_is_away_until_it_does():
    server = Server(is_there=False)
    pulse = ServerLiveness(server)
    assert not pulse.may_wait()
    assert pulse.is_away
    server.is_there = True
    until(lambda: not pulse.is_away)
    assert pulse.may_wait()


def test_one_knock_answers_all_who_ask_in_the_same_moment():
    server = Server()
    server.hold.clear()
    pulse = ServerLiveness(server)
    heard: list[bool] = []
    askers = [threading.Thread(target=lambda: heard.append(pulse.may_wait())) for _ in range(8)]
    for asker in askers:
        asker.start()
    until(lambda: server.knocks == 1)
    time.sleep(0.05)
    server.hold.set()
    for asker in askers:
        asker.join(5)
    assert (heard, server.knocks) == ([True] * 8, 1)


def test_a_server_that_says_no_is_there():
    server = Server()
    server.says_no = "too many connections"
    assert ServerLiveness(server).may_wait()


def test_a_doubt_is_cleared_in_the_background_without_telling_anybody():
    server = Server()
    pulse = ServerLiveness(server)
    pulse.suspect()
    until(lambda: server.knocks == 1)
    assert not pulse.is_away
