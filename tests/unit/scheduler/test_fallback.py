"""Beat, the clock of a worker that hears none, and its hands."""

from __future__ import annotations

import socket
import struct
import threading
import time
import urllib.request

import pytest
from prometheus_client import CollectorRegistry

from scheduler.messaging import beat as module
from scheduler.messaging.beat import Beat, FallbackBeat, LocalTaskPool
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
    clock = FallbackBeat({"tick": 0.02}, done.append)
    clock.start()
    until(lambda: len(done) > 2)
    assert clock.is_active
    clock.note_message("tick")
    until(lambda: not clock.is_active)
    clock.stop()


def test_other_workers_may_take_all_messages_of_one_task(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "SILENT_S", 10.0)
    now_s = 0.0
    clock = FallbackBeat({"tick": 1.0, "sync": 5.0}, lambda _: None, lambda: now_s)
    for tick_s, sync_s, missed in ((80.0, 100.0, []), (69.0, 100.0, ["tick"]), (89.0, 84.0, ["tick", "sync"])):
        now_s = tick_s
        clock.note_message("tick")
        now_s = sync_s
        clock.note_message("sync")
        now_s = 100.0
        assert clock.missed_tasks() == missed


def test_equal_pending_work_runs_once():
    task_pool, deduplicator, done = LocalTaskPool(1), threading.Event(), []
    task_pool.submit("other", "", lambda: deduplicator.wait(5))
    for _ in range(5):
        task_pool.submit("reconcile", "att-1", lambda: done.append("att-1"))
    deduplicator.set()
    until(lambda: done == ["att-1"])
    task_pool.submit("reconcile", "att-1", lambda: done.append("again"))
    until(lambda: done == ["att-1", "again"])
    task_pool.stop()
    task_pool.submit("late", "", lambda: done.append("late"))
    assert "late" not in done


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
