"""Long-running operations as Google's clients list them, wait for them and cancel them."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from core.settings import Settings
from tests.unit.api_vertex.test_endpoints import House, executor, house, settings  # noqa: F401 (fixtures)
from tests.unit.api_vertex.test_jobs import PARENT, error_of, job, sent
from tests.unit.api_vertex.test_uploads import files, registrar, upload  # noqa: F401 (fixtures)


def names_of(answer: Any) -> list[str]:
    return [one["name"] for one in answer.json().get("operations", [])]


def test_operations_are_listed_by_location_and_by_resource_in_pages(
    client: TestClient,
    house: House,  # noqa: F811
    clock: Any,
) -> None:
    of = house.upload()
    clock.advance(1)
    begun = house.deploy(of, {"0": 100}).json()
    uploaded = f"{of.partition('@')[0]}/operations/upload-1"
    for prefix in ("/v1", "/ui"):
        parent = PARENT.replace("/v1", prefix, 1)
        assert names_of(client.get(f"{parent}/operations")) == [begun["name"], uploaded]
    assert names_of(client.get(f"/v1/{house.name}/operations")) == [begun["name"]]
    assert client.get(f"/v1/{of.partition('@')[0]}/operations").json()["operations"][0]["done"] is True
    first = client.get(f"{PARENT}/operations?pageSize=1")
    rest = client.get(f"{PARENT}/operations?pageSize=1&pageToken={first.json()['nextPageToken']}")
    assert (names_of(first), names_of(rest)) == ([begun["name"]], [uploaded])
    assert "nextPageToken" not in rest.json()
    elsewhere = PARENT.replace("us-central1", "europe-west4")
    assert names_of(client.get(f"{elsewhere}/operations")) == [uploaded.replace("us-central1", "europe-west4")]
    gone = house.undeploy("digits").json()
    assert names_of(client.get(f"/v1/{house.name}/operations")) == [gone["name"]]


def test_a_deployment_that_is_cancelled_ends_so_and_one_that_is_done_stays(
    client: TestClient,
    house: House,  # noqa: F811
    clock: Any,
) -> None:
    of = house.upload()
    begun = house.deploy(of, {"0": 100}).json()
    assert client.post(f"/ui/{begun['name']}:cancel").json() == {}
    ended = client.get(f"/v1/{begun['name']}").json()
    assert (ended["done"], ended["error"]["code"]) == (True, 1)
    assert house.shown()["deployedModels"] == []
    again = house.deploy(of, {"0": 100}, id="again").json()
    house.get_ready("again", clock)
    assert client.post(f"/v1/{again['name']}:cancel").json() == {}
    assert client.get(f"/v1/{again['name']}").json()["response"]["deployedModel"]["id"] == "again"
    gone = house.undeploy("again").json()
    message = error_of(client.post(f"/v1/{gone['name']}:cancel"), 501, "UNIMPLEMENTED")
    assert "cannot be undone" in message


@pytest.mark.usefixtures("files")
def test_an_upload_that_is_cancelled_says_so(client: TestClient, registrar: Any) -> None:  # noqa: F811
    begun, other = upload(client).json(), upload(client).json()
    assert client.post(f"/v1/{begun['name']}:cancel").json() == {}
    registrar.work()
    ended = client.get(f"/v1/{begun['name']}").json()
    assert (ended["done"], ended["error"]["code"]) == (True, 1)
    assert "cancelled" in ended["error"]["message"]
    assert client.get(f"/v1/{other['name']}").json()["response"]["modelVersionId"] == "1"


@pytest.mark.usefixtures("files")
def test_who_waits_gets_the_operation_as_it_is_when_it_is_done_or_time_is_over(
    client: TestClient,
    registrar: Any,  # noqa: F811
    settings: Settings,  # noqa: F811
) -> None:
    begun = upload(client).json()
    assert client.post(f"/v1/{begun['name']}:wait?timeout=0.01s").json() == begun
    registrar.work()
    done = client.post(f"/ui/{begun['name']}:wait").json()
    assert done == client.get(f"/v1/{begun['name']}").json()
    assert done["done"] is True
    assert client.delete(f"/v1/{begun['name']}").json() == {}
    error_of(client.post(f"/v1/{begun['name']}:wait?timeout=soon"), 400, "INVALID_ARGUMENT")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("endpoints", {"displayName": "x"}),
        ("metadataStores?metadataStoreId=default", {}),
        ("tensorboards", {"displayName": "x"}),
    ],
)
def test_what_was_done_at_once_can_be_requested_again(client: TestClient, path: str, body: Any) -> None:
    made = client.post(f"{PARENT}/{path}", json=body).json()
    again = client.get(f"/ui/{made['name']}").json()
    assert (again["name"], again["done"]) == (made["name"], True)
    assert again["response"]["name"] == made["response"]["name"]
    assert again["response"]["@type"] == made["response"]["@type"]


def test_an_unknown_operation_is_not_found(client: TestClient) -> None:
    reply = sent(client, job())
    places = [
        "operations/1", "models/x/operations/upload-1", "models/x/operations/delete", "endpoints/x/operations/deploy-1",
        "endpoints/x/operations/create", f"customJobs/{reply['name'].rpartition('/')[2]}/operations/1",
        "metadataStores/x/operations/create", "datasets/1/operations/2",
    ]  # fmt: skip
    for place in places:
        answers = [
            client.get(f"{PARENT}/{place}"),
            client.post(f"{PARENT}/{place}:wait"),
            client.delete(f"/ui/{PARENT[4:]}/{place}"),
        ]
        if not place.endswith("/delete"):
            answers.append(client.post(f"{PARENT}/{place}:cancel"))
        for answer in answers:
            assert "is not found" in error_of(answer, 404, "NOT_FOUND"), place
    running = f"{PARENT}/customJobs/{reply['name'].rpartition('/')[2]}/operations/delete"
    error_of(client.post(f"{running}:cancel"), 501, "UNIMPLEMENTED")
    assert names_of(client.get(f"{PARENT}/customJobs/x/operations")) == []
    error_of(client.get(f"{PARENT}/datasets/1/operations"), 501, "UNIMPLEMENTED")
    error_of(client.get(f"{PARENT}/operations?filter=done:true"), 501, "UNIMPLEMENTED")
