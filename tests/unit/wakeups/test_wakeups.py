from __future__ import annotations

import socket
import time

from core.settings import Settings
from core.wakeups import NoWakeup, ReportsProblem, SocketWakeup, WakeupSocket, make_wakeup, wakeup_socket_path


def test_a_wakeup_arrives_with_its_topic_and_key(tmp_path):
    listener = WakeupSocket(wakeup_socket_path(tmp_path))
    wakeup = SocketWakeup(wakeup_socket_path(tmp_path))
    wakeup.notify("tick")
    wakeup.notify("reconcile", "att-1")
    assert listener.receive(1.0) == ("tick", "")
    assert listener.receive(1.0) == ("reconcile", "att-1")
    listener.close()


def test_a_wakeup_without_a_listener_is_lost_silently(tmp_path):
    SocketWakeup(wakeup_socket_path(tmp_path)).notify("tick")
    NoWakeup().notify("tick")


def test_a_deep_folder_does_not_stop_wakeups(tmp_path):
    folder = tmp_path / ("a" * 100) / ("b" * 100)
    listener = WakeupSocket(wakeup_socket_path(folder))
    SocketWakeup(wakeup_socket_path(folder)).notify("tick")
    assert listener.receive(1.0) == ("tick", "")
    listener.close()
    assert not wakeup_socket_path(folder).exists()


def test_a_restarted_scheduler_takes_the_socket_of_a_killed_one(tmp_path):
    killed = WakeupSocket(wakeup_socket_path(tmp_path))
    killed._socket.close()
    wakeup = SocketWakeup(wakeup_socket_path(tmp_path))
    listener = WakeupSocket(wakeup_socket_path(tmp_path))
    wakeup.notify("tick")
    assert listener.receive(1.0) == ("tick", "")
    listener.close()


def test_more_wakeups_than_the_socket_holds_do_not_block(tmp_path):
    listener = WakeupSocket(wakeup_socket_path(tmp_path))
    wakeup = SocketWakeup(wakeup_socket_path(tmp_path))
    for _ in range(2000):
        wakeup.notify("tick")
    assert listener.receive(1.0) == ("tick", "")
    listener.close()


def test_a_broker_that_is_away_does_not_hold_the_caller_up():
    wakeup = make_wakeup(Settings(broker_url="redis://127.0.0.1:1/0"))
    begin = time.perf_counter()
    for _ in range(100):
        wakeup.notify("tick")
    assert time.perf_counter() - begin < 1.0
    # The first message imports modules, and they add loggers, over which pytest iterates when the next test begins.
    while wakeup._waiting.qsize() > 98:
        assert time.perf_counter() - begin < 120
        time.sleep(0.01)


def test_the_embedded_platform_sends_by_socket(tmp_path):
    assert isinstance(make_wakeup(Settings(home=tmp_path)), SocketWakeup)


def test_a_refusing_or_hanging_broker_is_a_problem_without_a_wakeup():
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        port = hanging.getsockname()[1]
        for address in ("127.0.0.1:1", f"127.0.0.1:{port}"):
            wakeup = make_wakeup(Settings(broker_url=f"redis://{address}/0"))
            assert isinstance(wakeup, ReportsProblem)
            assert wakeup.problem(is_asking=False) is None
            assert "Redis, the broker, does not answer" in (wakeup.problem() or "")
            assert "Redis" in (wakeup.problem(is_asking=False) or "")
