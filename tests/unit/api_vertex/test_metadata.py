"""Metadata stores as Vertex AI's SDK speaks to them, request by request; tests/frameworks has the real one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.testclient import TestClient

from api.protocols.vertex.metadata import routes, runs
from api.protocols.vertex.records import lists
from core.db.engine import SessionFactory, unit_of_work
from core.db.repositories.vertex_records import delete_records
from core.db.tables import VertexLink, VertexRecord
from tests.databases import recorded_statements
from tests.unit.api_vertex.test_jobs import PARENT, error_of

HOME = PARENT.removeprefix("/v1/")
STORE = f"{PARENT}/metadataStores/default"


@pytest.fixture
def store(client: TestClient) -> str:
    made = client.post(f"{PARENT}/metadataStores?metadataStoreId=default", json={}).json()
    assert made["done"] is True
    assert made["response"]["@type"] == "type.googleapis.com/google.cloud.aiplatform.v1.MetadataStore"
    return STORE


def make(client: TestClient, noun: str, name: str, schema: str = "system.Experiment", **more: Any) -> Any:
    word = f"{noun.removesuffix('s')}Id"
    answer = client.post(
        f"{STORE}/{noun}?{word}={name}",
        json={"displayName": name, "schemaTitle": schema, "schemaVersion": "0.0.1", **more},
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


def name_of(noun: str, name: str) -> str:
    return f"{HOME}/metadataStores/default/{noun}/{name}"


def listed(client: TestClient, noun: str, text: str, **more: Any) -> list[str]:
    answer = client.get(f"{STORE}/{noun}", params={"filter": text, **more})
    assert answer.status_code == 200, answer.text
    return [one["name"].rpartition("/")[2] for one in answer.json().get(noun, [])]


def test_a_store_is_made_before_anything_in_it(client: TestClient) -> None:
    assert "metadata store" in error_of(client.get(STORE), 404, "NOT_FOUND")
    error_of(client.get(f"{STORE}/contexts/x"), 404, "NOT_FOUND")
    refused = client.post(f"{STORE}/contexts?contextId=x", json={"displayName": "x"})
    assert "metadataStores/default is not found" in error_of(refused, 404, "NOT_FOUND")
    first = client.post(f"{PARENT}/metadataStores?metadataStoreId=default", json={}).json()
    # Programs that begin at once all make it, and none of them ends.
    again = client.post(f"{PARENT}/metadataStores?metadataStoreId=default", json={}).json()
    assert (first["response"]["name"], again["done"]) == (f"{HOME}/metadataStores/default", True)
    other = client.post(f"{PARENT}/metadataStores?metadataStoreId=other", json={})
    assert other.status_code == 200
    taken = client.post(f"{PARENT}/metadataStores?metadataStoreId=other", json={})
    assert "already exists" in error_of(taken, 409, "ALREADY_EXISTS")
    assert [one["name"] for one in client.get(f"{PARENT}/metadataStores").json()["metadataStores"]] == [
        f"{HOME}/metadataStores/default",
        f"{HOME}/metadataStores/other",
    ]


def test_who_makes_the_default_store_a_moment_later_gets_it(
    client: TestClient, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on a database where two write at once: it looks before the other's store is there, and writes after.
    monkeypatch.setattr(runs, "find_record", lambda *_: None)
    second = client.post(f"{PARENT}/metadataStores?metadataStoreId=default", json={})
    assert (second.status_code, second.json()["response"]["name"]) == (200, f"{HOME}/metadataStores/default")
    assert len(client.get(f"{PARENT}/metadataStores").json()["metadataStores"]) == 1


def test_a_context_is_stored_as_sent(client: TestClient, store: str) -> None:
    reply = make(client, "contexts", "e", metadata={"experiment_deleted": False, "n": 3.5}, labels={"a": "b"})
    assert reply["name"] == name_of("contexts", "e")
    assert (reply["metadata"], reply["labels"]) == ({"experiment_deleted": False, "n": 3.5}, {"a": "b"})
    assert (reply["schemaTitle"], reply["schemaVersion"], reply["createTime"][-1]) == (
        "system.Experiment",
        "0.0.1",
        "Z",
    )
    assert client.get(f"{store}/contexts/e?$alt=json;enum-encoding=int").json() == reply
    taken = client.post(f"{store}/contexts?contextId=e", json={"schemaTitle": "system.Experiment"})
    assert "already exists" in error_of(taken, 409, "ALREADY_EXISTS")
    assert "is not found" in error_of(client.get(f"{store}/contexts/none"), 404, "NOT_FOUND")


def test_whoever_logs_with_an_old_view_takes_nothing_away(client: TestClient, store: str) -> None:
    seen = make(client, "contexts", "r", "system.ExperimentRun", metadata={"_metrics": {}, "_state": "RUNNING"})

    def log(view: Any, **metadata: Any) -> Any:
        answer = client.patch(f"{store}/contexts/r", json={**view, "metadata": {**view["metadata"], **metadata}})
        assert answer.status_code == 200, answer.text
        return answer.json()

    first = log(seen, _metrics={"a": 1.0})
    second = log(seen, _metrics={"b": 2.0})  # with the etag from before
    assert first["etag"] < second["etag"]
    assert second["metadata"] == {"_metrics": {"a": 1.0, "b": 2.0}, "_state": "RUNNING"}
    # With the newest view it is set as it is sent.
    assert log(second, _metrics={"c": 3.0})["metadata"]["_metrics"] == {"c": 3.0}
    # Named fields alone, and nothing else.
    masked = client.patch(
        f"{store}/contexts/r?updateMask=description,metadata",
        json={"description": "d", "displayName": "no", "metadata": {}},
    ).json()
    assert (masked["description"], masked["displayName"], "metadata" in masked) == ("d", "r", False)


def test_a_part_that_is_named_is_changed_alone(client: TestClient, store: str) -> None:
    old = {"a": 1, "b": {"x": 1, "y": 2}, "c": 3}
    make(client, "contexts", "r", metadata=old, labels={"k": "v", "l": "w"})

    def masked(mask: str, **body: Any) -> Any:
        return client.patch(f"{store}/contexts/r?updateMask={mask}", json=body)

    reply = masked("metadata.a,metadata.b.x", metadata={"a": 9, "b": {"x": 8, "y": 7}, "c": 6}).json()
    assert reply["metadata"] == {"a": 9, "b": {"x": 8, "y": 2}, "c": 3}
    # What is named and not sent goes away.
    reply = masked("metadata.c,labels.k", labels={"l": "no"}).json()
    assert (reply["metadata"], reply["labels"]) == ({"a": 9, "b": {"x": 8, "y": 2}}, {"l": "w"})
    assert masked("metadata.new.deep", metadata={"new": {"deep": 1}}).json()["metadata"]["new"] == {"deep": 1}
    for wrong in ("displayName.x", "metadata.", "metadata..x"):
        assert "is no part of a context" in error_of(masked(wrong, displayName="z"), 400, "INVALID_ARGUMENT")
    assert client.get(f"{store}/contexts/r").json()["displayName"] == "r"
    # Part by part it grows no larger than all at once.
    assert masked("metadata.p", metadata={"p": "x" * 150_000}).status_code == 200
    assert "200,000 at most" in error_of(masked("metadata.q", metadata={"q": "x" * 150_000}), 400, "INVALID_ARGUMENT")


def test_two_at_once_lose_nothing(client: TestClient, store: str) -> None:
    seen = make(client, "contexts", "r", "system.ExperimentRun", metadata={"_metrics": {}})

    def log(number: int) -> int:
        body = {**seen, "metadata": {"_metrics": {f"m{number}": number}}}
        return client.patch(f"{store}/contexts/r", json=body).status_code

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(log, range(12))) == {200}
    metadata = client.get(f"{store}/contexts/r").json()["metadata"]
    # The one whose view was the newest set all there was; each later one added to it.
    assert metadata["_metrics"] == {f"m{number}": number for number in range(12)}


def test_children_members_and_what_filters_find(client: TestClient, store: str) -> None:
    for name in ("e", "f"):
        make(client, "contexts", name)
    for name in ("e-1", "e-2", "f-1"):
        make(client, "contexts", name, "system.ExperimentRun")
    make(client, "contexts", "e-p", "system.PipelineRun")
    for above, below in (("e", ["e-1", "e-2", "e-p"]), ("f", ["f-1"])):
        children = {"childContexts": [name_of("contexts", one) for one in below]}
        for _ in range(2):  # done again it changes nothing
            assert client.post(f"{store}/contexts/{above}:addContextChildren", json=children).json() == {}
    assert client.get(f"{store}/contexts/e-1").json()["parentContexts"] == [name_of("contexts", "e")]
    runs = f'schema_title="system.ExperimentRun" AND parent_contexts:"{name_of("contexts", "e")}"'
    assert listed(client, "contexts", runs) == ["e-1", "e-2"]
    either = (
        '(schema_title="system.ExperimentRun" OR schema_title="system.PipelineRun") AND '
        f'parent_contexts:"{name_of("contexts", "e")}"'
    )
    assert listed(client, "contexts", either) == ["e-1", "e-2", "e-p"]
    assert listed(client, "contexts", 'schemaTitle="system.Experiment"') == ["e", "f"]
    assert listed(client, "contexts", f'child_contexts:"{name_of("contexts", "f-1")}"') == ["f"]
    assert listed(client, "contexts", "parent_contexts:*", orderBy="display_name desc") == ["f-1", "e-p", "e-2", "e-1"]
    assert listed(client, "contexts", f'NOT parent_contexts:"{name_of("contexts", "e")}"') == ["e", "f", "f-1"]

    make(
        client,
        "artifacts",
        "a",
        "system.Metrics",
        uri="gs://data/a",
        state=2,
        metadata={"score": 0.9, "ok": True, "k": "v"},
    )
    make(client, "artifacts", "b", "system.Model", metadata={"score": "high"})
    make(client, "executions", "x", "system.Run", state=2)
    add = {"artifacts": [name_of("artifacts", "a")], "executions": [name_of("executions", "x")]}
    assert client.post(f"{store}/contexts/e-1:addContextArtifactsAndExecutions", json=add).json() == {}
    inside = f'in_context("{name_of("contexts", "e-1")}")'
    assert listed(client, "artifacts", inside) == ["a"]
    assert listed(
        client, "executions", f'schema_title="system.Run" AND ({inside} OR in_context("{name_of("contexts", "f-1")}"))'
    ) == ["x"]
    assert listed(client, "artifacts", f'in_context("{name_of("contexts", "e")}")') == []
    assert listed(client, "artifacts", "metadata.score.number_value >= 0.9") == ["a"]
    assert listed(client, "artifacts", 'metadata.score.string_value="high" OR metadata.ok.bool_value=true') == [
        "a",
        "b",
    ]
    assert listed(client, "artifacts", 'uri="gs://data/a" AND state=LIVE') == ["a"]
    assert client.get(f"{store}/executions/x").json()["state"] == "RUNNING"

    unlinked = {"childContexts": [name_of("contexts", "e-2")]}
    client.post(f"{store}/contexts/e:removeContextChildren", json=unlinked)
    assert listed(client, "contexts", runs) == ["e-1"]


def test_inputs_and_outputs_of_an_execution(client: TestClient, store: str) -> None:
    make(client, "executions", "x", "system.ContainerExecution")
    for name in ("in", "out"):
        make(client, "artifacts", name, "system.Dataset")
    events = [
        {"artifact": name_of("artifacts", "in"), "type": 1},
        {"artifact": name_of("artifacts", "out"), "type": "OUTPUT"},
    ]
    assert client.post(f"{store}/executions/x:addExecutionEvents", json={"events": events}).json() == {}
    graph = client.get(f"{store}/executions/x:queryExecutionInputsAndOutputs").json()
    assert [(one["artifact"].rpartition("/")[2], one["type"]) for one in graph["events"]] == [
        ("in", "INPUT"),
        ("out", "OUTPUT"),
    ]
    assert [one["displayName"] for one in graph["artifacts"]] == ["in", "out"]
    make(client, "contexts", "c")
    client.post(
        f"{store}/contexts/c:addContextArtifactsAndExecutions", json={"executions": [name_of("executions", "x")]}
    )
    assert client.get(f"{store}/contexts/c:queryContextLineageSubgraph").json() == graph


def test_lists_come_in_pages(client: TestClient, store: str, clock: Any) -> None:
    for number in range(7):
        clock.advance(1)
        make(client, "contexts", f"c{number}", metadata={"n": number})
    for query, wanted in (
        ({}, "0123456"),
        ({"orderBy": "create_time desc"}, "6543210"),
        ({"orderBy": "displayName"}, "0123456"),
        ({"filter": "metadata.n.number_value > 2"}, "3456"),
    ):
        token, found = "", []
        for _ in range(7):
            answer = client.get(f"{STORE}/contexts", params={"pageSize": 2, "pageToken": token, **query}).json()
            found += [one["displayName"][1:] for one in answer.get("contexts", [])]
            token = answer.get("nextPageToken", "")
            if not token:
                break
        assert "".join(found) == wanted
    for number in range(2):  # the longest names there are
        answer = client.post(
            f"{STORE}/contexts?contextId=long{number}", json={"displayName": "\U0001f600" * 127 + str(number)}
        )
        assert answer.status_code == 200
    by_name = {"pageSize": 1, "orderBy": "display_name desc"}
    first = client.get(f"{STORE}/contexts", params=by_name).json()["nextPageToken"]
    second = client.get(f"{STORE}/contexts", params={**by_name, "pageToken": first}).json()["contexts"]
    assert [one["name"].rpartition("/")[2] for one in second] == ["long0"]
    first = client.get(f"{STORE}/contexts", params={"pageSize": 2}).json()["nextPageToken"]
    wrong = client.get(f"{STORE}/contexts", params={"pageToken": first, "orderBy": "name"})
    assert "another order" in error_of(wrong, 400, "INVALID_ARGUMENT")
    error_of(client.get(f"{STORE}/contexts", params={"pageToken": "x"}), 400, "INVALID_ARGUMENT")


def test_a_long_filter_looks_at_fewer_rows_in_a_page_and_misses_none(
    client: TestClient, store: str, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "COMPARISON_LIMIT", 10)
    monkeypatch.setattr(lists, "MIN_SCANNED_ROWS", 3)
    for number in range(8):
        clock.advance(1)
        make(client, "contexts", f"c{number}", metadata={"n": number})
    wanted = " OR ".join(f"metadata.n.number_value = {number}" for number in (1, 6, 7, 20, 30))
    pages, token = [], ""
    while True:
        query = {"filter": wanted, "pageToken": token}
        answer = client.get(f"{store}/contexts", params=query).json()
        pages.append([one["displayName"] for one in answer.get("contexts", [])])
        token = answer.get("nextPageToken", "")
        if not token:
            break
    assert pages == [["c1"], [], ["c6", "c7"]]
    # More than a database takes in one statement, where each had a part in it.
    every = " AND ".join(['schema_title="system.Experiment"'] * 1_100)
    assert listed(client, "contexts", every)[:3] == ["c0", "c1", "c2"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('shape="round"', "there is no field 'shape'"),
        ("schema_title", "compared with nothing"),
        ('parent_contexts>"x"', "parent_contexts is asked for as"),
        ('in_context("x"', "compared with nothing"),  # of artifacts and executions alone
        ("metadata.score > 1", "number_value"),
        ("metadata.score.number_value > x", "is no number_value"),
        ("create_time > yesterday", "is no time"),
        ("(" * 30 + 'name="x"' + ")" * 30, "nested too deeply"),
        ("NOT " * 5_000 + 'name="x"', "nested too deeply"),
        ('display_name.x="y"', "has no part"),
    ],
)
def test_invalid_filters_are_refused(client: TestClient, store: str, text: str, words: str) -> None:
    answer = client.get(f"{store}/contexts", params={"filter": text})
    assert words in error_of(answer, 400, "INVALID_ARGUMENT")


@pytest.mark.parametrize(
    ("noun", "body", "code", "status", "words"),
    [
        ("contexts", {"shape": 1}, 400, "INVALID_ARGUMENT", 'Unknown name "shape"'),
        ("contexts", {"metadata": {"a": "x" * 300_000}}, 400, "INVALID_ARGUMENT", "200,000 at most"),
        ("contexts", {"metadata": [1]}, 400, "INVALID_ARGUMENT", "this is an object"),
        ("contexts", {"labels": {"a": 1}}, 400, "INVALID_ARGUMENT", "map of text"),
        ("artifacts", {"state": 9}, 400, "INVALID_ARGUMENT", "one of STATE_UNSPECIFIED, PENDING, LIVE"),
        ("artifacts", {"state": "ALIVE"}, 400, "INVALID_ARGUMENT", "LIVE"),
        ("executions", {"displayName": "x" * 200}, 400, "INVALID_ARGUMENT", "at most 128"),
    ],
)
def test_records_beyond_the_limits_are_refused(
    client: TestClient, store: str, noun: str, body: Any, code: int, status: str, words: str
) -> None:
    assert words in error_of(client.post(f"{store}/{noun}", json=body), code, status)


def test_names_and_what_never_changes(client: TestClient, store: str) -> None:
    for wrong in ("a b", "-x", "x" * 129, "a%00"):
        answer = client.post(f"{store}/contexts?contextId={wrong}", json={})
        assert answer.status_code == 400, wrong
    make(client, "contexts", "c")
    other = client.patch(f"{store}/contexts/c", json={"schemaTitle": "system.Run"})
    assert "for good" in error_of(other, 400, "INVALID_ARGUMENT")
    assert "no field 'shape'" in error_of(
        client.patch(f"{store}/contexts/c?updateMask=shape", json={}), 400, "INVALID_ARGUMENT"
    )
    loop = client.post(f"{store}/contexts/c:addContextChildren", json={"childContexts": [name_of("contexts", "c")]})
    assert "cannot be its child" in error_of(loop, 400, "FAILED_PRECONDITION")
    gone = client.post(f"{store}/contexts/c:addContextChildren", json={"childContexts": [name_of("contexts", "none")]})
    assert "is not found" in error_of(gone, 404, "NOT_FOUND")
    foreign = {"childContexts": ["projects/other/locations/us-central1/metadataStores/default/contexts/c"]}
    answer = client.post(f"{store}/contexts/c:addContextChildren", json=foreign)
    assert "is not the name of one of the contexts" in error_of(answer, 400, "INVALID_ARGUMENT")
    purge = client.post(f"{store}/contexts:purge", json={})
    assert "contexts:purge is not served" in error_of(purge, 501, "UNIMPLEMENTED")
    error_of(client.get(f"{store}/metadataSchemas"), 501, "UNIMPLEMENTED")
    key = {"encryptionSpec": {"kmsKeyName": "k"}}
    answer = client.post(f"{PARENT}/metadataStores?metadataStoreId=k", json=key)
    assert "encryption_spec" in error_of(answer, 501, "UNIMPLEMENTED")


def test_a_deleted_store_takes_all_of_it_along(client: TestClient, store: str, sessions: SessionFactory) -> None:
    make(client, "contexts", "e")
    make(client, "contexts", "e-1")
    client.post(f"{store}/contexts/e:addContextChildren", json={"childContexts": [name_of("contexts", "e-1")]})
    assert client.delete(f"{store}/contexts/e").json()["done"] is True
    assert "parentContexts" not in client.get(f"{store}/contexts/e-1").json()
    error_of(client.delete(f"{store}/contexts/e"), 404, "NOT_FOUND")
    make(client, "contexts", "e", metadata={"new": True})
    assert client.get(f"{store}/contexts/e").json()["metadata"] == {"new": True}
    assert client.delete(store).json()["done"] is True
    with unit_of_work(sessions, read_only=True) as session:
        assert session.query(VertexRecord).count() == session.query(VertexLink).count() == 0


def test_only_members_of_the_project_see_and_change(
    client: TestClient, store: str, as_user: Callable[..., TestClient]
) -> None:
    make(client, "contexts", "e")
    client.post("/api/v1/projects", json={"name": "theirs"})
    viewer = as_user("vera", role="viewer")
    assert "denied" in error_of(
        viewer.get(f"{PARENT.replace('default', 'theirs')}/metadataStores"), 403, "PERMISSION_DENIED"
    )
    reader = as_user("rita", role="member", scopes=("read",))
    assert "scope write" in error_of(reader.delete(f"{store}/contexts/e"), 403, "PERMISSION_DENIED")
    assert viewer.get(f"{store}/contexts/e").status_code == 200
    refused = viewer.patch(f"{store}/contexts/e", json={"description": "x"})
    assert "viewer" in error_of(refused, 403, "PERMISSION_DENIED")
    error_of(viewer.delete(f"{store}/contexts/e"), 403, "PERMISSION_DENIED")
    # Another project and another location have names of their own.
    for parent in (PARENT.replace("default", "theirs"), PARENT.replace("us-central1", "europe-west4")):
        error_of(client.get(f"{parent}/metadataStores/default"), 404, "NOT_FOUND")
    assert "location is needed" in error_of(
        client.get(f"{PARENT.replace('us-central1', '-')}/metadataStores"), 400, "INVALID_ARGUMENT"
    )


def test_a_jobs_script_logs_by_its_own_token(
    client: TestClient, store: str, submit: Any, start: Any, end_attempt: Any, reporter: Any, clock: Any
) -> None:
    make(client, "contexts", "e")
    job_id = submit(name="digits")
    attempt_id = start(job_id)
    script = reporter(attempt_id)
    run = make(script, "contexts", "e-r", "system.ExperimentRun", metadata={"_metrics": {}})
    body = {**run, "metadata": {"_metrics": {"acc": 0.5, "name": "x"}}}
    assert script.patch(f"{store}/contexts/e-r", json=body).status_code == 200
    assert script.patch(f"{store}/contexts/e-r", json=body).status_code == 200  # and not once more
    series = client.get(f"/api/v1/jobs/{job_id}/metrics").json()["items"]
    assert [(one["name"], one["count"], one["last_value"]) for one in series] == [("e-r/acc", 1, 0.5)]
    events = client.get(f"/api/v1/jobs/{job_id}/events").json()["items"]
    assert any("e-r of Vertex AI's experiments" in one["reason"] for one in events)
    assert "deletes nothing" in error_of(script.delete(f"{store}/contexts/e-r"), 403, "PERMISSION_DENIED")
    theirs = PARENT.replace("default", "theirs")
    client.post("/api/v1/projects", json={"name": "theirs"})
    assert "its own project alone" in error_of(script.get(f"{theirs}/metadataStores"), 403, "PERMISSION_DENIED")
    assert script.get(f"{PARENT}/customJobs").status_code == 403
    end_attempt(attempt_id)
    clock.advance(120)
    assert "has ended" in error_of(script.get(f"{store}/contexts/e"), 403, "PERMISSION_DENIED")


def test_records_of_a_deleted_project_are_deleted(client: TestClient, sessions: SessionFactory) -> None:
    client.post("/api/v1/projects", json={"name": "theirs"})
    parent = PARENT.replace("default", "theirs")
    client.post(f"{parent}/metadataStores?metadataStoreId=default", json={})
    client.post(f"{PARENT}/metadataStores?metadataStoreId=default", json={})
    assert client.delete("/api/v1/projects/theirs").status_code in (200, 204)
    with unit_of_work(sessions) as session:
        assert delete_records(session, 100) == 1
        assert [row.location for row in session.query(VertexRecord)] == ["us-central1"]


def test_a_large_context_is_read_in_few_statements_and_one_that_is_too_large_refused(
    client: TestClient, store: str, sessions: SessionFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(client, "contexts", "c")
    for number in range(12):
        make(client, "executions", f"x{number}", "system.Run")
        make(client, "artifacts", f"a{number}", "system.Model")
        events = [{"artifact": name_of("artifacts", f"a{at}"), "type": 2} for at in range(number + 1)]
        client.post(f"{store}/executions/x{number}:addExecutionEvents", json={"events": events}).raise_for_status()
    names = [name_of("executions", f"x{number}") for number in range(12)]
    client.post(f"{store}/contexts/c:addContextArtifactsAndExecutions", json={"executions": names}).raise_for_status()

    with recorded_statements(sessions.kw["bind"]) as statements:
        graph = client.get(f"{store}/contexts/c:queryContextLineageSubgraph").json()
    assert [len(graph[part]) for part in ("artifacts", "executions", "events")] == [12, 12, 78]
    assert sum("vertex_links" in statement for statement in statements) == 2
    assert sum("vertex_records" in statement for statement in statements) <= 5

    monkeypatch.setattr(routes, "GRAPH_LIMIT", 77)
    refused = client.get(f"{store}/contexts/c:queryContextLineageSubgraph")
    assert "inputs and outputs" in error_of(refused, 400, "INVALID_ARGUMENT")
    monkeypatch.setattr(routes, "GRAPH_LIMIT", 11)
    refused = client.get(f"{store}/contexts/c:queryContextLineageSubgraph")
    assert "in_context" in error_of(refused, 400, "INVALID_ARGUMENT")
