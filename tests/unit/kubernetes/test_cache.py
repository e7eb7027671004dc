"""The copy of all pods while the API server forgets, throttles and goes away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from core.domain.errors import ExecutorTryAgain
from core.domain.ids import AttemptId
from executors.containers import labels
from executors.kubernetes.api_server.client import path
from executors.kubernetes.api_server.reflector import Reflector
from executors.kubernetes.cache import PodCache
from executors.kubernetes.namespaces import Namespaces
from executors.kubernetes.options import KubernetesOptions
from executors.kubernetes.pod_usage import NodeUsage
from tests.unit.kubernetes.conftest import Answer

ATTEMPT = AttemptId("att-1")
GONE = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}


def pod(name, version, *, attempt=ATTEMPT, instance="here", phase="Running", cpu="1", managed=True):
    labels = {"trainmaster/instance": instance, "trainmaster/attempt": attempt} if attempt else {}
    return {
        "metadata": {
            "name": name,
            "namespace": "jobs",
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
            "labels": labels,
            **({"managedFields": [{"manager": "x"}]} if managed else {}),
        },
        "spec": {
            "nodeName": "node-0",
            "containers": [
                {"name": "main", "image": "i", "env": [{"name": "A"}], "resources": {"requests": {"cpu": cpu}}}
            ],
        },
        "status": {"phase": phase},
    }


def page(items, version, token=""):
    return Answer(200, {"metadata": {"resourceVersion": str(version), "continue": token}, "items": items})


def watch(*events, **more):
    return Answer(events=[{"type": kind, "object": item} for kind, item in events], **more)


def until(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.01)


def silent(received):
    return watch() if "watch" in received.query else Answer(500)


@pytest.fixture
def cache(server, cluster):
    server.otherwise = silent
    made = PodCache(cluster, "here", main="main", home="jobs", page=2)
    yield made
    made.reflector.stop()


def names(pods):
    return sorted(pod["metadata"]["name"] for pod in pods)


def test_own_pods_are_cached_lean_and_others_only_by_their_usage(server, cache):
    foreign = [pod("f1", 3, attempt=""), pod("f2", 4, attempt="", phase="Succeeded")]
    server.say(page([pod("a", 1), *foreign[:1]], 9, "t"), page([foreign[1], pod("o", 5, instance="there")], 9))
    (own,) = cache.pods(ATTEMPT)
    assert own["metadata"]["name"] == "a"
    assert "managedFields" not in own["metadata"]
    assert own["spec"]["containers"] == [{"name": "main", "image": "i", "resources": {"requests": {"cpu": "1"}}}]
    assert [mark[labels.ATTEMPT] for mark in cache.labels_of_attempts()] == [ATTEMPT]
    assert cache.foreign_usage() == {"node-0": NodeUsage(2000, 0, {}, 3)}


def test_what_another_database_made_counts_as_any_tenants(server, cache):
    made = [pod(name, version) for version, name in enumerate(("ours", "theirs", "ended", "old"), start=1)]
    for entry_, database in zip(made, ("aa", "bb", "bb", ""), strict=True):
        entry_["metadata"]["labels"] |= {labels.DATABASE: database} if database else {}
        entry_["spec"]["containers"][0]["resources"]["requests"]["nvidia.com/gpu"] = "2"
    made[2]["status"]["phase"] = "Succeeded"
    server.say(page(made[:2], 9, "t"), page(made[2:], 9))
    assert cache.foreign_usage("aa") == {"node-0": NodeUsage(1000, 0, {"nvidia.com/gpu": 2}, 3)}
    assert cache.foreign_usage("bb") == {"node-0": NodeUsage(1000, 0, {"nvidia.com/gpu": 2}, 3)}
    assert cache.foreign_usage("cc") == {"node-0": NodeUsage(2000, 0, {"nvidia.com/gpu": 4}, 3)}, (
        "nobody's counts as its own"
    )
    assert cache.foreign_usage() == {"node-0": NodeUsage(0, 0, {}, 3)}


def test_a_pod_with_our_labels_in_a_namespace_that_is_not_ours_is_foreign(server, cache):
    other = pod("a", 1)
    other["metadata"]["namespace"] = "elsewhere"
    server.say(page([other], 9))
    assert cache.pods(ATTEMPT) == ()
    assert cache.labels_of_attempts() == []
    assert cache.foreign_usage() == {"node-0": NodeUsage(1000, 0, {}, 1)}


def test_with_a_namespace_for_each_project_names_tell_which_are_ours(cluster):
    long = "vision-" + "x" * 70
    namespaces = Namespaces(cluster, KubernetesOptions("here", "jobs", "runtime:1", is_per_project=True))
    ours = ["jobs", namespaces.name_of("vision"), namespaces.name_of("A Team"), namespaces.name_of(long)]
    assert [name for name in ours if not namespaces.may_hold(name)] == []
    assert not namespaces.may_hold("jobsite")
    assert not namespaces.may_hold("default")


def test_events_move_the_copy_and_ring(server, cache):
    server.say(
        page([pod("a", 1)], 9),
        watch(
            ("MODIFIED", pod("a", 10, phase="Failed")),
            ("ADDED", pod("b", 11)),
            ("BOOKMARK", {"metadata": {"resourceVersion": "12"}}),
            ("ADDED", pod("f", 13, attempt="")),
            ("DELETED", pod("a", 14)),
        ),
    )
    cache.pods(ATTEMPT)
    until(lambda: names(cache.pods(ATTEMPT)) == ["b"] and len(cache.foreign_usage()) == 1)
    assert cache.wait_for_change(5) == {ATTEMPT}
    assert cache.wait_for_change(0.01) == frozenset()
    assert cache.foreign_usage()["node-0"].cpu_milli == 1000
    assert cache.foreign_usage()["node-0"].pods == 2


def test_a_version_that_the_server_forgot_costs_exactly_one_list(server, cache):
    server.say(
        page([pod("a", 1), pod("b", 2)], 9),
        watch(("ADDED", pod("c", 10)), ("ERROR", GONE)),
        page([pod("b", 20), pod("d", 21)], 30),
    )
    cache.reflector.start()
    until(lambda: [a.query.get("resourceVersion") for a in server.received if "watch" in a.query] == ["9", "30"])
    assert names(cache.pods(ATTEMPT)) == ["b", "d"]
    assert cache.reflector.counts["lists"] == 2


def test_an_expired_page_begins_the_list_again_and_loses_nothing(server, cache):
    server.say(page([pod("a", 1), pod("b", 2)], 9, "t"), Answer(410, GONE), page([pod("b", 20)], 30))
    assert names(cache.pods(ATTEMPT)) == ["b"]


def test_after_a_break_the_watch_goes_on_where_it_stood_without_a_list(server, cache):
    server.say(
        page([], 9),
        watch(("BOOKMARK", {"metadata": {"resourceVersion": "50"}}), is_ended=True),
        Answer(is_dropped=True),
        Answer(429, {"message": "too many requests"}),
        watch(("ADDED", pod("a", 60))),
    )
    cache.reflector.start()
    until(lambda: names(cache.pods(ATTEMPT)) == ["a"], 15)
    assert cache.reflector.counts["lists"] == 1
    assert {a.query["resourceVersion"] for a in server.received[2:]} == {"50"}


def test_what_a_call_showed_is_known_before_the_watch_tells_it(server, cache):
    server.say(page([], 9))
    cache.reflector.require()
    cache.put(pod("a", 10, phase="Pending"))
    assert names(cache.pods(ATTEMPT)) == ["a"]
    cache.put(pod("a", 8, phase="Unknown"))
    assert cache.pods(ATTEMPT)[0]["status"]["phase"] == "Pending", "older news do not count"


def test_a_pod_that_was_deleted_does_not_come_back_by_a_late_answer(server, cache):
    server.say(page([pod("a", 1)], 9), watch(("DELETED", pod("a", 12))))
    cache.reflector.start()
    until(lambda: not cache.pods(ATTEMPT))
    cache.put(pod("a", 11))
    assert cache.pods(ATTEMPT) == ()
    assert cache.foreign_usage() == {}


def test_absence_is_believed_only_after_a_fresh_list(server, cache):
    server.say(page([pod("a", 1), pod("b", 2)], 9), watch())
    cache.reflector.start()
    until(lambda: len(server.received) == 2)
    server.say(page([pod("a", 1)], 40))
    cache.put(pod("late", 41))  # made after the server answered
    assert names(cache.fresh(ATTEMPT)) == ["a", "late"]
    assert names(cache.pods(ATTEMPT)) == ["a", "late"]
    received = server.received[-1]
    assert received.path == "/api/v1/namespaces/jobs/pods"
    assert received.query["labelSelector"] == "trainmaster/instance=here,trainmaster/attempt=att-1"
    assert "resourceVersion" not in received.query


def test_questions_fail_before_the_first_list_and_when_the_copy_is_old(server, cluster):
    server.otherwise = lambda _: Answer(403, {"message": "pods is forbidden", "reason": "Forbidden"})
    now = [100.0]
    cache = PodCache(cluster, "here", main="main")
    cache.reflector = Reflector(cluster, path("pods"), cache, clock=lambda: now[0])
    with pytest.raises(ExecutorTryAgain, match="pods is forbidden"):
        cache.reflector.require()
    server.say(page([pod("a", 1)], 9), watch(is_ended=True))
    until(cache.reflector._is_synced.is_set)
    assert names(cache.pods(ATTEMPT)) == ["a"], "a short break does not matter"
    failures = cache.reflector.counts["failures"]
    until(lambda: cache.reflector.counts["failures"] > failures)
    now[0] += 31
    with pytest.raises(ExecutorTryAgain, match="forbidden"):
        cache.pods(ATTEMPT)
    cache.reflector.stop()


def test_a_server_that_is_away_delays_no_caller(server, cluster):
    server.otherwise = lambda _: Answer(is_dropped=True)
    cache = PodCache(cluster, "here", main="main")
    with pytest.raises(ExecutorTryAgain):
        cache.pods(ATTEMPT)
    begin = time.monotonic()
    for _ in range(1000):
        with pytest.raises(ExecutorTryAgain, match="does not answer"):
            cache.pods(ATTEMPT)
    assert time.monotonic() - begin < 2
    cache.reflector.stop()


def test_a_listener_is_woken_at_once(server, cache):
    server.say(page([], 9))
    cache.reflector.require()
    heard = []
    listener = threading.Thread(target=lambda: heard.append(cache.wait_for_change(10)))
    listener.start()
    begin = time.monotonic()
    cache.put(pod("a", 10))
    listener.join(5)
    assert heard == [{ATTEMPT}]
    assert time.monotonic() - begin < 1
