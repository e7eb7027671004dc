"""Whoever gives a shared device back meets others who want it in that moment."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from core.domain.ids import AttemptId
from executors.kubernetes.cache import PodCache
from executors.kubernetes.namespaces import Namespaces
from executors.kubernetes.placeholders import Placeholders
from tests.unit.kubernetes.conftest import Answer
from tests.unit.kubernetes.test_render import OPTIONS

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MINE, THEIRS = "held.trainmaster/att-1", "held.trainmaster/att-2"
CONFLICT = Answer(409, {"kind": "Status", "reason": "Conflict", "message": "the version is another one"})


def placeholder(version: str, *marks: str):
    return {
        "metadata": {
            "name": "gpu-1", "namespace": "jobs", "uid": "uid-1", "resourceVersion": version,
            "creationTimestamp": "2025-01-01T00:00:00Z",
            "labels": {"trainmaster/instance": OPTIONS.instance, "trainmaster/reservation": "gpu-1"},
            "annotations": dict.fromkeys(marks, "2025-01-01T00:00:00+00:00"),
        },
        "spec": {"nodeName": "node-a", "containers": [{"name": "main"}]},
        "status": {"phase": "Running"},
    }  # fmt: skip


@pytest.fixture
def holding(server, cluster):
    """``held(pod) -> Placeholders`` of a cluster that has this placeholder."""
    caches = []

    def make(pod):
        def answer(received):
            if "watch" in received.query:
                return Answer(events=[])
            return Answer(200, {"metadata": {"resourceVersion": "9"}, "items": [pod]})

        server.otherwise = answer
        cache = PodCache(cluster, OPTIONS.instance, main="main", home="jobs")
        caches.append(cache)
        cache.reflector.start()
        cache.reflector.require()
        return Placeholders(cluster, OPTIONS, Namespaces(cluster, OPTIONS), cache, lambda: NOW)

    yield make
    for cache in caches:
        cache.reflector.stop()


def requested_of(server, method):
    return [item for item in server.received if item.method == method]


def script(server, patched, deleted):
    """What PATCH and DELETE are answered, in turn; a GET after a conflict shows what ``patched`` shows last."""
    before = server.otherwise

    def answer(received):
        if received.method == "PATCH":
            return Answer(200, patched.pop(0))
        if received.method == "DELETE":
            return deleted.pop(0)
        if received.path.endswith("/gpu-1"):
            return Answer(200, patched[0])
        return before(received)

    server.otherwise = answer


def test_the_last_one_deletes_exactly_the_version_that_it_saw(holding, server):
    placeholders = holding(placeholder("5", MINE))
    script(server, [placeholder("6")], [Answer(200, {"kind": "Status"})])
    placeholders.release(AttemptId("att-1"))
    (deleted,) = requested_of(server, "DELETE")
    assert deleted.body["preconditions"] == {"uid": "uid-1", "resourceVersion": "6"}


def test_a_device_that_another_attempt_holds_stays(holding, server):
    placeholders = holding(placeholder("5", MINE, THEIRS))
    script(server, [placeholder("6", THEIRS)], [])
    placeholders.release(AttemptId("att-1"))
    assert requested_of(server, "DELETE") == []


def test_one_who_comes_between_the_look_and_the_deletion_keeps_the_device(holding, server):
    placeholders = holding(placeholder("5", MINE))
    script(server, [placeholder("6"), placeholder("7", THEIRS)], [CONFLICT])
    placeholders.release(AttemptId("att-1"))
    assert len(requested_of(server, "DELETE")) == 1


def test_the_sweep_takes_off_old_marks_of_attempts_that_are_gone_alone(holding, server):
    placeholders = holding(placeholder("5", MINE, THEIRS))
    script(server, [placeholder("6", MINE)], [])
    placeholders.gc([AttemptId("att-1")])
    (patched,) = requested_of(server, "PATCH")
    assert patched.body == {"metadata": {"annotations": {THEIRS: None}}}
