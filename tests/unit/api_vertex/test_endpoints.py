"""Endpoints as Vertex AI's SDK asks for them; tests/frameworks has the real one with a real model."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import select, update
from starlette.concurrency import run_in_threadpool
from starlette.testclient import TestClient

from api.protocols.vertex.serving import predicting
from core.db.engine import SessionFactory, unit_of_work
from core.db.tables import Deployment, DeploymentRevision, Endpoint
from core.settings import Settings
from core.wakeups import NoWakeup
from executors.fake import FakeEngine, FakeExecutor
from scheduler.control.context import ControlContext
from scheduler.control.registrar import Registrar
from tests.unit.api_core.models.test_endpoints_api import model, run_replica  # noqa: F401 (a fixture)
from tests.unit.api_vertex.test_jobs import PARENT, error_of

SKLEARN = "us-docker.pkg.dev/vertex-ai/prediction/sklearn-cpu.1-3:latest"
MACHINE = {"machineSpec": {"machineType": "n1-standard-2"}, "minReplicaCount": 1, "maxReplicaCount": 1}


class House:
    """One endpoint, and models that can be deployed to it."""

    def __init__(self, client: TestClient, sessions: SessionFactory, settings: Settings, clock: Any) -> None:
        self.client, self.sessions, self.settings = client, sessions, settings
        control = ControlContext(sessions, FakeExecutor(FakeEngine()), NoWakeup(), clock, "test", b"k" * 32)
        self.registrar = Registrar(control, limit_bytes=2**20)
        made = client.post(f"{PARENT}/endpoints", json={"displayName": "My endpoint", "labels": {"team": "x"}}).json()
        assert made["done"] is True
        self.name = made["response"]["name"]
        self.id = self.name.rpartition("/")[2]

    def upload(self, container: Any = None, file: str = "model.joblib", **reply: Any) -> str:
        folder = self.settings.home / "output/default/exports"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(b"weights")
        body = {
            "displayName": "Digits", "artifactUri": f"gs://default/exports/{file}",
            "containerSpec": container or {"imageUri": SKLEARN}, **reply,
        }  # fmt: skip
        begun = self.client.post(f"{PARENT}/models:upload", json={"model": body}).json()
        self.registrar.work()
        done = self.client.get(f"/ui/{begun['name']}").json()["response"]
        return f"{done['model']}@{done['modelVersionId']}"

    def deploy(self, of: str, split: Any = None, **reply: Any) -> Any:
        body: dict[str, Any] = {"deployedModel": {"model": of, "dedicatedResources": MACHINE, **reply}}
        return self.client.post(
            f"/v1/{self.name}:deployModel", json={**body, **({"trafficSplit": split} if split else {})}
        )

    def undeploy(self, name: str, split: Any = None) -> Any:
        body = {"deployedModelId": name, **({"trafficSplit": split} if split else {})}
        return self.client.post(f"/v1/{self.name}:undeployModel", json=body)

    def shown(self) -> Any:
        return self.client.get(f"/v1/{self.name}").json()

    def ours(self, name: str) -> Any:
        """What of ours a deployed model is."""
        found = self.client.get(f"/api/v1/projects/default/endpoints/{self.id}").json()["deployments"]
        return next(one for one in found if one["name"] == name)

    def change(self, name: str, **values: Any) -> None:
        """What the control loop does."""
        stable_at = values.pop("stable_at", None)
        verdict = values.pop("verdict", "")
        with unit_of_work(self.sessions) as session:
            row = session.scalars(
                select(Deployment).where(Deployment.name == name, Deployment.ended_at.is_(None))
            ).one()
            session.execute(update(Deployment).where(Deployment.id == row.id).values(**values))
            session.execute(
                update(DeploymentRevision)
                .where(DeploymentRevision.deployment_id == row.id)
                .values(stable_at=stable_at, failure_reason=verdict)
            )

    def get_ready(self, name: str, clock: Any) -> None:
        self.change(name, stable_revision=1, stable_at=clock.now)


@pytest.fixture
def executor() -> str:
    return "process"


@pytest.fixture
def settings(settings: Settings, executor: str) -> Settings:
    return settings.model_copy(update={"executor": executor})


@pytest.fixture
def house(client: TestClient, sessions: SessionFactory, settings: Settings, clock: Any) -> House:
    return House(client, sessions, settings, clock)


def test_an_endpoint_is_made_found_listed_changed_and_deleted(client: TestClient, house: House, clock: Any) -> None:
    clock.advance(1)
    other = client.post(f"{PARENT}/endpoints?endpointId=second", json={"displayName": "My endpoint"}).json()["response"]
    assert house.shown()["displayName"] == "My endpoint"
    assert (house.shown()["labels"], house.shown()["deployedModels"]) == ({"team": "x"}, [])
    assert client.get(f"{PARENT}/endpoints/second").json()["name"] == other["name"]
    client.post("/api/v1/projects/default/endpoints", json={"name": "Ours_v1.2"})
    assert client.get(f"{PARENT}/endpoints/Ours_v1.2").json()["displayName"] == "Ours_v1.2"
    listed = client.get(f'{PARENT}/endpoints?filter=display_name="My endpoint"').json()["endpoints"]
    assert [one["name"] for one in listed] == [other["name"], house.name]
    first = client.get(f"{PARENT}/endpoints?pageSize=2").json()
    rest = client.get(f"{PARENT}/endpoints?pageSize=2&pageToken={first['nextPageToken']}").json()
    assert [one["displayName"] for one in first["endpoints"] + rest["endpoints"]].count("Ours_v1.2") == 1
    assert "nextPageToken" not in rest
    elsewhere = PARENT.replace("us-central1", "europe-west4")
    assert [one["displayName"] for one in client.get(f"{elsewhere}/endpoints").json()["endpoints"]] == ["Ours_v1.2"]
    assert client.get(f"/v1/{house.name}".replace("us-central1", "europe-west4")).status_code == 404
    changed = client.patch(
        f"/v1/{house.name}?updateMask=displayName,labels,description",
        json={"displayName": "Renamed", "labels": {"a": "b"}, "description": "Some words."},
    ).json()
    assert (changed["displayName"], changed["labels"], changed["description"]) == ("Renamed", {"a": "b"}, "Some words.")
    masked = client.patch(f"/v1/{house.name}?updateMask=labels", json={"displayName": "x", "labels": {}}).json()
    assert (masked["displayName"], "labels" in masked) == ("Renamed", False)
    begun = client.delete(f"/v1/{house.name}").json()
    assert client.get(f"/ui/{begun['name']}").json() == begun
    with unit_of_work(house.sessions) as session:
        session.execute(update(Endpoint).where(Endpoint.id == house.id).values(deleted_at=clock.now))
    assert client.get(f"/ui/{begun['name']}").json()["done"] is True
    error_of(client.get(f"/v1/{house.name}"), 404, "NOT_FOUND")


def test_a_prebuilt_container_is_the_platforms_own_server(client: TestClient, house: House, clock: Any) -> None:
    begun = house.deploy(house.upload(), {"0": 100}, displayName="My digits").json()
    assert ("done" in begun, begun["name"].startswith(f"{house.name}/operations/deploy-deployment-")) == (False, True)
    ours = house.ours("my-digits")
    spec = ours["revision_list"][0]["spec"]
    assert (spec["framework"], spec["trust_code"], spec["image"], ours["traffic"]) == ("sklearn", True, None, 100)
    assert (spec["model_name"], ours["replicas"]) == ("digits@1", 1)
    house.get_ready("my-digits", clock)
    done = client.get(f"/ui/{begun['name']}").json()
    assert done["response"]["@type"].endswith(".v1.DeployModelResponse")
    deployed = done["response"]["deployedModel"]
    assert (deployed["id"], deployed["displayName"], deployed["modelVersionId"]) == ("my-digits", "My digits", "1")
    assert house.shown()["deployedModels"] == [deployed]
    assert house.shown()["trafficSplit"] == {"my-digits": 100}
    assert "undeploy them first" in error_of(client.delete(f"/v1/{house.name}"), 400, "FAILED_PRECONDITION")
    gone = house.undeploy("my-digits").json()
    assert "done" not in client.get(f"/ui/{gone['name']}").json()
    house.change("my-digits", state="ended", ended_at=clock.now)
    assert client.get(f"/ui/{gone['name']}").json()["done"] is True
    assert house.shown()["deployedModels"] == []


@pytest.mark.parametrize("executor", ["docker"])
def test_a_container_of_ones_own_keeps_its_contract(house: House) -> None:
    container = {
        "imageUri": "registry.example/serve:1", "command": ["python", "serve.py"], "args": ["--x"],
        "env": [{"name": "KEY", "value": "VALUE"}], "ports": [{"containerPort": 9000}], "predictRoute": "/ask",
        "healthRoute": "/well", "sharedMemorySizeMb": "64", "deploymentTimeout": "90s",
    }  # fmt: skip
    machine = {"machineType": "n1-standard-4", "acceleratorType": 5, "acceleratorCount": 2}
    resources = {"machineSpec": machine, "minReplicaCount": 2, "maxReplicaCount": 2, "spot": True}
    begun = house.deploy(house.upload(container), {"0": 100}, dedicatedResources=resources)
    assert begun.status_code == 200, begun.text
    spec = house.ours("digits")["revision_list"][0]["spec"]
    assert (spec["image"], spec["command"], spec["args"]) == (
        "registry.example/serve:1",
        ["python", "serve.py"],
        ["--x"],
    )
    assert (spec["env"], spec["port"]) == ({"KEY": "VALUE"}, 9000)
    assert (spec["health_route"], spec["predict_route"], spec["ready_timeout_s"]) == ("/well", "/ask", 90)
    assert (spec["resources"]["gpus"], spec["resources"]["gpu_type"], spec["resources"]["shm"]) == (2, ["T4"], "64Mi")
    assert (house.ours("digits")["replicas"], spec["priority"], spec["trust_code"]) == (2, 25, False)
    plain = house.deploy(house.upload({"imageUri": "registry.example/serve:2"}), id="2nd").json()
    assert "done" not in plain
    spec = house.ours("2nd")["revision_list"][0]["spec"]
    assert spec["predict_route"] == "/v1/endpoints/my-endpoint/deployedModels/2nd:predict"
    assert spec["health_route"] == "/v1/endpoints/my-endpoint/deployedModels/2nd"


def test_the_traffic_moves_to_a_second_model_when_that_is_ready(client: TestClient, house: House, clock: Any) -> None:
    of = house.upload()
    house.deploy(of, {"0": 100})
    house.get_ready("digits", clock)
    house.deploy(of, {"0": 100, "digits": 0})
    assert house.shown()["trafficSplit"] == {"digits": 100, "digits-2": 0}
    with unit_of_work(house.sessions) as session:
        (second,) = session.scalars(select(Deployment).where(Deployment.name == "digits-2"))
        assert second.split_when_ready == {"digits-2": 100, "digits": 0}
    by_hand = client.patch(
        f"/v1/{house.name}?updateMask=trafficSplit", json={"trafficSplit": {"digits": 40, "digits-2": 60}}
    )
    assert by_hand.json()["trafficSplit"] == {"digits": 40, "digits-2": 60}
    with unit_of_work(house.sessions) as session:  # the last word counts
        assert session.scalars(select(Deployment.split_when_ready)).all() == [None, None]
    house.undeploy("digits", {"digits-2": 100})
    assert house.shown()["trafficSplit"] == {"digits-2": 100}


def test_a_model_that_never_gets_ready_ends_its_operation_and_is_gone(
    client: TestClient, house: House, clock: Any
) -> None:
    begun = house.deploy(house.upload(), {"0": 100}).json()
    house.change("digits", state="failed", verdict="Revision 1 never got ready: it ended with 3.")
    done = client.get(f"/ui/{begun['name']}").json()
    assert (done["done"], done["error"]["code"]) == (True, 9)
    assert "it ended with 3" in done["error"]["message"]
    assert (house.shown()["deployedModels"], "trafficSplit" in house.shown()) == ([], False)
    again = house.deploy(house.upload(), {"0": 100}).json()
    assert house.ours("digits")["state"] == "undeploying"
    assert (house.ours("digits-2")["traffic"], "done" in again) == (100, False)
    house.undeploy("digits-2")
    assert client.get(f"/v1/{again['name']}").json()["error"]["code"] == 1


def is_on_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def test_answers_say_who_gave_them_and_errors_come_in_their_shape(
    client: TestClient,
    house: House,
    submit: Any,
    model: str,  # noqa: F811
    as_user: Any,
    stranger: TestClient,
    clock: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ask = f"/v1/{house.name}:predict"
    assert "nothing is deployed" in error_of(client.post(ask, json={"instances": [[1]]}), 503, "UNAVAILABLE")
    of = house.upload()
    house.deploy(of, {"0": 100})
    clock.advance(1)  # the proxy goes by what it read less than half a second ago
    assert "no ready replica" in error_of(client.post(ask, json={"instances": [[1]]}), 503, "UNAVAILABLE")
    run_replica(house.sessions, submit, house.ours("digits")["id"], model)
    clock.advance(1)
    viewer = as_user("viewer", role="viewer", scopes=("read",))
    for one in (client, viewer):
        answer = one.post(ask, json={"instances": [[1, 2.5], [3]]})
        assert answer.status_code == 200, answer.text
        assert answer.json() == {
            "predictions": [3.5, 3.0], "deployedModelId": "digits", "model": of.partition("@")[0],
            "modelDisplayName": "Digits", "modelVersionId": "1",
        }  # fmt: skip
    # A large answer is read where it stops no other request.
    threaded: list[Any] = []  # what is worked on there

    async def recorded(work: Any, *arguments: Any) -> Any:
        threaded.extend(arguments)
        return await run_in_threadpool(work, *arguments)

    monkeypatch.setattr(predicting, "run_in_threadpool", recorded)
    for count, is_threaded in ((1, False), (20_000, True)):
        answered = client.post(ask, json={"instances": [[1, 2.5]] * count}).json()
        assert answered["predictions"] == [3.5] * count
        assert any(isinstance(body, bytes) for body in threaded) == is_threaded
    raw = client.post(f"/v1/{house.name}:rawPredict", json={"instances": [[1, 2.5]]})
    assert raw.json() == {"predictions": [3.5], "has_token": False}
    assert raw.headers["X-Vertex-AI-Deployed-Model-Id"] == "digits"
    assert "no numbers" in error_of(client.post(ask, json={"instances": [[None]]}), 400, "INVALID_ARGUMENT")
    error_of(as_user("nobody", role=None).post(ask, json={"instances": []}), 403, "PERMISSION_DENIED")
    error_of(stranger.post(ask, json={"instances": []}), 403, "PERMISSION_DENIED")
    error_of(client.post(f"{PARENT}/endpoints/none:predict", json={"instances": []}), 404, "NOT_FOUND")
    assert "explain" in error_of(client.post(f"/v1/{house.name}:explain", json={}), 501, "UNIMPLEMENTED")


@pytest.mark.parametrize(
    ("reply", "split", "code", "status", "words"),
    [
        ({"model": "digits"}, None, 400, "INVALID_ARGUMENT", "no name of a model"),
        ({"model": f"{PARENT[4:]}/models/none"}, None, 404, "NOT_FOUND", "models/none"),
        ({"explanationSpec": {"a": 1}}, None, 501, "UNIMPLEMENTED", "explanations"),
        ({"automaticResources": {"minReplicaCount": 1}}, None, 501, "UNIMPLEMENTED", "automatic resources"),
        ({"serviceAccount": "x@y"}, None, 501, "UNIMPLEMENTED", "service accounts"),
        ({"dedicatedResources": {**MACHINE, "maxReplicaCount": 3}}, None, 501, "UNIMPLEMENTED", "scaling by load"),
        ({"dedicatedResources": {"minReplicaCount": -1}}, None, 400, "INVALID_ARGUMENT", "at least 1"),
        (
            {"dedicatedResources": {"machineSpec": {"acceleratorType": 5}, "minReplicaCount": 1}},
            None, 400, "INVALID_ARGUMENT", "go together",
        ),
        ({"id": "0"}, None, 400, "INVALID_ARGUMENT", "not 0"),
        ({"colour": "red"}, None, 400, "INVALID_ARGUMENT", "colour"),
        ({}, {"0": 50}, 400, "INVALID_ARGUMENT", "100 together, not 50"),
        ({}, {"0": 50, "other": 50}, 400, "INVALID_ARGUMENT", "no deployed model 'other'"),
        ({}, {"0": "many"}, 400, "INVALID_ARGUMENT", "traffic_split"),
    ],
)  # fmt: skip
def test_what_cannot_be_deployed_is_refused_by_its_name(
    house: House, reply: Any, split: Any, code: int, status: str, words: str
) -> None:
    assert words in error_of(house.deploy(house.upload(), split, **reply), code, status)
    assert house.shown()["deployedModels"] == []


@pytest.mark.parametrize(
    ("reply", "code", "status", "words"),
    [
        ({}, 400, "INVALID_ARGUMENT", "display_name"),
        ({"displayName": "x", "network": "projects/1/global/networks/a"}, 501, "UNIMPLEMENTED", "private endpoints"),
        ({"displayName": "x", "dedicatedEndpointEnabled": True}, 501, "UNIMPLEMENTED", "dedicated endpoints"),
        ({"displayName": "x", "trafficSplit": {"a": 100}}, 400, "INVALID_ARGUMENT", "a new endpoint has none"),
        ({"displayName": "x", "colour": "red"}, 400, "INVALID_ARGUMENT", "colour"),
    ],
)
def test_what_no_endpoint_can_be_is_refused_by_its_name(
    client: TestClient, reply: Any, code: int, status: str, words: str
) -> None:
    assert words in error_of(client.post(f"{PARENT}/endpoints", json=reply), code, status)
    assert client.get(f"{PARENT}/endpoints").json() == {}


def test_a_container_needs_images_or_a_command(house: House) -> None:
    of = house.upload({"imageUri": "registry.example/serve:1"})
    assert "plain processes have no images" in error_of(house.deploy(of), 400, "INVALID_ARGUMENT")
    own = house.upload({"imageUri": "registry.example/serve:1", "command": ["python3", "serve.py"]})
    assert house.deploy(own).status_code == 200
    assert house.ours("digits")["revision_list"][0]["spec"]["command"] == ["python3", "serve.py"]


def test_an_archive_of_torchserve_is_refused_before_it_fails(house: House) -> None:
    of = house.upload({"imageUri": "us-docker.pkg.dev/vertex-ai/prediction/pytorch-cpu.2-1:latest"}, "model.mar")
    assert "TorchServe" in error_of(house.deploy(of), 501, "UNIMPLEMENTED")


def test_who_may_change_endpoints(house: House, as_user: Any) -> None:
    of = house.upload()
    viewer, reader = as_user("viewer", role="viewer"), as_user("ann", scopes=("read",))
    assert viewer.get(f"/v1/{house.name}").status_code == 200
    for one in (viewer, reader):
        error_of(one.post(f"{PARENT}/endpoints", json={"displayName": "x"}), 403, "PERMISSION_DENIED")
        body = {"deployedModel": {"model": of}}
        error_of(one.post(f"/v1/{house.name}:deployModel", json=body), 403, "PERMISSION_DENIED")
        error_of(one.delete(f"/v1/{house.name}"), 403, "PERMISSION_DENIED")
