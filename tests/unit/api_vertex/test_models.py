"""A training pipeline's model, from its upload to its deletion, as Vertex AI's SDK asks for it."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from core.db.engine import SessionFactory
from core.settings import Settings
from core.wakeups import NoWakeup
from executors.fake import FakeEngine, FakeExecutor
from scheduler.control.context import ControlContext
from scheduler.control.registrar import Registrar
from tests.unit.api_vertex.test_jobs import PARENT, POOL, TASK, error_of, refused, sent

UPLOAD = {
    "displayName": "My model",
    "containerSpec": {"imageUri": "serve:1"},
    "versionAliases": ["best"],
    "labels": {"team": "x"},
}


@pytest.fixture
def registrar(sessions: SessionFactory, clock: Any) -> Registrar:
    control = ControlContext(sessions, FakeExecutor(FakeEngine()), NoWakeup(), clock, "test", b"k" * 32)
    return Registrar(control, limit_bytes=2**20)


def pipeline_body(**more: Any) -> dict[str, Any]:
    return {
        "displayName": "p", "trainingTaskDefinition": TASK, "modelToUpload": UPLOAD,
        "trainingTaskInputs": {"worker_pool_specs": [POOL]}, **more,
    }  # fmt: skip


def pipeline(client: TestClient, **more: Any) -> Any:
    return sent(client, pipeline_body(**more), "trainingPipelines")


def train(settings: Settings, client: TestClient, set_job: Any, reply: Any, *, writes: bool = True) -> None:
    job_id = reply["name"].rpartition("/")[2]
    volume, _, path = client.get(f"/api/v1/jobs/{job_id}").json()["output"].partition("/")
    if writes:
        model = settings.home / volume / path / "model"
        model.mkdir(parents=True)
        (model / "model.joblib").write_bytes(b"weights")
    set_job(job_id, state="succeeded")


def test_a_pipeline_ends_with_its_model(
    client: TestClient, settings: Settings, set_job: Any, registrar: Registrar
) -> None:
    reply = pipeline(client)
    assert (reply["state"], "name" in reply["modelToUpload"]) == ("PIPELINE_STATE_QUEUED", False)
    assert client.get(f"{PARENT}/models").json() == {}
    train(settings, client, set_job, reply)
    assert client.get(f"/v1/{reply['name']}").json()["state"] == "PIPELINE_STATE_RUNNING"
    registrar.work()
    registrar.work()
    ended = client.get(f"/v1/{reply['name']}").json()
    assert (ended["state"], ended["modelToUpload"]["versionId"]) == ("PIPELINE_STATE_SUCCEEDED", "1")
    name = ended["modelToUpload"]["name"]
    model = client.get(f"/v1/{name}@1").json()
    assert (model["name"], model["displayName"], model["versionAliases"]) == (
        f"{name}@1", "My model", ["best", "default"],
    )  # fmt: skip
    assert (model["containerSpec"], model["labels"]) == ({"imageUri": "serve:1"}, {"team": "x"})
    assert model["artifactUri"].startswith("gs://output/.models/default/version-")
    assert model["trainingPipeline"] == reply["name"]
    found = [one["name"] for one in client.get(f'{PARENT}/models?filter=display_name="My model"').json()["models"]]
    assert found == [name]
    assert client.get(f'{PARENT}/models?filter=display_name="other"').json() == {}
    assert client.get("/api/v1/projects/default/models/my-model/versions/best").json()["state"] == "ready"


def test_models_are_listed_in_the_order_that_is_requested(
    client: TestClient, settings: Settings, set_job: Any, registrar: Registrar, clock: Any
) -> None:
    for name in ("b", "c", "a"):
        clock.advance(1)
        train(settings, client, set_job, pipeline(client, modelToUpload={"displayName": name}))
        for _ in range(2):
            registrar.work()
    clock.advance(1)
    changed = client.get(f"{PARENT}/models?filter=display_name=c").json()["models"][0]["name"]
    client.patch(f"/v1/{changed}?updateMask=description", json={"description": "d"})

    def listed(order: str) -> str:
        """One by one, since each page has its own token."""
        found, more = "", ""
        while True:
            page = client.get(f"{PARENT}/models", params={"orderBy": order, "pageSize": 1, "pageToken": more}).json()
            found += page["models"][0]["displayName"]
            more = page.get("nextPageToken", "")
            if not more:
                return found

    assert (listed(""), listed("create_time"), listed("createTime desc")) == ("abc", "bca", "acb")
    assert (listed("update_time desc"), listed("create_time desc, display_name")) == ("cab", "acb")
    token = client.get(f"{PARENT}/models?orderBy=create_time&pageSize=1").json()["nextPageToken"]
    other = client.get(f"{PARENT}/models?orderBy=update_time&pageToken={token}")
    assert "another order" in error_of(other, 400, "INVALID_ARGUMENT")
    for wrong in ("size", "create_time down", "create_time,", ","):
        answer = client.get(f"{PARENT}/models", params={"orderBy": wrong})
        assert "is no order of models" in error_of(answer, 400, "INVALID_ARGUMENT")
    assert "display_name" in error_of(client.get(f"{PARENT}/models?orderBy=display_name"), 501, "UNIMPLEMENTED")
    endpoints = client.get(f"{PARENT}/endpoints?orderBy=display_name")
    assert "create_time desc" in error_of(endpoints, 400, "INVALID_ARGUMENT")


def test_versions_and_aliases_of_one_model(
    client: TestClient, settings: Settings, set_job: Any, registrar: Registrar
) -> None:
    first = pipeline(client, modelId="digits")
    train(settings, client, set_job, first)
    for _ in range(2):
        registrar.work()
    name = client.get(f"/v1/{first['name']}").json()["modelToUpload"]["name"]
    second = pipeline(client, parentModel=name, modelToUpload={"displayName": "again"})
    train(settings, client, set_job, second)
    for _ in range(2):
        registrar.work()
    listed = client.get(f"/v1/{name}:listVersions").json()["models"]
    assert [(one["versionId"], one["versionAliases"]) for one in listed] == [("2", []), ("1", ["best", "default"])]
    moved = client.post(f"/v1/{name}@2:mergeVersionAliases", json={"versionAliases": ["default", "best"]}).json()
    assert moved["versionAliases"] == ["best", "default"]
    assert client.get(f"/v1/{name}").json()["versionId"] == "2"
    removed = client.post(f"/v1/{name}@2:mergeVersionAliases", json={"versionAliases": ["-best"]}).json()
    assert removed["versionAliases"] == ["default"]
    assert client.delete(f"/v1/{name}@1:deleteVersion").json()["done"] is True
    assert client.get(f"/v1/{name}@1").status_code == 404
    assert client.delete(f"/v1/{name}").json()["done"] is True
    assert "is not found" in error_of(client.get(f"/v1/{name}"), 404, "NOT_FOUND")


def test_each_new_model_begins_with_version_1_whatever_had_its_display_name_before(
    client: TestClient, settings: Settings, set_job: Any, registrar: Registrar
) -> None:
    def trained(*, writes: bool = True, **more: Any) -> Any:
        reply = pipeline(client, **more)
        train(settings, client, set_job, reply, writes=writes)
        for _ in range(2):
            registrar.work()
        return client.get(f"/v1/{reply['name']}").json()["modelToUpload"]

    first, second = trained(), trained()  # display names may be alike
    assert (first["versionId"], second["versionId"], first["name"] == second["name"]) == ("1", "1", False)
    assert client.get(f"/v1/{second['name']}").json()["versionAliases"] == ["best", "default"]
    assert client.delete(f"/v1/{first['name']}").json()["done"] is True
    third = trained()
    assert (third["versionId"], third["name"] in (first["name"], second["name"])) == ("1", False)
    own = {one["name"] for one in client.get("/api/v1/projects/default/models").json()["items"]}
    assert len(own) == 2
    assert "my-model" not in own
    assert all(name.startswith("my-model-") for name in own)
    # An id of the client's own is a model's once, and free while nothing came of it.
    assert "name" not in trained(writes=False, modelId="digits")
    assert trained(modelId="digits")["name"]
    again = error_of(
        client.post(f"{PARENT}/trainingPipelines", json=pipeline_body(modelId="digits")), 400, "FAILED_PRECONDITION"
    )
    assert "name it as parent_model" in again


def test_a_pipeline_without_a_model_in_its_folder_fails_in_words(
    client: TestClient, settings: Settings, set_job: Any, registrar: Registrar
) -> None:
    reply = pipeline(client)
    train(settings, client, set_job, reply, writes=False)
    for _ in range(2):
        registrar.work()
    ended = client.get(f"/v1/{reply['name']}").json()
    assert (ended["state"], ended["error"]["code"]) == ("PIPELINE_STATE_FAILED", 9)
    assert (
        "written nothing to its output: let its script save the model below $AIP_MODEL_DIR" in ended["error"]["message"]
    )


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"modelToUpload": {}}, "INVALID_ARGUMENT", ""),
        ({"modelToUpload": {"containerSpec": {"imageUri": "x"}}}, "INVALID_ARGUMENT", "displayName"),
        ({"modelToUpload": {**UPLOAD, "explanationSpec": {"a": 1}}}, "UNIMPLEMENTED", "explanations"),
        ({"modelToUpload": {**UPLOAD, "versionAliases": ["7"]}}, "INVALID_ARGUMENT", "an alias begins"),
        ({"modelId": "A b"}, "INVALID_ARGUMENT", "letters"),
        ({"parentModel": "projects/default/locations/us-central1/models/none"}, "NOT_FOUND", "models none"),
    ],
)
def test_what_no_model_can_be_is_refused_before_it_trains(
    client: TestClient, changes: dict[str, Any], status: str, words: str
) -> None:
    body = {
        "displayName": "p", "trainingTaskDefinition": TASK, "modelToUpload": UPLOAD,
        "trainingTaskInputs": {"worker_pool_specs": [POOL]}, **changes,
    }  # fmt: skip
    if not words:
        assert "modelToUpload" not in sent(client, body, "trainingPipelines")
        return
    assert words.lower() in refused(client, body, status=status, collection="trainingPipelines").lower().replace(
        "_", ""
    )
    assert client.get(f"{PARENT}/trainingPipelines").json() == {}


@pytest.fixture
def digits(client: TestClient, settings: Settings, set_job: Any, registrar: Registrar) -> str:
    """The name of a model with two versions, the first of which is the default."""
    first = pipeline(client, modelId="digits", modelToUpload={**UPLOAD, "description": "Reads digits."})
    train(settings, client, set_job, first)
    for _ in range(2):
        registrar.work()
    name = client.get(f"/v1/{first['name']}").json()["modelToUpload"]["name"]
    second = pipeline(client, parentModel=name, modelToUpload={**UPLOAD, "versionAliases": []})
    train(settings, client, set_job, second)
    for _ in range(2):
        registrar.work()
    return str(name)


def test_a_model_is_changed_as_its_mask_says_and_nothing_else(client: TestClient, digits: str) -> None:
    whole = client.get(f"/v1/{digits}").json()
    sent_whole = {**whole, "displayName": "Renamed", "description": "Another.", "labels": {"stage": "prod"}}
    masked = client.patch(f"/v1/{digits}?updateMask=displayName", json=sent_whole).json()
    assert masked == {**whole, "displayName": "Renamed", **{k: masked[k] for k in ("updateTime", "versionUpdateTime")}}
    both = client.patch(f"/v1/{digits}?updateMask=description,labels", json=sent_whole).json()
    assert (both["description"], both["labels"], both["displayName"]) == ("Another.", {"stage": "prod"}, "Renamed")
    # The other version is of the same model; its own labels are merged with the model's.
    other = client.get(f"/v1/{digits}@2").json()
    assert (other["displayName"], other["description"]) == ("Renamed", "Another.")
    assert other["labels"] == {"stage": "prod", "team": "x"}
    found = client.get(f'{PARENT}/models?filter=display_name="Renamed"').json()["models"]
    assert [one["name"] for one in found] == [digits]
    emptied = client.patch(f"/v1/{digits}@-?updateMask=description", json={"description": ""}).json()
    assert ("description" in emptied, emptied["name"]) == (False, digits)
    assert client.get("/api/v1/projects/default/models/digits").json()["labels"] == {"stage": "prod"}


def test_a_version_is_changed_by_its_own_name(client: TestClient, digits: str) -> None:
    version = client.get(f"/v1/{digits}@2").json()
    assert (version["name"], version["versionId"]) == (f"{digits}@2", "2")
    changed = {**version, "versionDescription": "Better.", "labels": {"round": "2"}}
    mask = "updateMask=versionDescription,labels"
    reply = client.patch(f"/v1/{version['name']}?{mask}", json=changed).json()
    assert (reply["versionDescription"], reply["labels"], reply["name"]) == (
        "Better.",
        {"round": "2"},
        f"{digits}@2",
    )
    own = client.get("/api/v1/projects/default/models/digits/versions/2").json()
    assert (own["description"], own["labels"]) == ("Better.", {"round": "2"})
    first = client.get(f"/v1/{digits}").json()
    assert ("versionDescription" in first, first["labels"]) == (False, {"team": "x"})
    names = [one["name"] for one in client.get(f"/v1/{digits}:listVersions").json()["models"]]
    assert names == [f"{digits}@2", f"{digits}@1"]


UNCHANGED = (
    ("", "", 400, "INVALID_ARGUMENT", "name what is to change"),
    ("", "displayName,colour", 400, "INVALID_ARGUMENT", 'Unknown name "colour"'),
    ("", "labels.team", 400, "INVALID_ARGUMENT", 'Unknown name "labels.team"'),
    ("", "container_spec", 400, "INVALID_ARGUMENT", "container_spec never changes"),
    ("", "explanationSpec", 501, "UNIMPLEMENTED", "update_mask.explanation_spec: explanations"),
    ("", "displayName", 400, "INVALID_ARGUMENT", "model.display_name: Required field"),
    ("", "versionDescription", 400, "FAILED_PRECONDITION", "version_description is no field of a model"),
    ("@1", "displayName", 400, "FAILED_PRECONDITION", "display_name is no field of a version"),
    ("@7", "versionDescription", 404, "NOT_FOUND", "version 7"),
)


def test_what_of_a_model_cannot_change_is_refused_by_its_name(client: TestClient, digits: str) -> None:
    before = client.get(f"/v1/{digits}").json()
    for which, mask, code, status, words in UNCHANGED:
        answer = client.patch(f"/v1/{digits}{which}?updateMask={mask}", json={"displayName": ""})
        assert words in error_of(answer, code, status), (which, mask)
    assert client.get(f"/v1/{digits}").json() == before
