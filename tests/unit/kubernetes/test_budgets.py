"""Disruption budgets: made for every gang in the version that the cluster has, and lifted when a drain waits long."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from executors.kubernetes.budgets import LONGEST_WAIT, DisruptionBudgets
from executors.kubernetes.nodes import draining_since, is_draining
from tests.unit.kubernetes.conftest import Answer
from tests.unit.kubernetes.test_create import ORDER

NOW = datetime(2026, 1, 2, 12, 0, tzinfo=UTC)
OWNER = {"apiVersion": "v1", "kind": "Service", "name": "att-1", "uid": "u"}


class Pods:
    def attempts_on(self, nodes):
        return {"att-1": "jobs"} if "node-a" in nodes else {}


@pytest.fixture
def budgets(cluster):
    return DisruptionBudgets(cluster, "main", Pods())


def calls(server):
    return [(item.method, item.path) for item in server.received]


def test_a_budget_needs_every_pod_of_its_attempt(server, budgets):
    server.say(Answer(201, {}))
    budgets.create(ORDER, "jobs", OWNER)
    (request,) = server.received
    assert request.path == "/apis/policy/v1/namespaces/jobs/poddisruptionbudgets"
    assert request.body["apiVersion"] == "policy/v1"
    assert request.body["spec"]["minAvailable"] > 10_000
    assert request.body["spec"]["selector"]["matchLabels"]["trainmaster/attempt"] == "att-1"
    assert request.body["metadata"]["ownerReferences"] == [OWNER]


def test_the_api_version_of_an_older_cluster_is_discovered_once(server, budgets):
    server.say(Answer(404), Answer(201, {}), Answer(201, {}))
    budgets.create(ORDER, "jobs", OWNER)
    budgets.create(ORDER, "jobs", OWNER)
    assert [path.split("/")[3] for _, path in calls(server)] == ["v1", "v1beta1", "v1beta1"]


def test_a_gang_runs_without_a_budget_where_the_platform_may_not_make_one(server, budgets):
    server.say(Answer(403, {"message": "forbidden"}))
    budgets.create(ORDER, "jobs", OWNER)
    assert len(server.received) == 1


def test_a_budget_blocks_a_drain_for_ten_minutes_at_most(server, budgets):
    budgets.delete_expired({"node-a": NOW - LONGEST_WAIT + timedelta(seconds=1)}, NOW)
    budgets.delete_expired({"node-b": NOW - LONGEST_WAIT}, NOW)
    assert server.received == []
    server.say(Answer(200, {}))
    for _ in range(2):  # deleted once
        budgets.delete_expired({"node-a": NOW - LONGEST_WAIT}, NOW)
    assert calls(server) == [("DELETE", "/apis/policy/v1/namespaces/jobs/poddisruptionbudgets/att-1")]


def test_a_cordoned_node_and_one_that_the_autoscaler_takes_away_are_draining():
    since = "2026-01-02T11:50:00Z"
    cordon = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": since}
    cordoned = {"spec": {"unschedulable": True, "taints": [cordon]}}
    assert is_draining(cordoned)
    assert draining_since(cordoned) == NOW - timedelta(minutes=10)
    assert is_draining({"spec": {"unschedulable": True}})
    assert is_draining({"spec": {"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]}})
    assert not is_draining({"spec": {"taints": [{"key": "dedicated", "effect": "NoSchedule"}]}})
    assert draining_since({"spec": {}}) is None
