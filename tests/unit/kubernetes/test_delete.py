"""Pods that do not end on nodes that report."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from core.domain.ids import AttemptId
from executors.kubernetes.cache import PodCache
from executors.kubernetes.namespaces import Namespaces
from executors.kubernetes.pods.delete import PodDeleter
from tests.unit.kubernetes.conftest import Answer
from tests.unit.kubernetes.test_observe import NOW, pod
from tests.unit.kubernetes.test_render import OPTIONS


@pytest.mark.parametrize("ready", ["True", "False"])
def test_a_pod_that_does_not_end_long_after_its_grace_is_forgotten(server, cluster, ready):
    stuck = pod(phase="Running", main={"running": {"startedAt": "2026-01-02T11:00:00Z"}}, deleted=True)
    stuck["metadata"]["deletionGracePeriodSeconds"] = 1
    left = {"pods": [stuck]}
    graces = []
    lock = threading.Lock()

    def answer(requested):
        if "watch" in requested.query:
            return Answer(events=[])
        if requested.method == "DELETE" and "/pods/" in requested.path:
            with lock:
                graces.append(requested.body["gracePeriodSeconds"])
                left["pods"] = []
            return Answer(200, {"kind": "Status"})
        if requested.path.endswith("/pods"):
            return Answer(200, {"metadata": {"resourceVersion": "9"}, "items": left["pods"]})
        if "/nodes/" in requested.path:
            return Answer(200, {"status": {"conditions": [{"type": "Ready", "status": ready}]}})
        return Answer(200, {"kind": "Status", "metadata": {}})

    server.otherwise = answer
    cache = PodCache(cluster, OPTIONS.instance, main="main", home="jobs")
    late = NOW + timedelta(seconds=61)
    ending = PodDeleter(cluster, OPTIONS, Namespaces(cluster, OPTIONS), cache, lambda: late)
    try:
        ending.remove(AttemptId("att-1"))
    finally:
        cache.reflector.stop()
    assert graces == [0]
    (reported,) = ending.unkilled_replicas(AttemptId("att-1"))
    assert "node node-a does not end it" in reported
    assert ending.unkilled_replicas(AttemptId("att-1")) == (reported,), "the caller's record of it may fail"
    ending.forget_unkilled_replicas(AttemptId("att-1"))
    assert ending.unkilled_replicas(AttemptId("att-1")) == ()
