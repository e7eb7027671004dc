"""The beat, the fallback of a worker that receives no messages, and probes."""

from __future__ import annotations

import socket
import struct
import threading
import time
import urllib.request

import pytest
from prometheus_client import CollectorRegistry

from scheduler.messaging import fallback as module
from scheduler.messaging.beat import Beat
from scheduler.messaging.fallback import Fallback
from scheduler.process_metrics import ProcessProbe, serve_probe


def until(holds) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_beat_sends_only_while_it_is_the_leader():
    sent: list[str] = []
    is_leading = False
    beat = Beat(sent.append, {"often": 0.01, "seldom": 3600.0}, lambda: is_leading)
    thread = threading.Thread(target=beat.run)
    thread.start()
    time.sleep(0.1)
    assert sent == []
    is_leading = True
    until(lambda: sent.count("often") > 2)
    beat.stop()
    thread.join(5)
    assert sent.count("seldom") == 0  # its first time was the other's; the next one comes in an hour


def test_without_messages_the_fallback_beat_runs_tasks_until_messages_come_back(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "CHECK_S", 0.01)
    monkeypatch.setattr(module, "SILENT_S", 0.2)
    done: list[str] = []
    fallback = Fallback({"tick": 0.02}, lambda task, _: done.append(task), workers=1)
    fallback.start()
    until(lambda: len(done) > 2)
    assert fallback.is_active
    fallback.note_message("tick")
    until(lambda: not fallback.is_active)
    fallback.stop()


def test_other_workers_may_take_all_messages_of_one_task(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "SILENT_S", 10.0)
    now_s = 0.0
    fallback = Fallback({"tick": 1.0, "sync": 5.0}, lambda *_: None, workers=1, clock_s=lambda: now_s)
    for tick_s, sync_s, missed in ((80.0, 100.0, []), (69.0, 100.0, ["tick"]), (89.0, 84.0, ["tick", "sync"])):
        now_s = tick_s
        fallback.note_message("tick")
        now_s = sync_s
        fallback.note_message("sync")
        now_s = 100.0
        assert fallback.missed_tasks() == missed


def test_equal_pending_tasks_run_once():
    may_end, done = threading.Event(), []

    def run_task(task: str, key: str) -> None:
        done.append((task, key))
        assert may_end.wait(60)

    fallback = Fallback({}, run_task, workers=1)
    fallback.start()
    fallback.submit("tick")
    until(lambda: done == [("tick", "")])
    for _ in range(5):
        fallback.submit("reconcile", "att-1")
    may_end.set()
    until(lambda: done == [("tick", ""), ("reconcile", "att-1")])
    fallback.submit("reconcile", "att-1")
    until(lambda: len(done) == 3)
    fallback.stop()
    fallback.submit("late")
    assert len(done) == 3


def test_a_stop_waits_for_the_task_that_runs_and_drops_the_pending_ones():
    has_begun, done = threading.Event(), []

    def run_task(task: str, _: str) -> None:
        has_begun.set()
        time.sleep(0.2)
        done.append(task)

    fallback = Fallback({}, run_task, workers=1)
    fallback.start()
    fallback.submit("first")
    assert has_begun.wait(60)
    fallback.submit("second")
    fallback.stop()
    assert done == ["first"]


def test_a_probe_distinguishes_liveness_from_readiness():
    answers = {"dead": "", "not_ready": "the database does not answer"}
    probe = ProcessProbe(lambda: answers["dead"], lambda: answers["not_ready"], CollectorRegistry())
    server = serve_probe(probe, "127.0.0.1", 0)

    def status(path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}{path}", timeout=5) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    try:
        assert (status("/live"), status("/ready"), status("/metrics"), status("/")) == (200, 503, 200, 404)
        answers.update(dead="its clock stands still", not_ready="")
        assert (status("/live"), status("/ready")) == (503, 503)
    finally:
        server.shutdown()
        server.server_close()


def test_a_prober_that_hangs_up_leaves_no_trace(capsys: pytest.CaptureFixture[str]):
    requested, gone = threading.Event(), threading.Event()

    def why_not_ready() -> str:
        requested.set()
        assert gone.wait(5)
        return ""

    def handlers() -> set[threading.Thread]:
        return {one for one in threading.enumerate() if "process_request" in one.name}

    others = handlers()  # what other tests of this process have left
    server = serve_probe(ProcessProbe(str, why_not_ready, CollectorRegistry()), "127.0.0.1", 0)
    try:
        prober = socket.create_connection(("127.0.0.1", server.server_port))
        prober.sendall(b"GET /ready HTTP/1.0\r\n\r\n")
        assert requested.wait(5)
        # A reset: whoever writes after it is told at once.
        prober.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        prober.close()
        gone.set()
        until(lambda: handlers() <= others)
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/live", timeout=5) as answer:
            assert answer.status == 200
    finally:
        server.shutdown()
        server.server_close()
    assert capsys.readouterr().err == ""
