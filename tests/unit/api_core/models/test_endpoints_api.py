"""Endpoints over REST: deployed or refused in words that name the field, and asked through the proxy."""

from __future__ import annotations

import http.server
import json
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy.exc import IntegrityError
from starlette.testclient import TestClient
from trainmaster.spec import parse_spec
from trainmaster.wire.serving import ServingSpec

from api.endpoints.checks import own_image
from core import worker_packages
from core.db.engine import SessionFactory, unit_of_work
from core.db.tables import Deployment, DeploymentRevision, Endpoint, Event, ServingReplica
from core.domain.serving.jobs import replica_job
from core.settings import Settings
from core.wakeups import TOPIC_ENDPOINT

URL = "/api/v1/projects/default/endpoints"
DEPLOYED = f"{URL}/sums/deployments"


class _Model(http.server.BaseHTTPRequestHandler):
    """Sums the instances; refuses what is none; says which headers it got."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            value = {"predictions": [sum(one) for one in json.loads(body)["instances"]]}
            status = 200
        except TypeError:
            value, status = {"error": "no numbers"}, 400
        answer = json.dumps({**value, "has_token": "Authorization" in self.headers}).encode()
        self.send_response(status)
        for name, text in (
            ("Content-Type", "application/json"),
            ("Set-Cookie", "a=b"),
            ("Content-Length", len(answer)),
        ):
            self.send_header(name, str(text))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def model() -> Iterator[str]:
    """The address of a replica."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Model)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def endpoint(client: TestClient, settings: Settings) -> dict[str, Any]:
    """With one deployed model, of which nothing runs yet."""
    folder = settings.home / "output" / "default" / "m"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.skops").touch()
    assert client.post(URL, json={"name": "sums"}).status_code == 201
    answer = client.post(DEPLOYED, json={"model": "output/default/m/model.skops"})
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    return made


def run_replica(sessions: SessionFactory, submit: Any, deployment: str, address: str, *, revision: int = 1) -> None:
    """What the control loop does when one is ready."""
    with unit_of_work(sessions) as session:
        now = session.query(Event).order_by(Event.id.desc()).first().at  # type: ignore[union-attr]
    job = submit()
    with unit_of_work(sessions) as session:
        session.add(
            ServingReplica(
                id=f"serving-{job}", deployment_id=deployment, revision=revision, job_id=job, state="ready",
                address=address, created_at=now, ready_at=now,
            )
        )  # fmt: skip


@pytest.mark.parametrize(
    ("path", "fields"),
    [(DEPLOYED, {}), ("/api/v1/projects/default/batch-predictions", {"input": "output/default/m"})],
)
def test_a_platform_without_its_model_server_refuses_to_use_it(
    client: TestClient,
    endpoint: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    fields: dict[str, str],
) -> None:
    monkeypatch.setattr(worker_packages, "CHECKOUT", tmp_path / "no checkout")
    monkeypatch.setitem(sys.modules, "trainmaster_serving", None)
    answer = client.post(path, json={"model": "output/default/m/model.skops", **fields})
    assert answer.status_code == 422, answer.text
    assert "install ./worker_images/serving" in answer.json()["detail"]


def test_a_file_is_deployed_as_its_folder_and_the_scheduler_is_rung_for(endpoint: dict[str, Any], wakeup: Any) -> None:
    (one,) = endpoint["deployments"]
    assert (one["state"], one["traffic"], one["wanted"], one["stable"]) == ("deploying", 100, 1, None)
    spec = one["revision_list"][0]["spec"]
    assert (spec["model"], spec["model_file"]) == ("output/default/m", "model.skops")
    assert (TOPIC_ENDPOINT, endpoint["id"]) in wakeup.rings


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"model": "output/default/none"}, "model"),
        ({"model": "nowhere/m"}, "model"),
        ({"model": "output/default/m", "image": "me/server"}, "image"),
        ({"model": "output/default/m", "resources": {"cpu": "many"}}, "resources.cpu"),
        ({"model": "output/default/m", "env": {"TRAINMASTER_X": "1"}}, "env.TRAINMASTER_X"),
        ({"model": "output/default/m", "port": 8080}, "port"),
        ({"model": "output/default/m", "env": {"AIP_HTTP_PORT": "\u00b2"}}, "env.AIP_HTTP_PORT"),
        ({"model": "output/default/m", "env": {"AIP_HTTP_PORT": "65536"}}, "env.AIP_HTTP_PORT"),
        ({"model": "output/default/m", "max_surge": 0}, "max_surge"),
        ({"model": "output/default/m", "deployment": "b", "traffic": 1}, "traffic"),
    ],
)
def test_what_cannot_be_deployed_is_refused_by_its_field(
    client: TestClient, endpoint: dict[str, Any], body: dict[str, Any], field: str
) -> None:
    assert endpoint["name"] == "sums"
    answer = client.post(DEPLOYED, json=body)
    assert answer.status_code == 422, answer.text
    assert answer.json()["field"] == field
    assert not answer.json()["detail"].endswith("..")
    assert len(client.get(f"{URL}/sums").json()["deployments"][0]["revision_list"]) == 1


@pytest.mark.parametrize("version", ["\u00b2", "9" * 30])
def test_a_version_that_is_no_number_is_not_found(client: TestClient, endpoint: dict[str, Any], version: str) -> None:
    assert endpoint["name"] == "sums"
    answer = client.post(DEPLOYED, json={"model": f"digits@{version}"})
    assert answer.status_code == 404, answer.text


def test_a_name_is_the_projects_only_one_until_it_is_deleted(client: TestClient, endpoint: dict[str, Any]) -> None:
    again = client.post(URL, json={"name": "sums"})
    assert (again.status_code, again.json()["field"]) == (409, "name")
    # A name that is another one's id: what has the name is meant, for reading and for changing.
    assert client.post(URL, json={"name": endpoint["id"], "description": "b"}).status_code == 201
    assert client.get(f"{URL}/{endpoint['id']}").json()["description"] == "b"
    assert client.delete(f"{URL}/{endpoint['id']}").status_code < 300
    assert client.get(f"{URL}/sums").json()["id"] == endpoint["id"]


def test_two_endpoints_of_one_name_cannot_be_written(sessions: SessionFactory, endpoint: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError), unit_of_work(sessions) as session:
        first = session.get_one(Endpoint, endpoint["id"])
        session.add(
            Endpoint(
                id="endpoint-2", project_id=first.project_id, user_id=first.user_id, name=first.name,
                created_at=first.created_at, updated_at=first.created_at,
            )
        )  # fmt: skip


def test_a_rollback_wants_the_last_one_that_served(client: TestClient, endpoint: dict[str, Any]) -> None:
    assert endpoint["name"] == "sums"
    refused = client.post(f"{DEPLOYED}/default/rollback")
    assert refused.status_code == 409
    assert "ever been stable" in refused.json()["detail"]
    client.post(DEPLOYED, json={"model": "output/default/m"})
    back = client.post(f"{DEPLOYED}/default/rollback", json={"revision": 1}).json()
    assert back["deployments"][0]["wanted"] == 1
    assert client.post(f"{DEPLOYED}/default/rollback", json={"revision": 9}).json()["field"] == "revision"


def test_what_was_given_up_is_news_until_somebody_says_anew_what_is_to_serve(
    client: TestClient, endpoint: dict[str, Any], sessions: SessionFactory, submit: Any
) -> None:
    deployment = endpoint["deployments"][0]["id"]
    client.post(DEPLOYED, json={"model": "output/default/m", "reason": "nightly"})
    run_replica(sessions, submit, deployment, "127.0.0.1:1", revision=1)
    with unit_of_work(sessions) as session:
        now = session.get_one(Deployment, deployment).updated_at
        row = session.get_one(DeploymentRevision, (deployment, 2))
        row.failure_reason, row.failures, row.failed_at = "Revision 2 never got ready.", 3, now
        row = session.get_one(Deployment, deployment)
        row.target_revision = row.stable_revision = 1
    assert client.get(f"{URL}/sums").json()["deployments"][0]["note"] == "Revision 2 never got ready."
    # What its replicas say now comes before what became of another revision.
    with unit_of_work(sessions) as session:
        replica = session.query(ServingReplica).one()
        replica.state, replica.message = "starting", "It reads its model."
    assert client.get(f"{URL}/sums").json()["deployments"][0]["note"] == "It reads its model."
    with unit_of_work(sessions) as session:
        session.query(ServingReplica).one().state = "ready"
    client.post(DEPLOYED, json={"model": "output/default/m"})
    client.post(f"{DEPLOYED}/default/rollback", json={"revision": 1, "reason": "the old one"})
    own = client.get(f"{URL}/sums").json()["deployments"][0]
    assert (own["state"], own["note"]) == ("ready", "")
    assert {one["number"]: one["verdict"] for one in own["revision_list"]}[2]  # why it was given up can still be read
    first = client.get(f"{URL}/sums/history", params={"limit": 1}).json()
    (newest,) = first["items"]
    assert (newest["what"], newest["revision"], newest["reason"]) == ("deployment.rolled_back", 1, "the old one")
    rest = client.get(f"{URL}/sums/history", params={"cursor": first["next_cursor"]}).json()["items"]
    reported = [(one["what"], one["revision"], one["reason"]) for one in rest]
    assert reported == [
        ("deployment.deployed", 3, ""), ("deployment.deployed", 2, "nightly"), ("deployment.deployed", 1, ""),
        ("endpoint.created", None, ""),
    ]  # fmt: skip


def test_a_revision_whose_version_was_deleted_does_not_serve_again(
    client: TestClient, endpoint: dict[str, Any], sessions: SessionFactory
) -> None:
    client.post(DEPLOYED, json={"model": "output/default/m"})
    with unit_of_work(sessions) as session:
        row = session.get_one(DeploymentRevision, (endpoint["deployments"][0]["id"], 1))
        row.spec = {**row.spec, "version_id": "version-gone", "model_name": "digits@1"}
    refused = client.post(f"{DEPLOYED}/default/rollback", json={"revision": 1})
    assert (refused.status_code, refused.json()["field"]) == (409, "revision")
    assert "its model digits@1 was deleted" in refused.json()["detail"]


def test_what_is_being_undeployed_gets_no_part_of_the_traffic(
    client: TestClient, endpoint: dict[str, Any], sessions: SessionFactory, submit: Any
) -> None:
    run_replica(sessions, submit, endpoint["deployments"][0]["id"], "127.0.0.1:1")  # that it waits for
    assert client.post(DEPLOYED, json={"model": "output/default/m", "deployment": "next"}).status_code == 200
    assert client.delete(f"{DEPLOYED}/default").status_code == 202
    refused = client.put(f"{URL}/sums/traffic", json={"traffic": {"default": 50, "next": 50}})
    assert (refused.status_code, refused.json()["field"]) == (409, "traffic.default")
    assert client.put(f"{URL}/sums/traffic", json={"traffic": {"default": 0, "next": 100}}).status_code == 200


def test_requests_reach_a_ready_replica_and_its_answers_are_marked(
    client: TestClient, endpoint: dict[str, Any], sessions: SessionFactory, submit: Any, model: str
) -> None:
    run_replica(sessions, submit, endpoint["deployments"][0]["id"], model)
    answer = client.post(f"{URL}/sums:predict", json={"instances": [[1, 2], [3, 4]]})
    # The user's token stays here, and the model's cookies there.
    assert answer.json() == {"predictions": [3, 7], "has_token": False}
    assert answer.headers["trainmaster-answered-by"] == "model"
    assert (answer.headers["trainmaster-revision"], "set-cookie" in answer.headers) == ("1", False)
    refused = client.post(f"{URL}/sums:rawPredict?deployment=default", json={"instances": [["a"]]})
    assert (refused.status_code, refused.json()["error"]) == (400, "no numbers")


def test_a_replica_that_refuses_is_passed_by(
    client: TestClient, endpoint: dict[str, Any], sessions: SessionFactory, submit: Any, model: str
) -> None:
    for address in ("127.0.0.1:1", "127.0.0.1:2", model):
        run_replica(sessions, submit, endpoint["deployments"][0]["id"], address)
    for _ in range(5):
        assert client.post(f"{URL}/sums:predict", json={"instances": [[1]]}).status_code == 200


def test_where_all_that_were_ready_a_moment_ago_are_gone_those_in_their_place_are_queried(
    client: TestClient, endpoint: dict[str, Any], sessions: SessionFactory, submit: Any, model: str, clock: Any
) -> None:
    deployment = endpoint["deployments"][0]["id"]
    run_replica(sessions, submit, deployment, "127.0.0.1:1")
    moment = clock.now
    assert client.post(f"{URL}/sums:predict", json={"instances": [[1]]}).status_code == 503
    with unit_of_work(sessions) as session:
        session.query(ServingReplica).one().state = "draining"
    run_replica(sessions, submit, deployment, model)
    clock.now = moment  # what the API has read is as new as can be
    assert client.post(f"{URL}/sums:predict", json={"instances": [[1]]}).status_code == 200


def test_replicas_that_refuse_are_not_called_ready_in_the_same_sentence(
    client: TestClient, endpoint: dict[str, Any], sessions: SessionFactory, submit: Any
) -> None:
    run_replica(sessions, submit, endpoint["deployments"][0]["id"], "127.0.0.1:1")
    answer = client.post(f"{URL}/sums:predict", json={"instances": [[1]]})
    assert (answer.status_code, answer.json()["detail"]) == (
        503,
        (
            "Endpoint 'sums': a replica that was ready refused the connection, and there is no other replica; try "
            "again in a "
            "moment, or see `trainmaster endpoint show sums`."
        ),
    )


def test_without_a_ready_replica_it_says_why(client: TestClient, endpoint: dict[str, Any]) -> None:
    assert endpoint["name"] == "sums"
    answer = client.post(f"{URL}/sums:predict", json={"instances": [[1]]})
    assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (503, "unavailable", "2")
    assert answer.json()["detail"] == "Endpoint 'sums' has no ready replica: default is deploying."
    other = client.post(f"{URL}/sums:predict?deployment=other", json={"instances": [[1]]})
    assert "it has no deployed model 'other', but default" in other.json()["detail"]


def test_a_body_that_is_too_large_is_refused(client: TestClient, endpoint: dict[str, Any]) -> None:
    assert endpoint["name"] == "sums"
    answer = client.post(f"{URL}/sums:predict", content=b"x", headers={"Content-Length": str(2**40)})
    assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")
    assert "batch prediction" in answer.json()["detail"]


def test_a_batch_prediction_is_a_job(client: TestClient, endpoint: dict[str, Any]) -> None:
    assert endpoint["name"] == "sums"
    body = {"model": "output/default/m", "input": "output/default/m/model.skops", "replicas": 3}
    job = client.post("/api/v1/projects/default/batch-predictions", json=body).json()
    assert (job["spec"]["contract"], job["spec"]["roles"]["worker"]["replicas"]) == ("serving", 3)
    assert "--instances-file" in job["spec"]["args"]
    # Where no path can be mounted, only what stands in the arguments is replaced.
    place = job["spec"]["args"].index("--instances")
    assert job["spec"]["args"][place + 1] == job["spec"]["mounts"][0]["at"]
    wrong = client.post("/api/v1/projects/default/batch-predictions", json={**body, "input": "output/default/none"})
    assert (wrong.status_code, wrong.json()["field"]) == (422, "input")


def test_a_batch_prediction_requested_again_with_its_key_is_the_same_job(
    client: TestClient, endpoint: dict[str, Any]
) -> None:
    assert endpoint["name"] == "sums"
    url, headers = "/api/v1/projects/default/batch-predictions", {"Idempotency-Key": "once"}
    body = {"model": "output/default/m", "input": "output/default/m/model.skops"}
    first = client.post(url, json=body, headers=headers)
    again = client.post(url, json=body, headers=headers)
    assert (first.status_code, again.status_code, again.json()["id"]) == (201, 201, first.json()["id"])
    assert first.headers["location"] == again.headers["location"] == f"/api/v1/jobs/{first.json()['id']}"
    assert ("idempotency-replayed" in first.headers, again.headers["idempotency-replayed"]) == (False, "true")
    other = client.post(url, json={**body, "replicas": 2}, headers=headers)
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_mismatch")
    assert client.post(url, json=body).json()["id"] != first.json()["id"]
    assert len(client.get("/api/v1/jobs").json()["items"]) == 2


@pytest.mark.parametrize(
    ("files", "entry", "field", "word"),
    [
        (["model.joblib"], None, "trust_code", "output/default/odd/model.joblib is a pickle"),
        (["model.pt2"], None, "trust_code", "`--trust-code`"),
        (["model.pt", "model.py"], "model/data.pkl", "trust_code", "model.py next to it would have to be run"),
        (["model.pt"], "model/data.pkl", "model", "has only weights"),
        (["readme.txt"], None, "model", "output/default/odd holds no model: it has readme.txt"),
        (["model.pt"], "model/code/__torch__.py", None, ""),
    ],
)
def test_files_that_the_server_would_refuse_are_refused_at_once(
    client: TestClient, endpoint: dict[str, Any], settings: Settings, files: list[str], entry: str | None,
    field: str | None, word: str,
) -> None:  # fmt: skip
    assert endpoint["name"] == "sums"
    folder = settings.home / "output" / "default" / "odd"
    folder.mkdir()
    for name in files:
        if entry is not None and name.endswith(".pt"):
            with zipfile.ZipFile(folder / name, "w") as archive:
                archive.writestr(entry, "")
        else:
            (folder / name).touch()
    body = {"model": "output/default/odd"}
    batch = {**body, "input": "output/default/m/model.skops"}
    for url, requested in ((DEPLOYED, body), ("/api/v1/projects/default/batch-predictions", batch)):
        answer = client.post(url, json=requested)
        reported = answer.json()
        assert answer.status_code == (422 if field else 201 if requested is batch else 200), answer.text
        assert (reported.get("field"), word in reported.get("detail", "")) == (field, True)
    own = client.post(DEPLOYED, json={**body, "command": ["python", "server.py"]})
    assert own.status_code == 200, own.text  # what somebody's own server reads is not known
    if field == "trust_code":
        assert client.post(DEPLOYED, json={**body, "trust_code": True}).status_code == 200


def test_of_a_list_of_names_that_is_too_long_nothing_is_reported(
    client: TestClient, endpoint: dict[str, Any], settings: Settings
) -> None:
    assert endpoint["name"] == "sums"
    folder = settings.home / "output" / "default" / "long"
    folder.mkdir()
    with zipfile.ZipFile(folder / "model.pt", "w") as archive:
        for number in range(40):
            archive.writestr(f"{number}".ljust(60_000, "x"), "")
    assert client.post(DEPLOYED, json={"model": "output/default/long"}).status_code == 200


def test_a_saved_model_is_served_by_the_image_that_has_tensorflow(app: FastAPI, settings: Settings) -> None:
    for name, file in (("saved", "saved_model.pb"), ("other", "model.skops")):
        folder = settings.home / "output" / "default" / name
        folder.mkdir(parents=True)
        (folder / file).touch()

    def image(of: str, file: str = "", framework: str = "auto", **stated: str) -> str | None:
        own = Settings.model_validate({"home": settings.home, "executor": "docker", **stated})
        return own_image(replace(app.state.context, settings=own), f"output/default/{of}", file, framework)

    torch, tensorflow = "trainmaster/serving:cpu", "trainmaster/serving:tensorflow"
    assert (image("saved"), image("other"), image("nothing")) == (tensorflow, torch, torch)
    assert (image("saved", "saved_model.pb"), image("other", "model.skops")) == (tensorflow, torch)
    assert (image("saved", framework="sklearn"), image("other", framework="tensorflow")) == (torch, tensorflow)
    assert image("saved", executor="process") is None
    assert image("saved", serving_image="mine:1") == "mine:1"  # it may read everything
    assert image("saved", serving_image="mine:1", tensorflow_serving_image="mine:tf") == "mine:tf"


def test_names_may_have_capitals_dots_and_underscores(
    client: TestClient, endpoint: dict[str, Any], sessions: SessionFactory, submit: Any, model: str
) -> None:
    assert client.post(URL, json={"name": "Iris_v1.2"}).status_code == 201
    path = f"{URL}/Iris_v1.2"
    body = {"deployment": "Forest.B_1", "model": "output/default/m/model.skops"}
    deployed = client.post(f"{path}/deployments", json=body)
    assert deployed.status_code == 200, deployed.text
    assert client.get(path).json()["deployments"][0]["name"] == "Forest.B_1"
    run_replica(sessions, submit, deployed.json()["deployments"][0]["id"], model)
    answer = client.post(f"{path}:predict?deployment=Forest.B_1", json={"instances": [[1, 2]]})
    assert (answer.status_code, answer.json()["predictions"]) == (200, [3])
    assert client.post(f"{path}/deployments/Forest.B_1/scale", json={"replicas": 2}).status_code == 200
    assert client.post(URL, json={"name": "iris_v1.2"}).status_code == 201  # another one
    for name in (".iris", "iris_", "a/b", "a b", "a" * 64):
        assert client.post(URL, json={"name": name}).status_code == 422


def test_a_replicas_job_has_a_valid_name_whatever_its_endpoints_name() -> None:
    spec = ServingSpec(model="output/default/m", framework="sklearn", model_file="model.skops")
    for endpoint, deployment in (("I" * 61 + ".v", "b"), ("a" * 61 + ".b", "c"), ("a_" * 30 + "ab", "c")):
        job = replica_job(
            spec, project="default", endpoint=endpoint, deployment=deployment, revision=1, own_server=("serve",)
        )
        assert parse_spec(job).name == f"{endpoint}-{deployment}"[:63].rstrip("._-")
