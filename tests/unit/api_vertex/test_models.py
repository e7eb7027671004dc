"""A training pipeline's model, from its upload to its deletion, as Vertex AI's SDK asks for it."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from core.bell import NullBell
from core.db.engine import SessionFactory
from core.settings import Settings
from executors.fake import FakeEngine, FakeExecutor
from scheduler.control.context import Control
from scheduler.control.models.registrar import Registrar
from tests.unit.api_vertex.test_jobs import PARENT, POOL, TASK, error_of, refused, sent

UPLOAD = {
    "displayName": "My model",
    "containerSpec": {"imageUri": "serve:1"},
    "versionAliases": ["best"],
    "labels": {"team": "x"},
}


@pytest.fixture
def registrar(sessions: SessionFactory, clock: Any) -> Registrar:
    control = Control(sessions, FakeExecutor(FakeEngine()), NullBell(), clock, "test", b"k" * 32)
    return Registrar(control, limit_bytes=2**20)


def pipeline(client: TestClient, **more: Any) -> Any:
    body = {
        "displayName": "p", "trainingTaskDefinition": TASK, "modelToUpload": UPLOAD,
        "trainingTaskInputs": {"worker_pool_specs": [POOL]}, **more,
    }  # fmt: skip
    return sent(client, body, "trainingPipelines")


def train(settings: Settings, client: TestClient, set_job: Any, told: Any, *, writes: bool = True) -> None:
    job_id = told["name"].rpartition("/")[2]
    volume, _, path = client.get(f"/api/v1/jobs/{job_id}").json()["output"].partition("/")
    if writes:
        model = settings.home / volume / path / "model"
        model.mkdir(parents=True)
        (model / "model.joblib").write_bytes(b"weights")
    set_job(job_id, state="succeeded")


def test_a_pipeline_ends_with_its_model(
    client: TestClient, settings: Settings, set_job: Any, registrar: Registrar
) -> None:
    told = pipeline(client)
    assert (told["state"], "name" in told["modelToUpload"]) == ("PIPELINE_STATE_QUEUED", False)
    assert client.get(f"{PARENT}/models").json() == {}
    train(settings, client, set_job, told)
    assert client.get(f"/v1/{told['name']}").json()["state"] == "PIPELINE_STATE_RUNNING"
    registrar.work()
    registrar.work()
    ended = client.get(f"/v1/{told['name']}").json()
    assert (ended["state"], ended["modelToUpload"]["versionId"]) == ("PIPELINE_STATE_SUCCEEDED", "1")
    name = ended["modelToUpload"]["name"]
    model = client.get(f"/v1/{name}@1").json()
    assert (model["name"], model["displayName"], model["versionAliases"]) == (name, "My model", ["best", "default"])
    assert (model["containerSpec"], model["labels"]) == ({"imageUri": "serve:1"}, {"team": "x"})
    assert model["artifactUri"].startswith("gs://output/.models/default/version-")
    assert model["trainingPipeline"] == told["name"]
    found = [one["name"] for one in client.get(f'{PARENT}/models?filter=display_name="My model"').json()["models"]]
    assert found == [name]
    assert client.get(f'{PARENT}/models?filter=display_name="other"').json() == {}
    assert client.get("/api/v1/projects/default/models/my-model/versions/best").json()["state"] == "ready"


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


def test_a_pipeline_without_a_model_in_its_folder_fails_in_words(
    client: TestClient, settings: Settings, set_job: Any, registrar: Registrar
) -> None:
    told = pipeline(client)
    train(settings, client, set_job, told, writes=False)
    for _ in range(2):
        registrar.work()
    ended = client.get(f"/v1/{told['name']}").json()
    assert (ended["state"], ended["error"]["code"]) == ("PIPELINE_STATE_FAILED", 9)
    assert "no folder model" in ended["error"]["message"]


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"modelToUpload": {}}, "INVALID_ARGUMENT", ""),
        ({"modelToUpload": {"containerSpec": {"imageUri": "x"}}}, "INVALID_ARGUMENT", "displayName"),
        ({"modelToUpload": {**UPLOAD, "explanationSpec": {"a": 1}}}, "UNIMPLEMENTED", "explanations"),
        ({"modelToUpload": {**UPLOAD, "versionAliases": ["7"]}}, "INVALID_ARGUMENT", "an alias begins"),
        ({"modelId": "A b"}, "INVALID_ARGUMENT", "lower-case"),
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
