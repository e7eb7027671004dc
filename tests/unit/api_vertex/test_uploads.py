"""``Model.upload``: files in a bucket become versions of models, as Vertex AI's SDK asks for it."""

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
from tests.unit.api_vertex.test_jobs import PARENT, error_of

IMAGE = "us-docker.pkg.dev/vertex-ai/prediction/sklearn-cpu.1-3:latest"
URI = "gs://default/exports/digits"


@pytest.fixture
def registrar(sessions: SessionFactory, clock: Any) -> Registrar:
    control = ControlContext(sessions, FakeExecutor(FakeEngine()), NoWakeup(), clock, "test", b"k" * 32)
    return Registrar(control, limit_bytes=2**20)


@pytest.fixture
def files(settings: Settings) -> None:
    folder = settings.home / "output/default/exports/digits"
    folder.mkdir(parents=True)
    (folder / "model.joblib").write_bytes(b"weights")


def upload(client: TestClient, *, model: dict[str, Any] | None = None, **more: Any) -> Any:
    reply = {"displayName": "Digits", "artifactUri": URI, "containerSpec": {"imageUri": IMAGE}, **(model or {})}
    return client.post(f"{PARENT}/models:upload", json={"model": reply, **more})


def name_of(operation: Any) -> str:
    return str(operation["name"]).partition("/operations/")[0]


@pytest.mark.usefixtures("files")
def test_files_in_a_bucket_become_a_version_that_says_where_it_is_from(
    client: TestClient, settings: Settings, registrar: Registrar
) -> None:
    begun = upload(client, model={"versionAliases": ["best"], "labels": {"team": "x"}}).json()
    assert "done" not in begun
    assert begun["name"].endswith("/operations/upload-1")
    assert client.get(f"/ui/{begun['name']}").json() == begun
    registrar.work()
    done = client.get(f"/ui/{begun['name']}").json()
    assert (done["done"], done["response"]["modelVersionId"]) == (True, "1")
    assert client.get(f"/v1/{begun['name']}").json() == done
    model = client.get(f"/v1/{done['response']['model']}@1").json()
    assert (model["displayName"], model["versionAliases"]) == ("Digits", ["best", "default"])
    assert model["containerSpec"] == {"imageUri": IMAGE}
    assert model["supportedDeploymentResourcesTypes"] == ["DEDICATED_RESOURCES"]
    assert "trainingPipeline" not in model
    (settings.home / "output/default/exports/digits/model.joblib").write_bytes(b"others")
    volume, _, path = model["artifactUri"].removeprefix("gs://").partition("/")
    assert (settings.home / volume / path / "model.joblib").read_bytes() == b"weights"
    own = client.get("/api/v1/projects/default/models/digits/versions/1").json()
    assert own["source"] == {"kind": "upload", "job": "", "path": "output/default/exports/digits"}
    assert own["lineage"]["data"] == ["output/default/exports/digits"]
    assert own["format"] == "sklearn"


@pytest.mark.usefixtures("files")
def test_uploads_of_one_display_name_are_models_of_their_own_and_a_parent_makes_versions(
    client: TestClient, registrar: Registrar
) -> None:
    first, second = name_of(upload(client).json()), name_of(upload(client).json())
    assert first != second
    third = upload(client, parentModel=first, model={"versionAliases": ["default"]}).json()
    assert (name_of(third), third["name"][-1]) == (first, "2")
    for _ in range(2):
        registrar.work()
    assert client.get(f"/v1/{first}").json()["versionId"] == "2"
    named = upload(client, modelId="my-id").json()
    registrar.work()
    assert client.get(f"{PARENT}/models/my-id").json()["name"] == name_of(named)
    message = error_of(upload(client, modelId="my-id"), 400, "FAILED_PRECONDITION")
    assert "parent_model" in message
    assert len(client.get(f"{PARENT}/models").json()["models"]) == 3


@pytest.mark.usefixtures("files")
def test_files_that_change_under_the_copy_end_the_operation_in_words(
    client: TestClient, settings: Settings, registrar: Registrar
) -> None:
    begun = upload(client).json()
    (settings.home / "output/default/exports/digits/model.joblib").unlink()
    registrar.work()
    done = client.get(f"/ui/{begun['name']}").json()
    assert (done["done"], done["error"]["code"]) == (True, 9)
    assert "is empty" in done["error"]["message"]
    assert client.get(f"/v1/{name_of(begun)}").status_code == 404


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("model", "status", "words"),
    [
        ({"artifactUri": ""}, "UNIMPLEMENTED", "without files of its own"),
        ({"artifactUri": "s3://x/y"}, "INVALID_ARGUMENT", "no Cloud Storage URI"),
        ({"artifactUri": "gs://default"}, "INVALID_ARGUMENT", "names no folder"),
        ({"artifactUri": "gs://default/exports/../.."}, "INVALID_ARGUMENT", "artifact_uri"),
        ({"artifactUri": "gs://nowhere/x"}, "NOT_FOUND", "bucket does not exist"),
        ({"artifactUri": "gs://default/exports/letters"}, "NOT_FOUND", "letters"),
        ({"containerSpec": {}}, "INVALID_ARGUMENT", "container_spec"),
        ({"containerSpec": {"command": ["x"]}}, "INVALID_ARGUMENT", "image_uri"),
        ({"containerSpec": {"imageUri": "x", "predictRoute": "predict"}}, "INVALID_ARGUMENT", "slash"),
        ({"containerSpec": {"imageUri": "x", "ports": [{"containerPort": 0}]}}, "INVALID_ARGUMENT", "port"),
        ({"containerSpec": {"imageUri": "x", "grpcPorts": [{"containerPort": 1}]}}, "UNIMPLEMENTED", "gRPC"),
        ({"explanationSpec": {"parameters": {}}}, "UNIMPLEMENTED", "explanations"),
        ({"encryptionSpec": {"kmsKeyName": "k"}}, "UNIMPLEMENTED", "keys of one's own"),
        ({"colour": "red"}, "INVALID_ARGUMENT", "colour"),
        ({"displayName": ""}, "INVALID_ARGUMENT", "display_name"),
    ],
)
def test_what_cannot_be_uploaded_is_refused_by_its_name(
    client: TestClient, model: dict[str, Any], status: str, words: str
) -> None:
    codes = {"UNIMPLEMENTED": 501, "INVALID_ARGUMENT": 400, "NOT_FOUND": 404}
    assert words in error_of(upload(client, model=model), codes[status], status)
    assert client.get("/api/v1/projects/default/models").json()["items"] == []


@pytest.mark.usefixtures("files")
def test_an_upload_needs_a_token_that_writes_and_a_bucket_of_ones_own(
    client: TestClient, as_user: Any, settings: Settings
) -> None:
    viewer = as_user("viewer", role="viewer")
    error_of(upload(viewer), 403, "PERMISSION_DENIED")
    client.post("/api/v1/projects", json={"name": "secret"})
    folder = settings.home / "output/secret/model"
    folder.mkdir(parents=True)
    (folder / "model.joblib").write_bytes(b"theirs")
    member = as_user("ann", role="member")
    for uri in ("gs://secret/model", "gs://output/secret/model"):
        error_of(upload(member, model={"artifactUri": uri}), 404, "NOT_FOUND")
    assert upload(member).status_code == 200
    assert upload(member, model={"artifactUri": "gs://output/default/exports/digits/model.joblib"}).status_code == 200


@pytest.mark.usefixtures("files")
def test_a_link_out_of_the_projects_folder_is_not_followed(client: TestClient, settings: Settings) -> None:
    (settings.home / "output/default/away").symlink_to("/etc")
    (settings.home / "output/default/exports/digits/passwd").symlink_to("/etc/passwd")
    error_of(upload(client, model={"artifactUri": "gs://default/away"}), 400, "INVALID_ARGUMENT")
    assert "passwd" in error_of(upload(client), 400, "INVALID_ARGUMENT")
