"""Kubernetes' routes as Kubeflow's client speaks them; tests/frameworks has the real one."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from api.app.factory import create_app
from core.db.engine import SessionFactory, unit_of_work
from core.db.tables import Job
from core.settings import Settings

GROUP = "/kubernetes/apis/trainer.kubeflow.org/v1alpha1"
JOBS = f"{GROUP}/namespaces/default/trainjobs"
CORE = "/kubernetes/api/v1/namespaces/default"
SCRIPT = """
read -r -d '' SCRIPT << EOM

def train():
    print("it isn't a \\\\"word\\\\"")
train()

EOM
printf "%s" "$SCRIPT" > "train.py"
torchrun "train.py\""""


def manifest(name: str = "a1", **spec: Any) -> dict[str, Any]:
    reply = {"runtimeRef": {"name": "torch-distributed", "apiGroup": "trainer.kubeflow.org"}, **spec}
    reply.setdefault("trainer", {"command": ["bash", "-c", SCRIPT], "numNodes": 2})
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name, "labels": {"team.example/of": "vision"}},
        "spec": reply,
    }


def sent(client: TestClient, body: Any) -> Any:
    answer = client.post(JOBS, json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


def trained(client: TestClient, **trainer: Any) -> Any:
    """The only role of the job that this becomes."""
    reply = sent(client, manifest(trainer={"command": ["true"], **trainer}))
    return ours(client, reply)["roles"]["worker"]


def ours(client: TestClient, reply: Any) -> Any:
    return client.get(f"/api/v1/jobs/{reply['metadata']['uid']}").json()["spec"]


def refused(answer: Any, code: int, reason: str) -> str:
    reply = answer.json()
    assert (answer.status_code, reply["kind"], reply["status"], reply["code"], reply["reason"]) == (
        code, "Status", "Failure", code, reason,
    ), answer.text  # fmt: skip
    return str(reply["message"])


# --- what it becomes -------------------------------------------------------------------------------------------------


def test_a_train_job_becomes_a_job(client: TestClient) -> None:
    reply = sent(client, manifest(activeDeadlineSeconds=600))
    assert reply["metadata"]["name"] == "a1"
    assert reply["metadata"]["namespace"] == "default"
    assert reply["metadata"]["labels"] == {"team.example/of": "vision"}
    assert reply["metadata"]["creationTimestamp"].endswith("Z")
    assert reply["spec"]["runtimeRef"]["name"] == "torch-distributed"
    assert reply["spec"]["trainer"]["numNodes"] == 2
    assert reply["spec"]["activeDeadlineSeconds"] == 600
    assert reply["status"] == {}
    spec = ours(client, reply)
    assert spec["name"] == "a1"
    assert spec["max_run_time"] == 600
    assert spec["max_restarts"] == 0
    worker = spec["roles"]["worker"]
    assert (worker["replicas"], worker["processes_per_replica"]) == (2, 1)
    assert worker["command"] == ["bash", "-c", SCRIPT]
    assert client.get(f"{JOBS}/a1").json() == reply
    assert [item["metadata"]["name"] for item in client.get(JOBS).json()["items"]] == ["a1"]


@pytest.mark.parametrize(
    ("trainer", "resources", "processes"),
    [
        ({}, {}, None),
        ({"numProcPerNode": 3}, {}, "3"),
        ({"resourcesPerNode": {"limits": {"cpu": "2500m", "memory": "2Gi"}}}, {"cpu": "2500m", "memory": "2Gi"}, "3"),
        ({"resourcesPerNode": {"requests": {"nvidia.com/gpu": 4, "cpu": 8}}}, {"gpus": 4, "cpu": "8"}, "4"),
        ({"resourcesPerNode": {"limits": {"nvidia.com/gpu": 4}}, "numProcPerNode": "cpu"}, {"gpus": 4}, None),
        ({"resourcesPerNode": {"limits": {"nvidia.com/mig-1g.5gb": "1"}}}, {"gpus": 1, "gpu_type": ["1g.5gb"]}, None),
        ({"numProcPerNode": 3, "env": [{"name": "PET_NPROC_PER_NODE", "value": "5"}]}, {}, "5"),
    ],
)
def test_resources_and_processes_are_counted_as_kubeflow_does(
    client: TestClient, trainer: dict[str, Any], resources: dict[str, Any], processes: str | None
) -> None:
    worker = trained(client, **trainer)
    reply = {name: value for name, value in worker["resources"].items() if value}
    assert reply == resources
    assert worker["env"].get("PET_NPROC_PER_NODE") == processes


def test_the_source_of_a_function_is_not_read_for_placeholders(client: TestClient, tmp_path: Path) -> None:
    script = 'cat > "told" << EOM\nprint(f"{job_name} {task_index}")\nEOM\ncp told copied'
    worker = trained(client, command=["bash", "-c", script])
    assert "{job_name}" not in "".join(worker["command"])
    ran = subprocess.run(worker["command"], env=worker["env"] | {"PATH": "/usr/bin:/bin"}, cwd=tmp_path, check=False)
    assert ran.returncode == 0
    assert (tmp_path / "copied").read_text() == 'print(f"{job_name} {task_index}")\n', shlex.join(worker["command"])


def test_a_name_is_there_once_until_it_is_deleted(client: TestClient) -> None:
    first = sent(client, manifest())
    assert "already exists" in refused(client.post(JOBS, json=manifest()), 409, "AlreadyExists")
    assert client.delete(f"{JOBS}/a1").json()["status"] == "Success"
    refused(client.get(f"{JOBS}/a1"), 404, "NotFound")
    assert client.get(f"/api/v1/jobs/{first['metadata']['uid']}").json()["state"] == "cancelled"
    assert sent(client, manifest())["metadata"]["uid"] != first["metadata"]["uid"]


def test_an_ended_train_job_that_is_deleted_is_forgotten(client: TestClient, set_job: Callable[..., None]) -> None:
    job_id = sent(client, manifest())["metadata"]["uid"]
    set_job(job_id, state="succeeded")
    assert client.delete(f"{JOBS}/a1").status_code == 200
    assert client.get(f"/api/v1/jobs/{job_id}").status_code == 404
    refused(client.delete(f"{JOBS}/a1"), 404, "NotFound")


def test_other_jobs_and_those_of_other_names_are_no_train_jobs(client: TestClient) -> None:
    client.post("/api/v1/jobs", json={"spec": {"name": "plain", "command": "true"}})
    assert client.get(JOBS).json()["items"] == []
    refused(client.get(f"{JOBS}/plain"), 404, "NotFound")


# --- how it goes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "condition"),
    [
        ({"state": "succeeded", "exit": {"sentence": "All is done."}}, ("Complete", "JobsCompleted", "All is done.")),
        (
            {"state": "failed", "exit": {"kind": "out_of_memory", "sentence": "It was too large."}},
            ("Failed", "OutOfMemory", "It was too large."),
        ),
        ({"state": "cancelled"}, ("Failed", "Cancelled", "The job is cancelled.")),
        ({"state": "expired"}, ("Failed", "Expired", "The job is expired.")),
        ({"state": "paused"}, ("Suspended", "Suspended", "The job is paused; `trainmaster resume a1` lets it go on.")),
    ],
)
def test_conditions_say_how_it_ended_and_why(
    client: TestClient, set_job: Callable[..., None], values: dict[str, Any], condition: tuple[str, str, str]
) -> None:
    set_job(sent(client, manifest())["metadata"]["uid"], **values)
    (reply,) = client.get(f"{JOBS}/a1").json()["status"]["conditions"]
    assert (reply["type"], reply["reason"], reply["message"]) == condition
    assert reply["status"] == "True"
    assert reply["lastTransitionTime"].endswith("Z")


def test_a_job_that_waits_says_why_and_one_that_never_can_start_warns(
    client: TestClient, set_job: Callable[..., None]
) -> None:
    job_id = sent(client, manifest())["metadata"]["uid"]
    sentence = "No node has 64 GPUs."
    set_job(job_id, wait_reason={"code": "no_node_fits", "sentence": sentence, "numbers": {"is_never": True}})
    (reply,) = client.get(f"{JOBS}/a1").json()["status"]["conditions"]
    assert (reply["type"], reply["status"], reply["reason"]) == ("Scheduled", "False", "NoNodeFits")
    assert reply["message"].startswith(sentence)
    assert client.get(JOBS).json()["items"][0]["status"]["conditions"] == [reply]
    event = client.get(f"{CORE}/events").json()["items"][-1]
    assert (event["involvedObject"]["name"], event["type"], event["reason"]) == ("a1", "Warning", "NoNodeFits")
    assert event["message"] == reply["message"]
    set_job(job_id, state="running")
    assert client.get(f"{JOBS}/a1").json()["status"] == {}
    assert all(event["reason"] != "NoNodeFits" for event in client.get(f"{CORE}/events").json()["items"])


def test_a_list_leaves_out_the_source_of_functions(client: TestClient) -> None:
    sent(client, manifest())
    (listed,) = client.get(JOBS).json()["items"]
    assert listed["spec"]["trainer"] == {"numNodes": 2}


def test_pods_are_the_replicas_of_the_newest_attempt(
    client: TestClient, start: Callable[..., str], end_attempt: Callable[..., None]
) -> None:
    selector = (
        "jobset.sigs.k8s.io/jobset-name=a1,jobset.sigs.k8s.io/replicatedjob-name in (dataset-initializer, "
        "model-initializer, launcher, node)"
    )
    trainer = {"command": ["true"], "numNodes": 2, "resourcesPerNode": {"limits": {"cpu": 2, "memory": "1Gi"}}}
    job_id = sent(client, manifest(trainer=trainer))["metadata"]["uid"]

    def pods() -> Any:
        return client.get(f"{CORE}/pods", params={"labelSelector": selector}).json()["items"]

    assert pods() == []
    end_attempt(start(job_id))
    start(job_id, number=2, state="running")
    found = pods()
    assert [pod["metadata"]["name"] for pod in found] == ["a1-node-0-0-2", "a1-node-0-1-2"]
    assert [pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] for pod in found] == ["0", "1"]
    assert {pod["status"]["phase"] for pod in found} == {"Running"}
    (container,) = found[0]["spec"]["containers"]
    assert container["resources"]["limits"] == {"cpu": "2", "memory": "1Gi"}
    assert container["env"] == [{"name": "PET_NPROC_PER_NODE", "value": "2"}]
    refused(client.get(f"{CORE}/pods/a1-node-0-0-1/log"), 404, "NotFound")


def test_a_pods_log_is_its_replicas_lines(
    client: TestClient,
    sessions: SessionFactory,
    start: Callable[..., str],
    end_attempt: Callable[..., None],
    settings: Settings,
) -> None:
    job_id = sent(client, manifest())["metadata"]["uid"]
    end_attempt(start(job_id))
    with unit_of_work(sessions) as session:
        path = session.get_one(Job, job_id).output_path
    for index in (0, 1):
        folder = settings.home / "output" / path / ".trainmaster/logs" / job_id / "1"
        folder.mkdir(parents=True, exist_ok=True)
        lines = "".join(f"2026-11-21T07:00:0{n}.000000Z line {n} of {index}\n" for n in range(3))
        (folder / f"worker-{index}.log").write_text(lines)
    for follow in ("False", "True"):
        answer = client.get(f"{CORE}/pods/a1-node-0-1-1/log", params={"container": "node", "follow": follow})
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.text == "line 0 of 1\nline 1 of 1\nline 2 of 1\n"
    assert client.get(f"{CORE}/pods/a1-node-0-0-1/log?tailLines=1").text == "line 2 of 0\n"
    assert "container" in refused(client.get(f"{CORE}/pods/a1-node-0-0-1/log?container=other"), 422, "Invalid")
    assert "timestamps" in refused(client.get(f"{CORE}/pods/a1-node-0-0-1/log?timestamps=true"), 422, "Invalid")


def test_events_are_those_of_train_jobs(client: TestClient) -> None:
    client.post("/api/v1/jobs", json={"spec": {"name": "plain", "command": "true"}})
    sent(client, manifest())
    reply = client.get(f"{CORE}/events").json()["items"]
    assert {event["involvedObject"]["name"] for event in reply} == {"a1"}
    assert reply[0]["involvedObject"]["kind"] == "TrainJob"
    assert reply[0]["reason"] == "JobQueued"
    assert reply[0]["message"]
    assert reply[0]["firstTimestamp"].endswith("Z")


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (manifest(initializer={"dataset": {"storageUri": "hf://a/b"}}), "spec.initializer is not served"),
        (manifest(runtimePatches=[{"manager": "x"}]), "spec.runtimePatches is not served"),
        (manifest(suspend=True), "spec.suspend"),
        (manifest(trainer={"command": ["true"], "numNodes": 0}), "spec.trainer.numNodes"),
        (manifest(trainer={"numNodes": 1}), "a command or an image"),
        (manifest(trainer={"command": ["true"], "env": [{"name": "A", "valueFrom": {"x": 1}}]}), "env.0.valueFrom"),
        (manifest(trainer={"command": ["true"], "numProcPerNode": "many"}), "numProcPerNode"),
        (
            manifest(trainer={"command": ["true"], "resourcesPerNode": {"limits": {"google.com/tpu": 4}}}),
            "google.com/tpu",
        ),
        (
            manifest(trainer={"command": ["true"], "resourcesPerNode": {"limits": {"cpu": 1}, "requests": {"cpu": 2}}}),
            "requests and limits",
        ),
        (
            manifest(runtimeRef={"name": "python-distributed"}, trainer={"command": ["true"], "numProcPerNode": 2}),
            "one process",
        ),
        (manifest(runtimeRef={"name": "torch-distributed", "kind": "TrainingRuntime"}), "spec.runtimeRef.kind"),
        (manifest("Not_A_Name"), "name"),
        (manifest("a" * 60), "metadata.name"),
        ({**manifest(), "kind": "Pod"}, "kind"),
        (manifest(trainer={"command": ["true"], "image": "pytorch/pytorch"}), "cannot run image"),
    ],
)
def test_what_is_wrong_or_not_served_is_named(app: Any, client: TestClient, body: Any, names: str) -> None:
    assert names in refused(client.post(JOBS, json=body), 422, "Invalid")
    assert client.get(JOBS).json()["items"] == []


def test_errors_have_the_format_of_kubernetes(client: TestClient, stranger: TestClient) -> None:
    assert "deployments" in refused(client.get("/kubernetes/apis/apps/v1/deployments"), 404, "NotFound")
    unknown = manifest(runtimeRef={"name": "mpi-distributed"})
    assert "torch-distributed" in refused(client.post(JOBS, json=unknown), 404, "NotFound")
    refused(client.get(f"{GROUP}/clustertrainingruntimes/mpi-distributed"), 404, "NotFound")
    assert "no project" in refused(client.get(JOBS.replace("default", "none")), 404, "NotFound")
    assert "labelSelector" in refused(client.get(f"{CORE}/pods"), 422, "Invalid")
    assert "watch" in refused(client.get(f"{JOBS}?watch=true"), 422, "Invalid")
    refused(client.post(JOBS, content=b"{", headers={"content-type": "application/json"}), 400, "BadRequest")
    refused(stranger.get(JOBS), 401, "Unauthorized")
    large = {**manifest(), "x": "x" * (5 * 2**20)}
    refused(client.post(JOBS, json=large), 413, "RequestEntityTooLarge")


def test_a_runtime_shows_the_image_that_its_jobs_run_in(
    settings: Settings, admin_token: str, sessions: SessionFactory
) -> None:
    for changes, image in (
        ({}, "plain-processes"),
        ({"executor": "docker", "default_image": "torch:cpu"}, "torch:cpu"),
    ):
        app = create_app(settings.model_copy(update=changes), sessions=sessions)
        runtimes = TestClient(app, headers={"Authorization": f"Bearer {admin_token}"}).get(
            f"{GROUP}/clustertrainingruntimes"
        )
        for runtime in runtimes.json()["items"]:
            (job,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
            (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
            assert container == {"name": "node", "image": image}
