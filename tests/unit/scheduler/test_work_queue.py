from __future__ import annotations

import threading
import time

import pytest

from core.settings import BadSettings, Settings
from scheduler.executor_factory import make_executor
from scheduler.messaging.celery_app import QUEUES, RECONCILE, TICK, make_app, schedule, send
from scheduler.messaging.wakeups import AppWakeup
from scheduler.messaging.work_queue import BatchQueue, MessageDeduplicator, SingleFlight


def test_an_equal_message_that_waits_is_not_sent_again():
    deduplicator = MessageDeduplicator(is_local=True)
    assert deduplicator.add("tick", "")
    assert not deduplicator.add("tick", "")
    assert deduplicator.add("reconcile", "att-1")
    deduplicator.discard("tick", "")
    assert deduplicator.add("tick", "")


def test_with_a_shared_broker_every_message_is_sent():
    deduplicator = MessageDeduplicator(is_local=False)
    assert deduplicator.add("tick", "")
    assert deduplicator.add("tick", "")


def test_a_call_during_a_run_makes_one_more_run():
    solo = SingleFlight()
    runs = []

    def work():
        runs.append(len(runs))
        if len(runs) == 1:
            solo.run(work)
            solo.run(work)

    solo.run(work)
    assert runs == [0, 1]


def test_a_run_that_fails_does_not_block_the_next():
    solo = SingleFlight()
    with pytest.raises(ZeroDivisionError):
        solo.run(lambda: [1 // 0, None][1])
    runs = []
    solo.run(lambda: runs.append(1))
    assert runs == [1]


def test_keys_are_worked_on_one_by_one_and_together_where_they_pile_up():
    seen = []

    def work(keys):
        seen.append(list(keys))
        if len(seen) == 1:
            for key in "abcda":  # while somebody works
                crowd.run(key)

    crowd = BatchQueue(work, workers=1, batch_size=3)
    crowd.run("first")
    assert seen == [["first"], ["a", "b", "c"], ["d"]]
    crowd.run("a")
    assert seen[-1] == ["a"]


def test_a_failure_of_some_keys_is_raised_when_the_others_are_done():
    seen = []

    def work(keys):
        seen.append(list(keys))
        if len(seen) == 1:
            crowd.run("later")
            raise ZeroDivisionError

    crowd = BatchQueue(work, workers=1, batch_size=3)
    with pytest.raises(ZeroDivisionError):
        crowd.run("first")
    assert seen == [["first"], ["later"]]
    crowd.run("next")
    assert seen[-1] == ["next"]


def test_a_hand_that_is_silent_is_not_waited_for_and_there_are_not_more_and_more():
    now_s, seen, hang, silent = [0.0], [], threading.Event(), threading.Semaphore(0)

    def work(keys):
        seen.extend(keys)
        if keys[0].startswith("hangs"):
            silent.release()
            assert hang.wait(30)

    def bring(key):
        thread = threading.Thread(target=crowd.run, args=(key,), daemon=True)
        thread.start()
        return thread

    crowd = BatchQueue(work, workers=1, batch_size=1, stuck_after_s=60.0, max_replacements=1, clock=lambda: now_s[0])
    first = bring("hangs")
    assert silent.acquire(timeout=30)
    now_s[0] = 59.0
    crowd.run("a")
    assert seen == ["hangs"], "it may still come"
    now_s[0] = 61.0
    crowd.run("hangs too")  # in a thread of its own: this returns
    assert silent.acquire(timeout=30)
    assert seen == ["hangs", "a", "hangs too"]
    now_s[0] = 200.0
    crowd.run("b")
    assert not silent.acquire(timeout=0.05)
    assert seen == ["hangs", "a", "hangs too"], "one more, and no more"
    hang.set()
    first.join(30)
    crowd.run("c")
    deadline = time.monotonic() + 30
    while set(seen) != {"hangs", "a", "hangs too", "b", "c"} and time.monotonic() < deadline:
        time.sleep(0.005)
    assert seen[3:] == ["b", "c"]


class RecordingApp:
    def __init__(self, error=None):
        self.sent = []
        self.error = error

    def send_task(self, name, args=(), **options):
        if self.error:
            raise self.error
        self.sent.append((name, args))
        self.options = options


def test_a_ring_becomes_a_task_and_an_unknown_topic_nothing():
    app = RecordingApp()
    wakeup = AppWakeup(app, MessageDeduplicator(is_local=True))
    wakeup.notify("tick")
    wakeup.notify("tick")
    wakeup.notify("reconcile", "att-1")
    wakeup.notify("nonsense")
    assert app.sent == [(TICK, ()), (RECONCILE, ("att-1",))]


def test_a_wakeup_that_the_broker_refuses_may_be_sent_again():
    app, now_s = RecordingApp(OSError("away")), 0.0
    wakeup = AppWakeup(app, MessageDeduplicator(is_local=True), clock_s=lambda: now_s)
    wakeup.notify("tick")
    app.error = None
    now_s = 60.0
    wakeup.notify("tick")
    assert app.sent == [(TICK, ())]


def test_while_the_broker_takes_no_ring_the_work_is_done_here():
    app, done = RecordingApp(OSError("away")), []
    wakeup = AppWakeup(app, MessageDeduplicator(is_local=False), lambda topic, key: done.append((topic, key)))
    wakeup.notify("tick")
    app.error = None
    wakeup.notify("reconcile", "att-1")  # the broker is not asked again at once
    assert (app.sent, done) == ([], [("tick", ""), ("reconcile", "att-1")])
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
