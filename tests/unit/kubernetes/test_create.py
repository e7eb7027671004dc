"""What a restart of one replica meets of its earlier start."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from executors.kubernetes.budgets import DisruptionBudgets
from executors.kubernetes.cache import PodCache
from executors.kubernetes.namespaces import Namespaces
from executors.kubernetes.placeholders import Placeholders
from executors.kubernetes.pods.create import PodCreator
from tests.unit.kubernetes.conftest import Answer
from tests.unit.kubernetes.test_render import OF_REPLICA, OPTIONS, ORDER

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NOT_FOUND = Answer(404, {"kind": "Status", "reason": "NotFound"})


def pod(generation, *, index="2", phase="Pending"):
    name = f"att-1-worker-{index}-g{generation}"
    own = {**OF_REPLICA, "trainmaster/index": index, "trainmaster/generation": str(generation)}
    metadata = {"name": name, "namespace": "jobs", "uid": f"uid-{name}", "resourceVersion": "5", "labels": own}
    return {
        "metadata": metadata,
        "spec": {"nodeName": "node-a", "containers": [{"name": "main"}]},
        "status": {"phase": phase},
    }


class KubernetesClient:
    """What the server holds: pods, and a Service that may be another one each time."""

    def __init__(self, server, pods):
        self.pods = {item["metadata"]["name"]: item for item in pods}
        self.service = "uid-first"
        self.server = server
        server.otherwise = self.answer

    def answer(self, received):
        kind = received.path.rstrip("/").split("/jobs/")[-1].split("/")[0]
        if "watch" in received.query:
            return Answer(events=[])
        if received.method == "DELETE":
            self.pods.pop(received.path.rpartition("/")[2], None)
            return Answer(200, {"kind": "Status"})
        if received.method == "POST":
            return self.made(kind, received.body)
        if received.path.endswith("/pods"):
            return Answer(200, {"metadata": {"resourceVersion": "9"}, "items": list(self.pods.values())})
        return NOT_FOUND if kind == "configmaps" else Answer(200, {"metadata": {"name": "jobs"}})

    def made(self, kind, body):
        uid = self.service if kind == "services" else f"uid-{body['metadata']['name']}"
        made = {**body, "metadata": {**body["metadata"], "uid": uid, "resourceVersion": "10"}}
        if kind == "pods":
            self.pods[body["metadata"]["name"]] = made
        return Answer(201, made)

    def did(self, method):
        received = [item for item in self.server.received if item.method == method and "/pods" in item.path]
        return [item.path.rpartition("/")[2] if method == "DELETE" else item.body for item in received]


@pytest.fixture
def start(server, cluster):
    with contextlib.ExitStack() as stack:

        def make(*pods):
            holding = KubernetesClient(server, pods)
            cache = PodCache(cluster, OPTIONS.instance, main="main", home="jobs")
            namespaces = Namespaces(cluster, OPTIONS)
            placeholders = Placeholders(cluster, OPTIONS, namespaces, cache, lambda: NOW)
            budgets = DisruptionBudgets(cluster, OPTIONS.instance, cache)
            starting = PodCreator(cluster, OPTIONS, namespaces, cache, placeholders, budgets)
            stack.callback(starting.close)
            stack.callback(cache.reflector.stop)
            return holding, starting

        yield make


def order(generation):
    return replace(ORDER, key=replace(ORDER.key, generation=generation))


def test_what_still_waits_of_an_earlier_start_is_deleted_before_the_next(server, start):
    holding, starting = start(pod(1, phase="Failed"), pod(2), pod(1, index="0"))
    starting.create(order(3))
    assert holding.did("DELETE") == ["att-1-worker-2-g2"]
    received = [(item.method, item.path) for item in server.received if "/pods/" in item.path or item.method == "POST"]
    assert [method for method, path in received if path.endswith("/pods") or "/pods/" in path] == ["DELETE", "POST"]
    assert set(holding.pods) == {"att-1-worker-2-g1", "att-1-worker-0-g1", "att-1-worker-2-g3"}


def test_a_first_start_looks_for_no_other(start):
    holding, starting = start()
    starting.create(order(1))
    assert holding.did("DELETE") == []


def test_a_service_that_was_made_again_owns_the_next_start(start):
    holding, starting = start()
    starting.create(order(1))
    holding.service = "uid-second"
    starting.create(order(2))
    owners = [body["metadata"]["ownerReferences"][0]["uid"] for body in holding.did("POST")]
    assert owners == ["uid-first", "uid-second"]
