from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import func, select, update
from starlette.testclient import TestClient

from core.db.engine import SessionFactory, unit_of_work
from core.db.tables import Event, Job, JobLabel, Volume
from core.settings import Settings

SPEC: dict[str, Any] = {"name": "digits", "command": "python train.py", "workers": 2, "labels": {"team": "vision"}}


def submit(client: TestClient, *, key: str | None = None, **changes: Any) -> Any:
    headers = {} if key is None else {"Idempotency-Key": key}
    return client.post("/api/v1/jobs", json={"spec": {**SPEC, **changes}}, headers=headers)


def count(sessions: SessionFactory, table: Any) -> int:
    with unit_of_work(sessions, read_only=True) as session:
        return session.execute(select(func.count()).select_from(table)).scalar_one()


def test_a_submitted_job_is_queued_with_a_reason_from_the_first_second(client: TestClient) -> None:
    answer = submit(client)
    assert answer.status_code == 201
    job = answer.json()
    assert answer.headers["location"] == f"/api/v1/jobs/{job['id']}"
    assert (job["state"], job["user"], job["project"]) == ("queued", "admin", "default")
    assert job["wait_reason"]["code"] == "just_queued"
    assert job["wait_reason"]["sentence"].endswith(".")
    assert job["roles"] == {"worker": 2}
    assert job["output"] == f"output/default/{job['id']}"
    assert job["spec"]["roles"]["worker"]["replicas"] == 2


def test_an_elastic_job_tells_how_few_and_how_many_workers_it_may_have(client: TestClient) -> None:
    roles = {"worker": {"replicas": 3, "min_replicas": 2}}
    answer = submit(client, workers=None, roles=roles)
    assert answer.status_code == 201, answer.text
    job = client.get(f"/api/v1/jobs/{answer.json()['id']}").json()
    assert (job["roles"], job["most_replicas"]) == ({"worker": 2}, {"worker": 3})


def test_a_submission_writes_labels_roles_and_history_and_rings_after_the_commit(
    client: TestClient, sessions: SessionFactory, wakeup: Any
) -> None:
    job_id = submit(client, ps=1).json()["id"]
    with unit_of_work(sessions, read_only=True) as session:
        labels = {tuple(row) for row in session.execute(select(JobLabel.key, JobLabel.value))}
        events = session.execute(select(Event.kind, Event.actor, Event.job_id)).all()
    assert labels == {("team", "vision"), (".role", "worker"), (".role", "ps")}
    assert events == [("job.queued", "user:admin", job_id)]
    assert wakeup.rings == [("tick", "")]


def test_the_same_key_makes_one_job(client: TestClient, sessions: SessionFactory) -> None:
    first, second = submit(client, key="a"), submit(client, key="a")
    assert first.status_code == second.status_code == 201
    assert first.json()["id"] == second.json()["id"]
    assert "idempotency-replayed" not in first.headers
    assert second.headers["idempotency-replayed"] == "true"
    assert count(sessions, Job) == 1


def test_the_same_key_with_another_request_is_refused(client: TestClient, sessions: SessionFactory) -> None:
    submit(client, key="a")
    answer = submit(client, key="a", workers=3)
    assert (answer.status_code, answer.json()["code"]) == (409, "idempotency_mismatch")
    assert answer.json()["field"] == "Idempotency-Key"
    assert count(sessions, Job) == 1


def test_users_do_not_share_keys(client: TestClient, as_user: Callable[..., TestClient]) -> None:
    assert submit(client, key="a").json()["id"] != submit(as_user("ann"), key="a").json()["id"]


def test_requests_with_one_key_at_the_same_moment_make_one_job(client: TestClient, sessions: SessionFactory) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: submit(client, key="same"), range(16)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert count(sessions, Job) == 1


def test_a_key_whose_job_was_deleted_is_informed_so(client: TestClient) -> None:
    job = submit(client, key="a").json()
    client.post(f"/api/v1/jobs/{job['id']}/cancel")
    client.delete(f"/api/v1/jobs/{job['id']}")
    assert submit(client, key="a").status_code == 409


def test_a_dry_run_gives_the_canonical_spec_and_submits_nothing(client: TestClient, sessions: SessionFactory) -> None:
    answer = client.post("/api/v1/jobs", json={"spec": SPEC, "dry_run": True})
    assert answer.status_code == 200
    assert answer.json()["roles"]["worker"]["replicas"] == 2
    assert count(sessions, Job) == 0


def test_a_dry_run_warns_of_a_command_that_contradicts_its_replicas(client: TestClient) -> None:
    def warning(**changes: Any) -> str | None:
        answer = client.post("/api/v1/jobs", json={"spec": {**SPEC, **changes}, "dry_run": True})
        assert answer.status_code == 200
        return answer.headers.get("Warning")

    assert warning() is None
    found = warning(command="torchrun --nnodes=4 train.py; mpirun -np 1 x")
    machines, processes = json.loads("[" + (found or "").replace("299 - ", "") + "]")
    assert "for 4 machines (--nnodes), and the job has 2 replicas" in machines
    assert "starts 1 processes in all (-np)" in processes


def test_a_spec_may_come_as_yaml(client: TestClient) -> None:
    answer = client.post("/api/v1/jobs", json={"spec_text": "name: from-yaml\ncommand: 'true'\nworkers: 3\n"})
    assert answer.json()["roles"] == {"worker": 3}


@pytest.mark.parametrize("body", [{}, {"spec": SPEC, "spec_text": "name: x"}])
def test_exactly_one_form_of_the_spec_is_requested(client: TestClient, body: dict[str, Any]) -> None:
    answer = client.post("/api/v1/jobs", json=body)
    assert (answer.status_code, answer.json()["field"]) == (422, "spec")


def test_a_job_is_found_by_its_name_with_capitals_dots_and_underscores(client: TestClient) -> None:
    upper = submit(client, name="ResNet_50.v2").json()
    lower = submit(client, name="resnet_50.v2").json()
    for job in (upper, lower):
        assert client.get(f"/api/v1/jobs/{job['name']}").json()["id"] == job["id"]
        assert [item["id"] for item in client.get("/api/v1/jobs", params={"name": job["name"]}).json()["items"]] == [
            job["id"]
        ]
    assert upper["output"] == f"output/default/{upper['id']}"


def test_every_mistake_of_a_spec_is_reported_at_once(client: TestClient) -> None:
    answer = client.post("/api/v1/jobs", json={"spec": {"name": "No Name!", "command": "x", "prioritty": 3}})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_spec")
    assert {error["path"] for error in answer.json()["errors"]} == {"name", "prioritty"}


def test_every_missing_place_is_reported_at_once(client: TestClient) -> None:
    answer = submit(
        client, input="dta/digits", output="nowhere/x", mounts=[{"volume": "data", "path": "not/there", "at": "/mnt/a"}]
    )
    assert answer.status_code == 422
    errors = {error["path"]: error for error in answer.json()["errors"]}
    assert set(errors) == {"input", "output", "mounts.0"}
    assert errors["input"]["hint"] == "did you mean data?"


def test_an_input_that_is_there_is_accepted(client: TestClient, settings: Settings) -> None:
    (settings.home / "data" / "digits").mkdir()
    assert submit(client, input="data/digits").status_code == 201


def test_an_input_outside_its_volume_is_refused(client: TestClient) -> None:
    assert submit(client, input="data/../token").status_code == 422


def test_a_read_only_volume_takes_no_output(client: TestClient, sessions: SessionFactory, clock: Any) -> None:
    with unit_of_work(sessions) as session:
        session.execute(update(Volume).where(Volume.name == "data").values(is_read_only=True))
    clock.advance(60)
    answer = submit(client, output="data/out")
    assert "read-only" in answer.json()["errors"][0]["message"]


@pytest.mark.parametrize("kind", ["nfs", "pvc", "csi"])
def test_a_volume_that_plain_processes_cannot_mount_is_refused(
    client: TestClient, sessions: SessionFactory, clock: Any, settings: Settings, kind: str
) -> None:
    (settings.home / "data" / "digits").mkdir()
    with unit_of_work(sessions) as session:
        session.execute(update(Volume).where(Volume.name == "data").values(kind=kind, config={"path": "/export"}))
    clock.advance(60)
    mount = {"volume": "data", "path": "digits", "at": "/mnt/a"}
    refused = submit(client, input="data/digits", output="data/out", mounts=[mount])
    assert refused.status_code == 422, refused.text
    errors = {error["path"]: error for error in refused.json()["errors"]}
    assert set(errors) == {"input", "output", "mounts.0"}
    assert f"'data' is of kind {kind}, which plain processes cannot mount" in errors["output"]["message"]
    assert "a volume of kind local" in errors["output"]["hint"]


def test_an_image_is_refused_where_plain_processes_run(client: TestClient) -> None:
    answer = submit(client, image="tensorflow:2.15")
    assert (answer.status_code, answer.json()["field"]) == (422, "image")
    assert "TRAINMASTER_EXECUTOR=process" in answer.json()["detail"]


def test_code_that_was_never_uploaded_is_refused(client: TestClient, sessions: SessionFactory) -> None:
    answer = submit(client, code="sha256:" + "0" * 64)
    assert (answer.status_code, answer.json()["field"]) == (422, "code")
    assert count(sessions, Job) == 0


def test_a_secret_that_the_project_lacks_is_named(client: TestClient) -> None:
    answer = submit(client, secrets=["WANDB_KEY"])
    assert (answer.status_code, answer.json()["field"]) == (422, "secrets.0")
    assert "WANDB_KEY" in answer.json()["detail"]


def test_an_unknown_project_is_not_found(as_user: Callable[..., TestClient]) -> None:
    answer = submit(as_user("eve", role=None))
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_a_viewer_may_not_submit(as_user: Callable[..., TestClient]) -> None:
    answer = submit(as_user("vic", role="viewer"))
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert "member" in answer.json()["detail"]


def test_a_token_without_the_scope_write_may_not_submit(as_user: Callable[..., TestClient]) -> None:
    answer = submit(as_user("rob", scopes=("read",)))
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


def test_a_member_reads_no_other_projects_outputs(client: TestClient, as_user: Callable[..., TestClient]) -> None:
    theirs = submit(as_user("ann"), input="output/others/job-1", output="output/others/x")
    assert {error["path"] for error in theirs.json()["errors"]} >= {"input", "output"}
    assert "not belong to a project of yours" in theirs.json()["errors"][0]["message"]


def test_a_link_in_the_own_folder_opens_no_other_projects_folder(
    as_user: Callable[..., TestClient], settings: Settings
) -> None:
    ann = as_user("ann")
    own, others = settings.home / "output" / "default", settings.home / "output" / "others"
    (others / "job-1").mkdir(parents=True)
    (own / "real").mkdir(parents=True)
    (own / "away").symlink_to("../others")
    (own / "near").symlink_to("real")
    refused = submit(
        ann,
        input="output/default/away/job-1",
        output="output/default/away/job-2",
        mounts=[{"volume": "output", "path": "default/away", "at": "/mnt/a"}],
    )
    assert {error["path"] for error in refused.json()["errors"]} == {"input", "output", "mounts.0"}
    assert submit(ann, input="output/default/near", output="output/default/near/new").status_code == 201


@pytest.mark.parametrize("path", ["", ".models", ".models/default/version-1"])
def test_no_job_mounts_registered_models_but_read_only(client: TestClient, settings: Settings, path: str) -> None:
    """Not an administrator's either, nor with all of the volume that they are on."""
    (settings.home / "output" / ".models" / "default" / "version-1").mkdir(parents=True)
    mount = {"volume": "output", "path": path, "at": "/mnt/a", "read_only": False}
    refused = submit(client, mounts=[mount], output="output/.models/default/job")
    assert {error["path"] for error in refused.json()["errors"]} == {"mounts.0", "output"}
    assert all("which are immutable" in error["message"] for error in refused.json()["errors"])
    assert submit(client, mounts=[{**mount, "read_only": True}]).status_code == 201


def test_an_input_that_nobody_can_read_is_refused(client: TestClient, settings: Settings) -> None:
    os.mkfifo(settings.home / "data" / "pipe")
    refused = submit(client, input="data/pipe")
    assert refused.status_code == 422
    assert "not a file that can be read" in refused.json()["detail"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_input_that_the_platform_may_not_read_is_refused(client: TestClient, settings: Settings) -> None:
    folder = settings.home / "data" / "locked"
    folder.mkdir()
    folder.chmod(0)
    refused = submit(client, input="data/locked")
    assert refused.status_code == 422
    assert "no permission" in refused.json()["detail"]


@pytest.mark.parametrize("key", ["", "x" * 201, "tab\there"])
def test_an_idempotency_key_that_is_none_is_refused(client: TestClient, key: str) -> None:
    assert submit(client, key=key).status_code == 422
