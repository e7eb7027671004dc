from __future__ import annotations

import threading
import time

import pytest

from core.settings import BadSettings, Settings
from core.work_queue import WorkQueue, run_together
from scheduler.executor_factory import make_executor
from scheduler.messaging.celery_app import QUEUES, RECONCILE, TICK, make_app, schedule, send
from scheduler.messaging.wakeups import AppWakeup


def test_with_one_worker_requests_during_a_run_make_one_more_run():
    runs = []

    def work(_):
        runs.append(len(runs))
        if len(runs) == 1:
            flight.run(None)
            flight.run(None)

    flight = WorkQueue(work)
    flight.run(None)
    assert runs == [0, 1]


def test_what_fails_and_was_requested_again_is_worked_on_once_more():
    runs = []

    def work(_):
        runs.append(len(runs))
        if len(runs) == 1:
            flight.run(None)
            raise ZeroDivisionError

    flight = WorkQueue(work)
    with pytest.raises(ZeroDivisionError):
        flight.run(None)
    assert runs == [0, 1]


def test_keys_are_worked_on_one_by_one_and_together_where_they_pile_up():
    batches = []

    def work(keys):
        batches.append(list(keys))
        if len(batches) == 1:
            for key in "abcda":  # during the first batch
                queue.run(key)

    queue = WorkQueue(work, workers=1, batch_size=3)
    queue.run("first")
    assert batches == [["first"], ["a", "b", "c"], ["d"]]
    queue.run("a")
    assert batches[-1] == ["a"]


def test_a_failure_of_some_keys_is_raised_when_the_others_are_done():
    batches = []

    def work(keys):
        batches.append(list(keys))
        if len(batches) == 1:
            queue.run("later")
            raise ZeroDivisionError

    queue = WorkQueue(work, workers=1, batch_size=3)
    with pytest.raises(ZeroDivisionError):
        queue.run("first")
    assert batches == [["first"], ["later"]]
    queue.run("next")
    assert batches[-1] == ["next"]


def test_a_stuck_worker_is_replaced_and_there_is_a_limit_to_replacements():
    now_s, batches, hang, silent = [0.0], [], threading.Event(), threading.Semaphore(0)

    def work(keys):
        batches.extend(keys)
        if keys[0].startswith("hangs"):
            silent.release()
            assert hang.wait(30)

    def bring(key):
        thread = threading.Thread(target=queue.run, args=(key,), daemon=True)
        thread.start()
        return thread

    queue = WorkQueue(work, workers=1, batch_size=1, stuck_after_s=60.0, max_replacements=1, clock=lambda: now_s[0])
    first = bring("hangs")
    assert silent.acquire(timeout=30)
    now_s[0] = 59.0
    queue.run("a")
    assert batches == ["hangs"], "it may still come"
    now_s[0] = 61.0
    queue.run("hangs too")  # in a thread of its own: this returns
    assert silent.acquire(timeout=30)
    assert batches == ["hangs", "a", "hangs too"]
    now_s[0] = 200.0
    queue.run("b")
    assert not silent.acquire(timeout=0.05)
    assert batches == ["hangs", "a", "hangs too"], "one more, and no more"
    hang.set()
    first.join(30)
    queue.run("c")
    deadline = time.monotonic() + 30
    while set(batches) != {"hangs", "a", "hangs too", "b", "c"} and time.monotonic() < deadline:
        time.sleep(0.005)
    assert batches[3:] == ["b", "c"]


def test_a_batch_that_fails_is_worked_on_one_by_one():
    calls = []

    def work(requests):
        calls.append(list(requests))
        if "b" in requests:
            raise ZeroDivisionError
        return {key: value * 2 for key, value in requests.items()}

    answers = run_together({"a": 1, "b": 2, "c": 3}, work, lambda _: False)
    assert (answers["a"], type(answers["b"]), answers["c"]) == (2, ZeroDivisionError, 6)
    assert calls == [["a", "b", "c"], ["a"], ["b"], ["c"]]
    calls.clear()
    answers = run_together({"a": 1, "b": 2, "c": 3}, work, lambda _: len(calls) > 1)
    assert (answers["a"], type(answers["b"]), type(answers["c"])) == (2, ZeroDivisionError, ZeroDivisionError)
    assert calls == [["a", "b", "c"], ["a"], ["b"]]


class RecordingApp:
    def __init__(self, error=None):
        self.sent = []
        self.error = error

    def send_task(self, name, args=(), **options):
        if self.error:
            raise self.error
        self.sent.append((name, args))
        self.options = options


def test_a_wakeup_becomes_a_task_once_until_it_is_consumed_and_an_unknown_topic_nothing():
    app = RecordingApp()
    wakeup = AppWakeup(app)
    wakeup.notify("tick")
    wakeup.notify("tick")
    wakeup.notify("reconcile", "att-1")
    wakeup.notify("nonsense")
    assert app.sent == [(TICK, ()), (RECONCILE, ("att-1",))]
    wakeup.note_message("tick", "")
    wakeup.notify("tick")
    assert app.sent[2:] == [(TICK, ())]


def test_with_a_shared_broker_every_message_is_sent():
    app = RecordingApp()
    wakeup = AppWakeup(app, lambda _task, _key: None)
    wakeup.notify("tick")
    wakeup.notify("tick")
    assert app.sent == [(TICK, ()), (TICK, ())]


def test_a_wakeup_that_the_broker_refuses_may_be_sent_again():
    app, now_s = RecordingApp(OSError("away")), 0.0
    wakeup = AppWakeup(app, clock_s=lambda: now_s)
    wakeup.notify("tick")
    app.error = None
    now_s = 60.0
    wakeup.notify("tick")
    assert app.sent == [(TICK, ())]


def test_while_the_broker_takes_no_ring_the_work_is_done_here():
    app, done = RecordingApp(OSError("away")), []
    wakeup = AppWakeup(app, lambda task, key: done.append((task, key)))
    wakeup.notify("tick")
    app.error = None
    wakeup.notify("reconcile", "att-1")  # the broker is not asked again at once
    assert (app.sent, done) == ([], [(TICK, ""), (RECONCILE, "att-1")])
    assert wakeup.is_broker_away


def test_the_beat_sends_every_task_and_its_messages_expire():
    app = make_app(Settings())
    every = schedule(Settings())
    assert set(every) >= {TICK, "trainmaster.reconcile_due"}
    sender = RecordingApp()
    send(sender, TICK, every[TICK])
    assert sender.options["expires"] >= 5.0
    assert {route["queue"] for route in app.conf.task_routes.values()} <= set(QUEUES)
    assert app.conf.worker_redirect_stdouts is False


def test_a_missing_cluster_setting_is_reported(monkeypatch, tmp_path):
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(BadSettings, match="set KUBECONFIG"):
        make_executor(Settings(executor="kubernetes"))


@pytest.mark.parametrize(
    ("field", "text"), [("kubernetes_egress", "example.org"), ("kubernetes_tolerations", "a:Never")]
)
def test_a_setting_that_cannot_be_used_is_named(field, text):
    with pytest.raises(BadSettings, match=f"TRAINMASTER_{field.upper()}: '{text}' is no"):
        make_executor(Settings(executor="kubernetes", **{field: text}))
