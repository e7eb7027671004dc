"""The table that administrators keep for Vertex AI's clients, and what it does to what these submit."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from api.app.factory import create_app
from core.db.engine import unit_of_work
from core.db.repositories.vertex_records import read_vertex_table, write_vertex_table
from core.db.tables import Event, VertexTableRow
from core.domain.errors import StaleWrite
from core.wakeups import NoWakeup

CUSTOM_JOBS = "/v1/projects/vision/locations/us-central1/customJobs"
TABLE: dict[str, Any] = {
    "machines": {"n1-standard-*": {"cpu": 3, "memory": "5Gi", "node_selector": {"zone": "a"}}, "n1-*": {"cpu": 1}},
    "accelerators": {"NVIDIA_TESLA_T4": ["H200"]},
    "images": {"*/vertex-ai/training/*": "ours:1"},
}


def put(house: Any, table: dict[str, Any], generation: int, who: str = "root") -> Any:
    return house.call(who, "PUT", "/vertex-table", json={"table": table, "generation": generation})


def stored(house: Any, table: dict[str, Any], generation: int = 0) -> Any:
    answer = put(house, table, generation)
    assert answer.status_code == 200, answer.text
    return answer.json()


def submitted(house: Any, client: TestClient | None = None, **machine: Any) -> dict[str, Any]:
    """The chief of the job that a custom job became."""
    pool = {
        "machineSpec": {"machineType": "n1-standard-4", **machine},
        "replicaCount": "1",
        "containerSpec": {"imageUri": "us-docker.pkg.dev/vertex-ai/training/x:1", "command": ["true"]},
    }
    body = {"displayName": "x", "jobSpec": {"workerPoolSpecs": [pool]}}
    reported = (client or house.client).post(CUSTOM_JOBS, json=body, headers=house.auth("member"))
    assert reported.status_code == 200, reported.text
    job = reported.json()["name"].rpartition("/")[2]
    role: dict[str, Any] = house.call("member", "GET", f"/jobs/{job}").json()["spec"]["roles"]["chief"]
    return role


def test_the_very_next_request_goes_by_a_changed_table_in_every_process(house: Any) -> None:
    other = create_app(house.settings, sessions=house.sessions, wakeup=NoWakeup(), clock=lambda: house.now)
    second = TestClient(other)  # another process of the API on the same database
    before = submitted(house, second)
    assert (before["resources"]["cpu"], before["resources"]["memory"]) == ("4", "15Gi")
    view = stored(house, TABLE)
    assert (view["generation"], view["updated_by"], view["table"]) == (1, "root", TABLE)
    for client in (second, house.client):
        after = submitted(house, client, acceleratorType="NVIDIA_TESLA_T4", acceleratorCount=2)
        assert {name: after["resources"][name] for name in ("cpu", "memory", "gpus", "gpu_type")} == {
            "cpu": "3", "memory": "5Gi", "gpus": 2, "gpu_type": ["H200"],
        }  # fmt: skip
        assert after["image"] == "ours:1"
    # The order counts, whatever the database does with names of objects.
    turned = {**TABLE, "machines": dict(reversed(TABLE["machines"].items()))}
    assert list(stored(house, turned, 1)["table"]["machines"]) == ["n1-*", "n1-standard-*"]
    assert submitted(house, second)["resources"]["cpu"] == "1"
    # `null` is Google's own size again; an empty table says nothing.
    stored(house, {"machines": {"n1-standard-*": None, "n1-*": {"cpu": 1}}}, 2)
    assert submitted(house)["resources"]["cpu"] == "4"
    stored(house, {}, 3)
    assert submitted(house, second) == before


def test_projects_and_buckets_have_the_names_that_the_table_gives_them(house: Any) -> None:
    ours, path = house.auth("member"), CUSTOM_JOBS.replace("vision", "my-company-prod")
    assert house.client.get(path, headers=ours).status_code == 403  # as Google answers
    assert house.client.get("/storage/v1/b/my-staging", headers=ours).status_code == 404
    stored(house, {"projects": {"my-company-*": "vision"}, "buckets": {"my-staging": "data"}})
    assert house.client.get(path, headers=ours).status_code == 200
    assert house.client.get("/storage/v1/b/my-staging", headers=ours).status_code == 200
    # Nobody hears of a project that is not theirs by the table.
    shown = house.call("stranger", "GET", "/vertex-table").json()
    assert [entry["section"] for entry in shown["entries"]] == ["buckets"]
    assert (shown["table"], shown["warnings"]) == ({"buckets": {"my-staging": "data"}}, [])
    assert len(house.call("member", "GET", "/vertex-table").json()["entries"]) == 2


def test_a_stored_table_lies_over_the_environments(house: Any) -> None:
    text = '{"machines": {"n1-standard-4": {"cpu": 2}, "m-*": {"cpu": 7}}, "trusts_pickles": false}'
    settings = house.settings.model_copy(update={"vertex": text, "executor": "process"})
    app = create_app(settings, sessions=house.sessions, wakeup=NoWakeup(), clock=lambda: house.now)
    client = TestClient(app, headers=house.auth("root"))

    def cpu_of(machine: str) -> Any:
        return client.get(f"/api/v1/vertex-table/machine?machine_type={machine}").json()["resources"].get("cpu")

    assert (cpu_of("n1-standard-4"), cpu_of("m-1"), cpu_of("n2-standard-4")) == (2, 7, None)
    stored(house, {"machines": {"n1-*": {"cpu": 1}, "n2-*": None}})
    assert (cpu_of("n1-standard-4"), cpu_of("m-1"), cpu_of("n2-standard-4")) == (1, 7, 4)
    entries = client.get("/api/v1/vertex-table").json()["entries"]
    assert [(entry["name"], entry["source"]) for entry in entries] == [
        ("n1-*", "stored"),
        ("n2-*", "stored"),
        ("n1-standard-4", "environment"),
        ("m-*", "environment"),
        ("*", "platform"),
        ("", "environment"),
    ]


def test_of_two_writers_the_second_hears_of_the_first(house: Any) -> None:
    stored(house, {"machines": {"a": {"cpu": 1}}})
    late = put(house, {"machines": {"b": {"cpu": 1}}}, 0)
    assert (late.status_code, late.json()["code"], late.json()["field"]) == (409, "conflict", "generation")
    assert "root stored another table at 2026-11-21 07:00:00 UTC: its generation is 1" in late.json()["detail"]
    early = put(house, {}, 7)
    assert "its generation is 1, but yours is based on 7" in early.json()["detail"]
    assert house.call("root", "GET", "/vertex-table").json()["table"] == {"machines": {"a": {"cpu": 1}}}
    with unit_of_work(house.sessions) as session:
        (event,) = [each for each in session.query(Event).all() if each.kind == "vertex_table.changed"]
        assert (event.actor, event.data) == ("user:root", {"generation": 1, "changed": ["machines.a"]})
    # Both have read the same one: the write itself tells who was first.
    for seen in (0, 2):
        with pytest.raises(StaleWrite), unit_of_work(house.sessions) as session:
            write_vertex_table(session, [], generation=seen, by="ann", now=house.now)
    with unit_of_work(house.sessions) as session:
        assert read_vertex_table(session).generation == 1


@pytest.mark.parametrize(
    ("table", "field", "words"),
    [
        ({"machine": {}}, "table.machine", "Did you mean machines?"),
        ({"machines": []}, "table.machines", "is a mapping"),
        ({"machines": {"n1-*": 4}}, "table.machines.n1-*", "such as {cpu: 4, memory: 16Gi}"),
        ({"machines": {"n1-*": {"ram": "1Gi"}}}, "table.machines.n1-*.ram", "Did you mean memory?"),
        ({"machines": {"n1-*": {"gpus": 1}}}, "table.machines.n1-*.gpus", "accelerator_count"),
        ({"machines": {"n1-*": {"memory": "lots"}}}, "table.machines.n1-*.memory", "write it like"),
        ({"machines": {"n1-*": {"memory": "16"}}}, "table.machines.n1-*.memory", "write a unit"),
        ({"machines": {"n1-*": {"cpu": 0}}}, "table.machines.n1-*.cpu", "more than 0"),
        ({"machines": {"n1-*": {"node_selector": "a"}}}, "table.machines.n1-*.node_selector", "{pool: dgx}"),
        ({"machines": {"n1 *": {"cpu": 1}}}, "table.machines.n1 *", "without blanks"),
        ({"machines": {"": {"cpu": 1}}}, "table.machines.", "is no name"),
        ({"accelerators": {"NVIDIA_L4": 4}}, "table.accelerators.NVIDIA_L4", "list of GPU models"),
        ({"accelerators": {"NVIDIA_L4": ["L4", 4]}}, "table.accelerators.NVIDIA_L4[1]", ('put it in quotes if a model '
                                                                                        'is called so: "4"')),
        ({"images": {"a/*": "b/*"}}, "table.images.a/*", "patterns stand on the left"),
        ({"images": {"a/*": 1}}, "table.images.a/*", "must be text"),
        ({"locations": {"eu-*": ["a"]}}, "table.locations.eu-*", "mapping of node labels"),
        ({"locations": {"eu-*": {"a b": "c"}}}, "table.locations.eu-*", "is not a label key"),
        ({"projects": {"p": None}}, "table.projects.p", "is a name here"),
        ({"buckets": {"p": "a\tb"}}, "table.buckets.p", "is a name here"),
        ({"trusts_pickles": "yes"}, "table.trusts_pickles", "is true or false"),
        ({"machines": {f"m{n}": {} for n in range(2001)}}, "table", "at most 2000 entries"),
    ],
)  # fmt: skip
def test_what_is_no_table_is_refused_by_the_entry(house: Any, table: Any, field: str, words: str) -> None:
    answer = put(house, table, 0)
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (422, "invalid_request"), answer.text
    assert problem["field"].startswith(field), problem
    assert words in problem["detail"], problem
    assert house.call("root", "GET", "/vertex-table").json()["generation"] == 0


def test_all_mistakes_are_reported_at_once_and_nothing_is_stored(house: Any) -> None:
    answer = put(house, {"machines": {"a": {"cpu": "x"}, "b": {"cpu": 1}}, "images": {"c": 3}}, 0).json()
    assert [error["path"] for error in answer["errors"]] == ["table.machines.a.cpu", "table.images.c"]
    assert "nothing is changed" in answer["detail"]
    for body in ({"table": {}}, {"table": [], "generation": 0}, {"table": {}, "generation": -1}):
        assert house.call("root", "PUT", "/vertex-table", json=body).status_code == 422
    assert house.call("root", "GET", "/vertex-table").json()["generation"] == 0


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"machines": {"big": {"cpu": 9}}}, "machines.big requests 9 CPUs, but no node has as much."),
        ({"machines": {"big": {"cpu": 1, "memory": "17Gi"}}}, "but no node has as much."),
        ({"machines": {"far": {"node_selector": {"zone": "b"}}}}, "selects nodes with zone=b, but no node has these"),
        ({"locations": {"eu-*": {"zone": "b"}}}, "locations.eu-* selects nodes with zone=b"),
        ({"accelerators": {"NVIDIA_L4": ["L4", "H200"]}}, "no node has the GPU model L4; the nodes have H200."),
        ({"accelerators": {"T4": ["H200"]}}, "NVIDIA_TESLA_T4 may be meant"),
        ({"images": {"pytorch*": "ours"}}, "*/pytorch* may be meant"),
        ({"images": {"*": "ours"}}, "the pattern matches every image"),
        (
            {"images": {"*/torch*": "a", "*/torch-gpu*": "b"}},
            "images.*/torch-gpu* is never used: */torch* comes before it",
        ),
        ({"projects": {"prod": "visoin"}}, "there is no project visoin."),
        ({"buckets": {"staging": "dat"}}, "neither a volume nor a project dat."),
    ],
)
def test_what_is_probably_not_meant_is_reported(house: Any, table: Any, words: str) -> None:
    (warning,) = stored(house, table)["warnings"]
    assert words in warning


def test_a_table_that_is_meant_has_no_warnings(house: Any) -> None:
    assert stored(house, {**TABLE, "locations": {"eu-*": {"zone": "a"}}, "buckets": {"x": "vision"}})["warnings"] == []


def test_a_machine_is_tried_without_a_job(house: Any) -> None:
    stored(house, {**TABLE, "locations": {"eu-*": {"zone": "b"}}})
    query = "machine_type=n1-standard-4&accelerator=NVIDIA_TESLA_T4&count=2&location=us-central1"
    reported = house.call("viewer", "GET", f"/vertex-table/machine?{query}").json()
    assert reported["resources"] == {"cpu": 3, "memory": "5Gi", "gpus": 2, "gpu_type": ["H200"]}
    assert reported["node_selector"] == {"zone": "a"}
    assert [entry["name"] for entry in reported["entries"]] == ["n1-standard-*", "NVIDIA_TESLA_T4"]
    assert reported["warnings"] == []
    more = house.call("viewer", "GET", f"/vertex-table/machine?{query.replace('count=2', 'count=5')}").json()
    assert (
        "requests 3 CPUs, 5.0 GiB of memory, 5 GPUs (H200), but no node with zone=a has as much." in more["warnings"][0]
    )
    bare = house.call("viewer", "GET", "/vertex-table/machine?machine_type=n2-standard-2").json()
    assert (bare["resources"], bare["entries"]) == ({"cpu": 2, "memory": "8192Mi"}, [])
    for query, field in (("machine_type=x9", "machine_type"), ("machine_type=n1-a&accelerator=TPU_V3", "accelerator")):
        wrong = house.call("viewer", "GET", f"/vertex-table/machine?{query}")
        assert (wrong.status_code, wrong.json()["field"]) == (422, field)
        assert "trainmaster vertex-table" in wrong.json()["detail"]


def test_a_table_of_another_version_can_be_read_and_mended(house: Any) -> None:
    retained = [
        ["machines", "a", {"cpu": 1}],
        ["machines", "b", {"cores": 1}],
        ["sizes", "c", 1],
        "x",
        ["trusts_pickles", "", False],
    ]
    with unit_of_work(house.sessions) as session:
        session.add(
            VertexTableRow(name="vertex", entries=retained, generation=4, updated_at=house.now, updated_by="root")
        )
    seen = house.call("root", "GET", "/vertex-table").json()
    assert (seen["generation"], seen["table"]) == (4, {"machines": {"a": {"cpu": 1}}, "trusts_pickles": False})
    assert len([warning for warning in seen["warnings"] if "another version stored it" in warning]) == 3
    assert submitted(house)["resources"]["cpu"] == "4"
    assert stored(house, seen["table"], 4)["warnings"] == []
