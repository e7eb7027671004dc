"""Ray's Jobs API over our own jobs, without Ray."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from core.domain.contracts.tf_config import PLACEHOLDER
from tests.unit.api_ray.conftest import API, zipped

Sent = Callable[..., str]


def ours(client: TestClient, submission_id: str, api: str = API) -> dict[str, Any]:
    """The job behind it, as our own API tells it."""
    job_id = client.get(f"{api}/jobs/{submission_id}").json()["job_id"]
    found: dict[str, Any] = client.get(f"/api/v1/jobs/{job_id}").json()
    return found


def test_a_client_hears_of_a_ray_that_it_can_speak_to(client: TestClient) -> None:
    assert client.get(f"{API}/version").json() == {
        "version": "4",
        "ray_version": "2.60.0",
        "ray_commit": "",
        "session_name": "default",
    }


def test_a_submission_is_a_job_of_one_replica(client: TestClient, sent: Sent) -> None:
    submission_id = sent(
        submission_id="raysubmit_1",
        metadata={"job_name": "My digits", "team": "vision", "note": "any text at all"},
        runtime_env={"env_vars": {"LR": "0.1"}},
        entrypoint_num_cpus=2,
        entrypoint_num_gpus=1.0,
        entrypoint_memory=2**30,
        entrypoint_resources={"accelerator_type:A100": 0.001},
        entrypoint_label_selector={"pool": "fast"},
    )
    job = ours(client, submission_id)
    assert (job["name"], job["state"], job["roles"]) == ("my-digits", "queued", {"worker": 1})
    assert job["labels"] == {"ray-submission-id": "raysubmit_1", "team": "vision"}
    spec = job["spec"]
    assert (spec["command"], spec["env"], spec["max_restarts"]) == ("python train.py", {"LR": "0.1"}, 0)
    assert spec["node_selector"] == {"pool": "fast"}
    role = spec["roles"]["worker"]
    assert role["processes_per_replica"] == 1
    resources = role["resources"]
    assert (resources["cpu"], resources["memory"], resources["gpus"]) == ("2", "1Gi", 1)
    assert resources["gpu_type"] == ["a100"] or resources["gpu_type"] == ["A100"]


def test_a_jobs_details_show_the_request(client: TestClient, sent: Sent) -> None:
    reply = {
        "entrypoint": "true",
        "metadata": {"a": "b c"},
        "runtime_env": {"env_vars": {"X": "1"}, "excludes": ["x"]},
    }
    submission_id = sent(**reply)
    seen = client.get(f"{API}/jobs/{submission_id}").json()
    assert seen["type"] == "SUBMISSION"
    assert seen["submission_id"] == submission_id
    assert submission_id.startswith("raysubmit_")
    assert {name: seen[name] for name in reply} == reply
    assert seen["status"] == "PENDING"
    assert seen["message"].startswith("Job has not started yet. ")
    assert seen["start_time"] == 1795244400000  # milliseconds
    assert (seen["end_time"], seen["driver_exit_code"], seen["driver_info"]) == (None, None, None)
    assert client.get(f"{API}/jobs/{seen['job_id']}").json() == seen
    assert client.get(f"{API}/jobs/").json() == [seen]


def test_states_are_rays(
    client: TestClient, sent: Sent, start: Callable[..., str], set_job: Callable[..., None], clock: Any
) -> None:
    submission_id = sent()
    job_id = ours(client, submission_id)["id"]
    start(job_id)

    def seen() -> dict[str, Any]:
        found: dict[str, Any] = client.get(f"{API}/jobs/{submission_id}").json()
        return found

    assert (seen()["status"], seen()["message"]) == ("RUNNING", "Job is currently running.")
    set_job(job_id, desired_state="cancel")
    assert (seen()["status"], seen()["message"]) == ("RUNNING", "Job is being stopped.")
    clock.advance(2)
    for state, exit_, wanted in (
        ("succeeded", {"kind": "success", "exit_code": 0}, ("SUCCEEDED", "Job finished successfully.", None, 0)),
        (
            "failed",
            {"kind": "user_error", "exit_code": 3, "sentence": "worker-0 failed with exit code 3."},
            ("FAILED", "worker-0 failed with exit code 3.", "JOB_ENTRYPOINT_COMMAND_ERROR", 3),
        ),
        ("failed", {"kind": "platform", "sentence": "Its node is lost."}, ("FAILED", "Its node is lost.", None, None)),
        ("expired", None, ("FAILED", "The job is expired.", None, None)),
        ("cancelled", {"kind": "cancelled", "sentence": "Cancelled by x."}, ("STOPPED", "Cancelled by x.", None, None)),
    ):
        set_job(job_id, state=state, exit=exit_, finished_at=clock.now)
        reply = seen()
        assert (reply["status"], reply["message"], reply["error_type"], reply["driver_exit_code"]) == wanted
        assert reply["end_time"] == reply["start_time"] + 2000


def test_an_id_is_good_for_one_job(client: TestClient, sent: Sent) -> None:
    sent(submission_id="mine")
    again = client.post(f"{API}/jobs/", json={"entrypoint": "true", "submission_id": "mine"})
    assert again.status_code == 400
    assert again.text == "Job with submission_id mine already exists. Please use a different submission_id"
    assert len(client.get(f"{API}/jobs/").json()) == 1
    # Another project's ids are its own; a deleted job's is free again.
    assert client.post("/api/v1/projects", json={"name": "speech"}).status_code == 201
    other = client.post("/ray/speech/api/jobs/", json={"entrypoint": "true", "submission_id": "mine"})
    assert other.status_code == 200, other.text
    assert ours(client, "mine", "/ray/speech/api")["project"] == "speech"
    assert client.post(f"{API}/jobs/mine/stop").json() == {"stopped": True}
    assert client.delete(f"{API}/jobs/mine").json() == {"deleted": True}
    assert client.get(f"{API}/jobs/mine").status_code == 404
    sent(submission_id="mine", entrypoint="echo 2")
    assert client.get(f"{API}/jobs/mine").json()["entrypoint"] == "echo 2"


def test_stopping_and_deleting(client: TestClient, sent: Sent, start: Callable[..., str]) -> None:
    submission_id = sent()
    refused = client.delete(f"{API}/jobs/{submission_id}")
    assert refused.status_code == 409
    assert "non-terminal state PENDING" in refused.text
    assert client.post(f"{API}/jobs/{submission_id}/stop").json() == {"stopped": True}
    assert client.get(f"{API}/jobs/{submission_id}").json()["status"] == "STOPPED"
    assert client.post(f"{API}/jobs/{submission_id}/stop").json() == {"stopped": False}
    assert client.delete(f"{API}/jobs/{submission_id}").json() == {"deleted": True}
    running = sent()
    start(ours(client, running)["id"])
    assert client.post(f"{API}/jobs/{running}/stop").json() == {"stopped": True}
    assert ours(client, running)["wanted"] == "cancel"


def test_a_deletion_waits_for_the_last_processes(
    client: TestClient,
    sent: Sent,
    start: Callable[..., str],
    set_job: Callable[..., None],
    end_attempt: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("api.protocols.ray.routes.POLL_S", 0.0)
    monkeypatch.setattr("api.protocols.ray.routes.DELETION_POLLS", 3)
    submission_id = sent()
    job_id = ours(client, submission_id)["id"]
    attempt_id = start(job_id)
    set_job(job_id, state="succeeded")
    refused = client.delete(f"{API}/jobs/{submission_id}")
    assert refused.status_code == 409
    assert "cleaned up" in refused.text
    end_attempt(attempt_id)
    assert client.delete(f"{API}/jobs/{submission_id}").json() == {"deleted": True}


def test_packages_of_pip_are_installed_before_the_entrypoint(client: TestClient, sent: Sent) -> None:
    pip = {"packages": ["six==1.17.0", "-i https://index.example/simple", ""], "pip_check": False}
    command = ours(client, sent(entrypoint="python a.py && b", runtime_env={"pip": pip, "_ray_commit": "1"}))["spec"][
        "command"
    ]
    assert command[:2] == ["python3", "-c"]
    assert command[3:] == ["six==1.17.0", "-i https://index.example/simple", "--", "/bin/sh", "-c", "python a.py && b"]


@pytest.mark.parametrize("environment", [{}, {"pip": ["six"]}])
def test_an_entrypoint_is_taken_to_the_letter(
    client: TestClient, sent: Sent, tmp_path: Path, environment: dict[str, Any]
) -> None:
    entrypoint = "printf %s '{job_name} {task_index} {ps_hosts}' > told"
    submission_id = sent(entrypoint=entrypoint, runtime_env={**environment, "env_vars": {"X": "1"}})
    spec = ours(client, submission_id)["spec"]
    script = spec["command"] if not environment else spec["command"][-1]
    assert not PLACEHOLDER.search(script)
    subprocess.run(["/bin/sh", "-c", script], env=spec["env"], cwd=tmp_path, check=True)
    assert (tmp_path / "told").read_text() == "{job_name} {task_index} {ps_hosts}"
    assert client.get(f"{API}/jobs/{submission_id}").json()["entrypoint"] == entrypoint


def test_a_uploaded_folder_is_the_jobs_code(client: TestClient, sent: Sent) -> None:
    path = f"{API}/packages/gcs/_ray_pkg_0123.zip"
    missing = client.get(path)
    assert (missing.status_code, missing.text) == (404, "Package gcs://_ray_pkg_0123.zip does not exist")
    early = client.post(
        f"{API}/jobs/", json={"entrypoint": "true", "runtime_env": {"working_dir": "gcs://_ray_pkg_0123.zip"}}
    )
    assert early.status_code == 400
    assert "does not exist among those that you uploaded" in early.text
    assert client.put(path, content=zipped({"train.py": "print(1)"})).status_code == 200
    assert client.get(path).status_code == 200
    code = ours(client, sent(runtime_env={"working_dir": "gcs://_ray_pkg_0123.zip"}))["spec"]["code"]
    assert client.get(f"/api/v1/archives/{code}").json()["is_complete"]


def test_packages_belong_to_their_user(client: TestClient, as_user: Callable[..., TestClient]) -> None:
    path = f"{API}/packages/gcs/_ray_pkg_0123.zip"
    assert client.put(path, content=zipped({"train.py": "print(1)"})).status_code == 200
    ann = as_user("ann")
    assert ann.get(path).status_code == 404
    body = {"entrypoint": "true", "runtime_env": {"working_dir": "gcs://_ray_pkg_0123.zip"}}
    assert ann.post(f"{API}/jobs/", json=body).status_code == 400


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "entrypoint must be a command"),
        ({"entrypoint": " "}, "entrypoint must be a command"),
        ({"entrypoint": 3}, "entrypoint must be a command"),
        ({"entrypoint": "x" * 100_001}, "entrypoint has more than"),
        ({"submission_id": "a/b"}, "submission_id must be"),
        ({"job_id": "a b"}, "job_id must be"),
        ({"submission_id": 3}, "submission_id must be"),
        ({"metadata": {"a": 1}}, "metadata values must be strings"),
        ({"metadata": []}, "metadata must be a dict"),
        ({"metadata": {"note": "x" * 70_000}}, "metadata has more than 64 KiB"),
        ({"runtime_env": {"excludes": ["x" * 70_000]}}, "runtime_env has more than 64 KiB"),
        ({"runtime_env": "x"}, "runtime_env must be a dict"),
        ({"runtime_env": {"conda": ["x"]}}, "runtime_env.conda is not served; name the packages in pip"),
        ({"runtime_env": {"uv": ["x"]}}, "runtime_env.uv is not served"),
        ({"runtime_env": {"py_modules": ["gcs://a.zip"]}}, "runtime_env.py_modules is not served"),
        ({"runtime_env": {"whatever": 1}}, "runtime_env.whatever is not known"),
        ({"runtime_env": {"working_dir": "s3://a/b.zip"}}, "s3:// is not served"),
        ({"runtime_env": {"working_dir": "/tmp"}}, "runtime_env.working_dir must be a package"),
        ({"runtime_env": {"working_dir": "gcs://../x.zip"}}, "runtime_env.working_dir must be a package"),
        ({"runtime_env": {"env_vars": {"A": 1}}}, "runtime_env.env_vars values must be strings"),
        ({"runtime_env": {"env_vars": {"TRAINMASTER_X": "1"}}}, "runtime_env.env_vars.TRAINMASTER_X"),
        ({"runtime_env": {"pip": "requirements.txt"}}, "runtime_env.pip must be a list"),
        ({"runtime_env": {"pip": ["a\nb"]}}, "is no line of a requirements file"),
        ({"runtime_env": {"pip": {"packages": [], "pip_check": True}}}, "pip_check is not served"),
        ({"runtime_env": {"pip": {"packages": ["a"], "pip_version": "==22"}}}, "pip_version is not served"),
        ({"runtime_env": {"pip": {"pip_install_options": ["--user"]}}}, "pip_install_options is not served"),
        ({"runtime_env": {"image_uri": 3}}, "runtime_env.image_uri must be"),
        ({"runtime_env": {"image_uri": "a/b:1"}}, "runtime_env.image_uri: this platform runs plain processes"),
        ({"entrypoint_num_cpus": "2"}, "entrypoint_num_cpus must be a number"),
        ({"entrypoint_num_cpus": -1}, "entrypoint_num_cpus must be a number from 0"),
        ({"entrypoint_num_cpus": True}, "entrypoint_num_cpus must be a number"),
        ({"entrypoint_num_gpus": 1.5}, "entrypoint_num_gpus:"),
        ({"entrypoint_memory": 1000}, "entrypoint_memory:"),
        ({"entrypoint_memory": 1.5}, "entrypoint_memory must be whole bytes"),
        ({"entrypoint_resources": {"TPU": 1}}, "entrypoint_resources.TPU: custom resources are not served"),
        ({"entrypoint_resources": {"x": "1"}}, "entrypoint_resources.x must be a number"),
        ({"entrypoint_label_selector": {"zone": "!a"}}, "entrypoint_label_selector.zone: '!a' is not served"),
        ({"retry_policy": {"max_retries": 3}}, "retry_policy is not served: a driver runs once"),
        ({"priority": 3}, "priority is not known"),
        ({"entrypoint": "a\0b"}, "NUL"),
    ],
)
def test_errors_are_plain_text(client: TestClient, body: dict[str, Any], message: str) -> None:
    sent = body if body == {} or "entrypoint" in body else {"entrypoint": "true", **body}
    answer = client.post(f"{API}/jobs/", json=sent)
    assert answer.status_code == 400, answer.text
    assert answer.headers["content-type"].startswith("text/plain")
    assert message in answer.text
    assert not answer.text.endswith(".")
    assert client.get(f"{API}/jobs/").json() == []


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b'{"entrypoint": NaN}', b"3"])
def test_a_body_that_is_none(client: TestClient, body: bytes) -> None:
    answer = client.post(f"{API}/jobs/", content=body)
    assert answer.status_code == 400
    assert answer.headers["content-type"].startswith("text/plain")


def test_who_may_not(client: TestClient, stranger: TestClient, as_user: Callable[..., TestClient], sent: Sent) -> None:
    assert stranger.get(f"{API}/version").status_code == 401
    # Ray's client shows the text of a 403, and of a 404 here that this is no Ray.
    unauthorised = as_user("nobody", role=None).get(f"{API}/version")
    assert unauthorised.status_code == 403
    assert "no project 'default' that you may see" in unauthorised.text
    submission_id = sent()
    viewer = as_user("vic", role="viewer")
    assert viewer.get(f"{API}/jobs/{submission_id}").status_code == 200
    assert viewer.post(f"{API}/jobs/", json={"entrypoint": "true"}).status_code == 403
    assert viewer.post(f"{API}/jobs/{submission_id}/stop").status_code == 403
    reader = as_user("ray", scopes=("read",))
    assert reader.delete(f"{API}/jobs/{submission_id}").status_code == 403
    assert as_user("far", role=None).get(f"{API}/jobs/{submission_id}").status_code == 404


def test_what_is_of_rays_dashboard_alone_is_named(client: TestClient) -> None:
    answer = client.get("/ray/api/serve/applications/")
    assert answer.status_code == 404
    assert answer.text == "/api/serve/applications/ of Ray's dashboard is not served by this platform; the Jobs API is"
    assert client.get(f"{API}/jobs/none/logs").text == "Job none does not exist"
