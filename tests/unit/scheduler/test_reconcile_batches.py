"""What a service says of looks that fail: each with its own key, whoever brought it."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
import structlog

from core.domain.errors import IllegalTransition, Unavailable
from scheduler.control.attempts.reconcile_result import ReconcileOutcome, ReconcileResult
from scheduler.messaging.celery_app import RECONCILE
from scheduler.messaging.tasks import Tasks
from scheduler.process import AlreadyReported, SchedulerProcess
from scheduler.process_metrics import ProcessMetrics


class Looked:
    """A reconciler whose looks end as they are told to, and the watch that hears of them."""

    def __init__(self, **outcomes):
        self.outcomes, self.noted = outcomes, []

    def reconcile_all(self, names, on_end):
        for name in names:
            on_end(name, self.outcomes[name])
        return {name: self.outcomes[name] for name in names}

    def note_reconciled(self, name, _look):
        self.noted.append(name)


def service_of(looked):
    process = SchedulerProcess.__new__(SchedulerProcess)
    process.reconciler = process.watch = looked
    return process


def test_each_that_fails_is_logged_with_its_own_key_and_the_others_are_watched():
    illegal = IllegalTransition("It is no move.")
    illegal.history = ({"kind": "job.placed"},)
    looked = Looked(a=ValueError("x"), b=illegal, c=ReconcileResult(ReconcileOutcome.IN_SYNC))
    with structlog.testing.capture_logs() as logs, pytest.raises(AlreadyReported):
        service_of(looked)._reconcile_batch(["a", "b", "c"])
    assert [(line["event"], line["attempt"], line["exc_info"]) for line in logs] == [
        ("task.failed", "a", looked.outcomes["a"]),
        ("task.failed", "b", illegal),
    ]
    assert logs[1]["history"] == [{"kind": "job.placed"}]
    assert looked.noted == ["c"]


def test_an_attempt_that_fails_alone_is_logged_once_and_counted_as_failed():
    process = service_of(Looked(a=ValueError("x")))
    process.reconcile = lambda key: process._reconcile_batch([key])
    process.studies = process.registrar = process.endpoints = process.storage_meter = process.webhooks = Mock()
    meter = ProcessMetrics()
    with structlog.testing.capture_logs() as logs:
        Tasks(process, meter).run(RECONCILE, "a")
    assert [line["event"] for line in logs] == ["task.failed"]
    assert meter.registry.get_sample_value("trainmaster_tasks_total", {"task": RECONCILE, "outcome": "failed"}) == 1


def test_a_database_that_is_away_is_raised_and_not_logged():
    with structlog.testing.capture_logs() as logs, pytest.raises(Unavailable):
        service_of(Looked(a=Unavailable("away"), b=ReconcileResult(ReconcileOutcome.IN_SYNC)))._reconcile_batch(
            ["a", "b"]
        )
    assert not logs
