"""Pods of elastic gangs: what is written into them, what they show, and how they are given up."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import replace

import pytest

from core.domain.errors import ExecutorRefused
from executors.base import Phase
from executors.kubernetes.cache import PodCache, lean_pod
from executors.kubernetes.namespaces import Namespaces
from executors.kubernetes.pods.delete import PodDeleter
from executors.kubernetes.pods.pod_writer import change_world, encode_world
from executors.kubernetes.pods.render import check, render_pod
from tests.orders import bare_order
from tests.unit.kubernetes.conftest import Answer
from tests.unit.kubernetes.test_observe import NOW, pod, seen_of
from tests.unit.kubernetes.test_render import OPTIONS, ORDER

RUNNING = {"running": {"startedAt": "2026-01-02T11:59:00Z"}}
UPDATED = bare_order(
    world=3,
    env={"RANK": "0", "API_KEY": "hunter2"},
    process_env=({"LOCAL_RANK": "0"},),
    job_variables=frozenset({"API_KEY"}),
)


def of_world(number: str, *, started: bool | None = None, **changes):
    entry_ = pod(phase="Running", main=RUNNING, **changes)
    entry_["metadata"]["annotations"] |= {"trainmaster/world": number, "trainmaster/world-told": "long"}
    if started is not None:
        entry_["status"]["containerStatuses"][0]["started"] = started
    return entry_


def test_the_pod_of_an_elastic_gang_shows_its_container_what_it_is_reported():
    made = render_pod(replace(ORDER, world=1), OPTIONS, "jobs")
    assert made["metadata"]["annotations"] == {
        "trainmaster/stop": "",
        "trainmaster/world": "1",
        "trainmaster/world-told": "",
    }
    requested = next(volume for volume in made["spec"]["volumes"] if volume["name"] == "asked")
    assert [item["path"] for item in requested["downwardAPI"]["items"]] == ["stop", "world"]
    assert "startupProbe" not in made["spec"]["containers"][0]


def test_kubelet_looks_at_one_that_joins_until_it_is_ready():
    made = render_pod(replace(ORDER, world=0), OPTIONS, "jobs")
    probe = made["spec"]["containers"][0]["startupProbe"]
    assert probe["exec"]["command"] == ["/trainmaster/runtime/busybox", "test", "-e", "/data/.trainmaster/joins"]


def test_an_image_s_own_command_cannot_be_elastic_and_gets_a_message():
    with pytest.raises(ExecutorRefused, match="set `command`, or `workers` to one number"):
        check(replace(ORDER, command=None, args=(), world=1), OPTIONS)


def test_one_that_joins_is_pending_until_it_has_a_world():
    waits = seen_of(of_world("0", started=False))
    assert (waits.phase, waits.facts["is_ready"], waits.started_at) == (Phase.PENDING, False, None)
    assert seen_of(of_world("0", started=True)).facts["is_ready"] is True
    joined = seen_of(of_world("2", started=True))
    assert (joined.phase, joined.facts["world"], joined.facts["is_ready"]) == (Phase.RUNNING, 2, False)
    assert "world" not in seen_of(pod(phase="Running", main=RUNNING)).facts


def test_what_a_pod_was_reported_is_not_preserved_in_memory():
    preserved = lean_pod(of_world("2"))["metadata"]["annotations"]
    assert preserved == {"trainmaster/stop": "", "trainmaster/world": "2"}


def test_what_is_reported_says_nothing_of_the_job_s_own_variables():
    reported = json.loads(zlib.decompress(base64.b64decode(encode_world(UPDATED))))
    assert reported["env"] == {"RANK": "0"}
    assert reported["kept_env"] == ["API_KEY"]
    assert (reported["world"], reported["process_env"]) == (3, [{"LOCAL_RANK": "0"}])


@pytest.fixture
def pods(server, cluster):
    """``pods(pod, ready)``: the only pod of the cluster, on a node that is ``ready``; and the changes that were
    asked.
    """
    caches = []

    def make(entry_, ready="True"):
        changes = []

        def answer(requested):
            if "watch" in requested.query:
                return Answer(events=[])
            if requested.method in ("PATCH", "DELETE"):
                changes.append((requested.method, requested.body))
                return Answer(200, {"kind": "Status"} if requested.method == "DELETE" else entry_)
            if "/nodes/" in requested.path:
                return Answer(200, {"status": {"conditions": [{"type": "Ready", "status": ready}]}})
            return Answer(200, {"metadata": {"resourceVersion": "9"}, "items": [entry_]})

        server.otherwise = answer
        caches.append(PodCache(cluster, OPTIONS.instance, main="main", home="jobs"))
        return caches[-1], changes

    yield make
    for cache in caches:
        cache.reflector.stop()


@pytest.mark.parametrize(("known", "is_informed"), [("0", True), ("2", True), ("3", False), ("4", False)])
def test_only_a_newer_world_is_written(cluster, pods, known, is_informed):
    cache, changes = pods(of_world(known))
    change_world(cluster, cache, UPDATED)
    assert bool(changes) is is_informed
    if is_informed:
        ((_, body),) = changes
        assert body["metadata"]["uid"] == "u"
        assert body["metadata"]["annotations"]["trainmaster/world"] == "3"


def test_a_pod_that_is_over_or_of_no_elastic_gang_gets_no_world(cluster, pods):
    for entry_ in (of_world("1") | {"status": {"phase": "Succeeded"}}, pod(phase="Running", main=RUNNING)):
        cache, changes = pods(entry_)
        change_world(cluster, cache, UPDATED)
        assert changes == []


@pytest.mark.parametrize(("ready", "grace_s"), [("True", 1), ("Unknown", 0)])
def test_one_that_was_given_up_ends_and_on_a_node_that_is_silent_its_name_is_free_at_once(
    cluster, pods, ready, grace_s
):
    cache, changes = pods(of_world("1"), ready)
    ending = PodDeleter(cluster, OPTIONS, Namespaces(cluster, OPTIONS), cache, lambda: NOW)
    ending.kill(UPDATED.key)
    assert [(method, body["gracePeriodSeconds"]) for method, body in changes] == [("DELETE", grace_s)]


def test_what_has_ended_stays_to_be_seen(cluster, pods):
    cache, changes = pods(of_world("1") | {"status": {"phase": "Failed"}})
    PodDeleter(cluster, OPTIONS, Namespaces(cluster, OPTIONS), cache, lambda: NOW).kill(UPDATED.key)
    assert changes == []
