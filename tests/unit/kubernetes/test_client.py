"""The client against a server that errs on purpose."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from core.domain.errors import ExecutorRefused, ExecutorTryAgain
from executors.kubernetes.api_server.access import Access, ClusterUnknown
from executors.kubernetes.api_server.client import (
    ApiRefused,
    ClientClosed,
    Gone,
    KubernetesClient,
    ObjectConflict,
    ObjectExists,
    ObjectNotFound,
    RequestThrottle,
    path,
)
from executors.kubernetes.api_server.errors import QuotaFull
from tests.unit.kubernetes.conftest import Answer

POD = {"metadata": {"name": "a"}}
QUOTA = 'pods "a" is forbidden: exceeded quota: small'


def status(code, reason="", message="", **more):
    return Answer(code, {"kind": "Status", "code": code, "reason": reason, "message": message, **more})


def test_paths_are_those_of_the_api():
    assert path("nodes", name="n") == "/api/v1/nodes/n"
    assert path("pods", "jobs", "chief-0/binding") == "/api/v1/namespaces/jobs/pods/chief-0/binding"
    assert path("networkpolicies", "jobs", group="networking.k8s.io/v1") == (
        "/apis/networking.k8s.io/v1/namespaces/jobs/networkpolicies"
    )
    assert path("pods", "../x") == "/api/v1/namespaces/..%2Fx/pods"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (status(404, "NotFound", "pods a not found"), ObjectNotFound),
        (status(409, "AlreadyExists", "pods a already exists"), ObjectExists),
        (status(409, "Conflict", "the object has been modified"), ObjectConflict),
        (status(410, "Expired", "too old"), Gone),
        (
            status(403, "Forbidden", f"{QUOTA}, requested: pods=1,cpu=2, used: pods=1,cpu=0, limited: pods=4,cpu=1"),
            ApiRefused,
        ),
        (
            status(403, "Forbidden", f"{QUOTA}, requested: pods=1,cpu=1, used: pods=1,cpu=1, limited: pods=4,cpu=1"),
            QuotaFull,
        ),
        (status(403, "Forbidden", QUOTA), QuotaFull),
        (status(400, "", 'admission webhook "w" denied the request: no'), ApiRefused),
        (status(422, "Invalid", "spec.containers: Required value"), ApiRefused),
        (status(418, "", "tea"), RuntimeError),
    ],
)
def test_each_answer_has_its_error_and_is_not_requested_twice(server, cluster, answer, error):
    server.say(answer)
    with pytest.raises(error) as raised:
        cluster.post(path("pods", "jobs"), POD)
    assert len(server.received) == 1
    if error is ApiRefused:
        assert isinstance(raised.value, ExecutorRefused)
        assert raised.value.sentence == f"The Kubernetes cluster refuses it: {answer.body['message']}."
        assert raised.value.http_status == answer.status
    if error is QuotaFull:
        assert raised.value.sentence == f"The namespace's quota is full: {answer.body['message']}."


def test_a_namespace_that_is_being_deleted_is_waited_for(server, cluster):
    causes = {"causes": [{"reason": "NamespaceTerminating"}]}
    server.otherwise = lambda _: status(403, "Forbidden", "being terminated", details=causes)
    with pytest.raises(ExecutorTryAgain, match="is being deleted"):
        cluster.post(path("pods", "jobs"), POD)


@pytest.mark.parametrize("code", [500, 503, 504, 429])
def test_trouble_of_the_server_passes_unnoticed_when_it_is_short(server, cluster, code):
    server.say(status(code), status(code), Answer(201, {"metadata": {"name": "a"}}))
    assert cluster.post(path("pods", "jobs"), POD)["metadata"]["name"] == "a"
    assert len(server.received) == 3


def test_trouble_that_lasts_is_reported_after_a_few_tries(server, cluster):
    server.otherwise = lambda _: status(503, "ServiceUnavailable", "no leader")
    with pytest.raises(ExecutorTryAgain, match="has trouble: no leader"):
        cluster.get(path("pods", "jobs", "a"))
    assert len(server.received) == 4


def test_a_dropped_connection_is_opened_again(server, cluster):
    server.say(Answer(is_dropped=True), Answer(200, POD))
    assert cluster.get(path("pods", "jobs", "a")) == POD


def test_what_has_no_name_is_not_sent_twice_unless_it_was_surely_not_taken(server, cluster):
    server.say(status(500))
    with pytest.raises(ExecutorTryAgain):
        cluster.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {"spec": {}})
    assert len(server.received) == 1
    server.say(status(429), Answer(201, {"status": {}}))
    cluster.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {"spec": {}})
    assert len(server.received) == 3


def test_retry_after_is_honoured_within_reason(server, cluster):
    server.say(Answer(429, {}, {"Retry-After": "1"}), Answer(200, POD))
    begin = time.monotonic()
    cluster.get(path("pods", "jobs", "a"))
    assert time.monotonic() - begin >= 1.0
    server.say(Answer(429, {}, {"Retry-After": "60"}))
    begin = time.monotonic()
    with pytest.raises(ExecutorTryAgain) as raised:
        cluster.get(path("pods", "jobs", "a"))
    assert time.monotonic() - begin < 2
    assert raised.value.retry_after_s == 60


def test_a_token_that_was_renewed_is_read_again_once(server, cluster, access):
    def answer(received):
        return (
            Answer(200, POD)
            if received.headers.get("Authorization") == "Bearer second"
            else status(401, "Unauthorized")
        )

    server.otherwise = answer
    with pytest.raises(ExecutorTryAgain, match="credentials"):
        cluster.get(path("pods", "jobs", "a"))
    file = Path(access.kubeconfig)
    file.write_text(file.read_text().replace("first", "second"))
    server.received.clear()
    assert cluster.get(path("pods", "jobs", "a")) == POD
    assert [received.headers["Authorization"] for received in server.received] == ["Bearer first", "Bearer second"]


def test_a_context_chooses_who_we_are(server, access):
    server.say(Answer(200, POD))
    cluster = KubernetesClient(Access(context="second", kubeconfig=access.kubeconfig))
    cluster.get(path("pods", "jobs", "a"))
    cluster.close()
    assert server.received[0].headers["Authorization"] == "Bearer other"


def test_without_any_cluster_the_sentence_says_where_to_name_one(monkeypatch, tmp_path):
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ClusterUnknown, match="set KUBECONFIG"):
        Access().connect()


def test_a_kubeconfig_that_is_just_being_written_is_read_later(tmp_path):
    file = tmp_path / "kubeconfig"
    file.write_text("")
    with pytest.raises(ExecutorTryAgain, match="cannot be read"):
        Access(kubeconfig=str(file)).connect()


def test_a_server_that_is_away_is_reported_as_such(access, server):
    server.close()
    cluster = KubernetesClient(access)
    with pytest.raises(ExecutorTryAgain, match="does not answer"):
        cluster.get(path("pods", "jobs", "a"))
    cluster.close()


def test_a_list_comes_page_by_page(server, cluster):
    server.say(
        Answer(200, {"metadata": {"continue": "t1", "resourceVersion": "7"}, "items": [1, 2]}),
        Answer(200, {"metadata": {"resourceVersion": "7"}, "items": [3]}),
    )
    pages = list(cluster.list_pages(path("pods"), {"labelSelector": "a=b"}, limit=2))
    assert [item for page in pages for item in page["items"]] == [1, 2, 3]
    assert [received.query.get("continue") for received in server.received] == [None, "t1"]
    assert server.received[1].query["labelSelector"] == "a=b"


def test_patch_and_delete_say_what_they_mean(server, cluster):
    server.say(Answer(200, POD), Answer(200, POD))
    cluster.patch(path("pods", "jobs", "a"), {"metadata": {"annotations": None}})
    cluster.delete(path("pods", "jobs", "a"), options={"gracePeriodSeconds": 0})
    assert server.received[0].headers["Content-Type"] == "application/merge-patch+json"
    assert server.received[1].body == {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}


def test_a_watch_gives_events_and_tells_when_its_version_is_too_old(server, cluster):
    gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
    server.say(Answer(events=[{"type": "ADDED", "object": POD}, {"type": "ERROR", "object": gone}]))
    watching = iter(cluster.watch(path("pods"), resource_version="5"))
    assert next(watching)["object"] == POD
    with pytest.raises(Gone):
        next(watching)
    assert server.received[0].query["resourceVersion"] == "5"
    assert server.received[0].query["allowWatchBookmarks"] == "true"


def test_closing_wakes_a_watch_that_is_silent(server, cluster):
    server.say(Answer(events=[{"type": "ADDED", "object": POD}]))
    watching = cluster.watch(path("pods"), resource_version="5")
    observation = []
    reader = threading.Thread(target=lambda: observation.extend(watching))
    reader.start()
    deadline = time.monotonic() + 5
    while not observation and time.monotonic() < deadline:
        time.sleep(0.01)
    cluster.close()
    reader.join(5)
    assert not reader.is_alive()
    with pytest.raises(ClientClosed):
        cluster.get(path("pods"))


def test_our_own_limit_lets_a_burst_through_and_then_spreads_requests():
    now = 100.0
    pace = RequestThrottle(10, 5, clock=lambda: now)
    assert [round(pace.reserve(), 3) for _ in range(7)] == [0, 0, 0, 0, 0, 0.1, 0.2]
    now = 200.0
    assert pace.reserve() == 0


def test_many_threads_share_one_cluster(server, cluster):
    server.otherwise = lambda _: Answer(200, POD)
    threads = [
        threading.Thread(target=lambda: [cluster.get(path("pods", "jobs", "a")) for _ in range(20)]) for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(server.received) == 320


def test_kubeconfig_of_the_environment_is_read_when_it_is_needed(server, access, monkeypatch):
    monkeypatch.setitem(os.environ, "KUBECONFIG", access.kubeconfig)
    assert Access().connect().host == server.url
