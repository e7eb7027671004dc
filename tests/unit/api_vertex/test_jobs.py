"""Vertex AI's routes as its SDK speaks them; tests/frameworks has the real one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from api.app.factory import create_app
from core.domain.jobs.states import JobState
from core.settings import Settings

PARENT = "/v1/projects/default/locations/us-central1"
# As the SDK sends it: enums as numbers, int64 as text.
POOL = {
    "machineSpec": {"machineType": "n1-standard-4", "acceleratorType": 5, "acceleratorCount": 2},
    "replicaCount": "1",
    "diskSpec": {"bootDiskType": "pd-ssd", "bootDiskSizeGb": 100},
    "containerSpec": {
        "imageUri": "python:3.11",
        "command": ["python3", "train.py"],
        "args": ["--x=1"],
        "env": [{"name": "KEY", "value": "VALUE"}],
    },
}
TASK = "gs://google-cloud-aiplatform/schema/trainingjob/definition/custom_task_1.0.0.yaml"


def job(*pools: Any, **spec: Any) -> dict[str, Any]:
    return {
        "displayName": "My job",
        "labels": {"team": "x"},
        "jobSpec": {"workerPoolSpecs": list(pools or (POOL,)), **spec},
    }


def sent(client: TestClient, body: Any, collection: str = "customJobs") -> Any:
    answer = client.post(f"{PARENT}/{collection}?$alt=json;enum-encoding=int", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def ours(client: TestClient, reply: Any) -> Any:
    """The spec of the job behind a resource."""
    return client.get(f"/api/v1/jobs/{reply['name'].rpartition('/')[2]}").json()["spec"]


def error_of(answer: Any, code: int, status: str) -> str:
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["status"]) == (code, code, status), answer.text
    return str(error["message"])


def refused(client: TestClient, body: Any, *, status: str = "INVALID_ARGUMENT", collection: str = "customJobs") -> str:
    code = {"INVALID_ARGUMENT": 400, "UNIMPLEMENTED": 501, "NOT_FOUND": 404, "PERMISSION_DENIED": 403}[status]
    return error_of(client.post(f"{PARENT}/{collection}", json=body), code, status)


# --- what it becomes -------------------------------------------------------------------------------------------------


def test_a_custom_job_becomes_a_job(client: TestClient) -> None:
    reply = sent(client, job())
    assert reply["name"].startswith(PARENT.removeprefix("/v1/") + "/customJobs/job-")
    assert reply["state"] == "JOB_STATE_QUEUED"
    assert reply["displayName"] == "My job"
    assert reply["labels"] == {"team": "x"}
    assert reply["jobSpec"]["workerPoolSpecs"] == [POOL]
    assert reply["createTime"].endswith("Z")
    assert "T" in reply["createTime"]
    spec = ours(client, reply)
    assert spec["name"] == "my-job"
    assert spec["labels"] == {"team": "x"}
    assert spec["max_run_time"] == 7 * 24 * 3600
    assert spec["max_restarts"] == 0
    role = spec["roles"]["chief"]
    assert (role["command"], role["args"], role["env"]) == (["python3", "train.py"], ["--x=1"], {"KEY": "VALUE"})
    assert (role["resources"]["gpus"], role["resources"]["gpu_type"]) == (2, ["T4"])
    assert role["processes_per_replica"] == 1
    assert role["image"] is None  # plain processes have none
    assert client.get(f"/v1/{reply['name']}").json() == reply


def test_pools_are_roles_by_their_position(client: TestClient) -> None:
    def pool(replicas: int) -> dict[str, Any]:
        return {"containerSpec": {"imageUri": "i", "command": ["true"]}, "replicaCount": str(replicas)}

    spec = ours(client, sent(client, job(pool(1), pool(3), {}, pool(1))))
    assert {name: role["replicas"] for name, role in spec["roles"].items()} == {"chief": 1, "worker": 3, "evaluator": 1}


def test_scheduling_is_mapped(client: TestClient) -> None:
    reply = {"timeout": "90.5s", "restartJobOnWorkerRestart": True, "strategy": 4, "maxWaitDuration": "600s"}
    spec = ours(client, sent(client, job(scheduling=reply)))
    assert (spec["max_run_time"], spec["max_wait"], spec["max_restarts"], spec["priority"]) == (90.5, 600, 3, 25)
    stored = ours(client, sent(client, job(scheduling={"restartJobOnWorkerRestart": True, "disableRetries": True})))
    assert stored["max_restarts"] == 0


def test_buckets_that_it_names_are_mounted(client: TestClient, settings: Settings) -> None:
    (settings.home / "data").mkdir(exist_ok=True)
    pool = {
        **POOL,
        "machineSpec": {},
        "containerSpec": {"imageUri": "i", "command": ["sh", "-c", "cat /gcs/data/x gs://default/y gs://elsewhere/z"]},
    }
    spec = ours(client, sent(client, job(pool, baseOutputDirectory={"outputUriPrefix": "gs://data/runs/a:1"})))
    assert spec["output"] == "data/runs/a:1"
    assert [(m["volume"], m["path"], m["at"], m["read_only"]) for m in spec["mounts"]] == [
        ("data", "", "/gcs/data", False),
        ("output", "default", "/gcs/default", False),
    ]
    own = ours(client, sent(client, job(pool, baseOutputDirectory={"outputUriPrefix": "gs://default/runs"})))
    assert own["output"] == "output/default/runs"


def test_a_package_is_run_by_its_module(client: TestClient, settings: Settings) -> None:
    package = {
        "executorImageUri": "us-docker.pkg.dev/vertex-ai/training/pytorch-cpu:latest",
        "packageUris": ["gs://data/p-0.1.tar.gz"],
        "pythonModule": "p.task",
        "args": ["--epochs", "3"],
    }
    role = ours(client, sent(client, job({"pythonPackageSpec": package, "replicaCount": "1"})))["roles"]["chief"]
    assert role["command"][:2] == ["python3", "-c"]
    assert role["command"][3:] == ["/gcs/data/p-0.1.tar.gz", "--", "python3", "-m", "p.task"]
    assert role["args"] == ["--epochs", "3"]


def test_a_pipeline_has_a_job_behind_it(client: TestClient) -> None:
    pool = {
        "machine_spec": {
            "machine_type": "n1-standard-4",
            "accelerator_type": "NVIDIA_TESLA_K80",
            "accelerator_count": 2.0,
        },
        "replica_count": 1.0,
        "disk_spec": {"boot_disk_type": "pd-ssd", "boot_disk_size_gb": 100.0},
        "container_spec": {"image_uri": "i", "command": ["true"], "env": [{"name": "A_B", "value": "c"}]},
    }
    inputs = {
        "worker_pool_specs": [pool, {**pool, "replica_count": 2.0}],
        "base_output_directory": {"output_uri_prefix": "gs://data/o"},
    }
    body = {"displayName": "p", "trainingTaskDefinition": TASK, "trainingTaskInputs": inputs}
    reply = sent(client, body, "trainingPipelines")
    assert reply["state"] == "PIPELINE_STATE_QUEUED"
    assert reply["trainingTaskDefinition"] == TASK
    backing = reply["trainingTaskMetadata"]["backingCustomJob"]
    shown = client.get(f"/v1/{backing}").json()
    assert shown["jobSpec"]["workerPoolSpecs"][1]["replicaCount"] == 2
    spec = ours(client, reply)
    assert spec["roles"]["worker"]["replicas"] == 2
    assert spec["roles"]["chief"]["resources"]["gpu_type"] == ["K80"]
    assert spec["output"] == "data/o"
    assert "pipeline" in error_of(client.delete(f"/v1/{backing}"), 400, "FAILED_PRECONDITION")


def test_names_of_theirs_mean_ours(
    settings: Settings, sessions: Any, client: TestClient, wakeup: Any, clock: Any
) -> None:
    table = {"projects": {"my-*": "default"}, "buckets": {"my-bucket": "data"}, "locations": {"us-*": {"pool": "a"}}}
    own = settings.model_copy(update={"vertex": json.dumps(table)})
    with TestClient(create_app(own, sessions=sessions, wakeup=wakeup, clock=clock), headers=client.headers) as theirs:
        base = {"outputUriPrefix": "gs://my-bucket/o"}
        place = "/v1/projects/my-company/locations/us-central1/customJobs"
        reply = theirs.post(place, json=job(baseOutputDirectory=base)).json()
        assert reply["name"].startswith("projects/my-company/locations/us-central1/customJobs/")
        spec = ours(theirs, reply)
        assert (spec["project"], spec["output"], spec["node_selector"]) == ("default", "data/o", {"pool": "a"})
        assert spec["mounts"][0]["at"] == "/gcs/my-bucket"
        assert theirs.get("/storage/v1/b/my-bucket").json()["name"] == "my-bucket"


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "custom_job.display_name"),
        ({"displayName": "x"}, "worker_pool_specs: the first pool"),
        ({"displayName": "x", "jobSpec": {"workerPoolSpecs": [{}, POOL]}}, "the first pool"),
        (job({**POOL, "replicaCount": "2"}), "must be 1 for the first worker pool"),
        (job({**POOL, "replicaCount": 1.5}), "this is a whole number, not 1.5"),
        (job({**POOL, "machineSpec": {"machineType": "dc-9"}}), None),
        (
            job({**POOL, "machineSpec": {"acceleratorType": 99, "acceleratorCount": 1}}),
            "one of ACCELERATOR_TYPE_UNSPECIFIED",
        ),
        (job({**POOL, "machineSpec": {"acceleratorType": 6, "acceleratorCount": 1}}), "TPU_V2 is not supported"),
        (job({**POOL, "machineSpec": {"acceleratorType": 5}}), "go together"),
        (job({**POOL, "pythonPackageSpec": {"pythonModule": "m"}}), "exactly one of"),
        (job({"replicaCount": 1, "containerSpec": {"command": ["x"]}}), "image_uri: Required field"),
        (job(scheduling={"timeout": "soon"}), "a duration such as 3600s"),
        (job(colour="red"), "Unknown name \"colour\" at 'custom_job.job_spec': Cannot find field."),
        (job(baseOutputDirectory={"outputUriPrefix": "gs://data/../x"}), "base_output_directory"),
        (job(baseOutputDirectory={"outputUriPrefix": "s3://x"}), "no Cloud Storage URI"),
        (job({"replicaCount": 1, "containerSpec": {"imageUri": "i"}}), "command"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(client: TestClient, body: Any, message: str | None) -> None:
    if message is None:  # plain processes take every machine
        sent(client, body)
    else:
        assert message in refused(client, body)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("network", "n"),
        ("serviceAccount", "a@b"),
        ("persistentResourceId", "p"),
    ],
)
def test_unsupported_fields_are_refused_by_name(client: TestClient, field: str, value: str) -> None:
    message = refused(client, job(**{field: value}), status="UNIMPLEMENTED")
    assert "not served by this platform" in message
    assert client.get(f"{PARENT}/customJobs").json() == {}


@pytest.mark.parametrize("is_announced", [True, False])
def test_a_large_body_is_refused_in_googles_format(client: TestClient, is_announced: bool) -> None:
    raw = b'{"displayName": "' + b"x" * (5 * 2**20) + b'"}'
    headers = {"Content-Type": "application/json"}
    answer = client.post(f"{PARENT}/customJobs", content=raw if is_announced else iter([raw]), headers=headers)
    assert "larger than 4 MiB" in error_of(answer, 400, "INVALID_ARGUMENT")


def test_the_preview_api_is_refused_by_name(client: TestClient) -> None:
    message = error_of(client.get(f"{PARENT}/customJobs".replace("/v1/", "/v1beta1/")), 501, "UNIMPLEMENTED")
    assert "v1beta1 is not served" in message


def test_other_collections_are_refused_by_name(client: TestClient) -> None:
    for path in ("datasets", "featurestores?filter=x"):
        message = error_of(client.get(f"{PARENT}/{path}"), 501, "UNIMPLEMENTED")
        assert path.partition("/")[0].partition("?")[0] in message
    task = "gs://x/automl_tabular_1.0.0.yaml"
    body = {"displayName": "p", "trainingTaskDefinition": task, "trainingTaskInputs": {}}
    assert "automl_tabular" in refused(client, body, status="UNIMPLEMENTED", collection="trainingPipelines")


def test_unknown_buckets_are_reported(client: TestClient) -> None:
    package = {"executorImageUri": "i", "packageUris": ["gs://nowhere/p.tar.gz"], "pythonModule": "p"}
    assert "bucket does not exist" in refused(
        client, job({"pythonPackageSpec": package, "replicaCount": 1}), status="NOT_FOUND"
    )
    base = {"outputUriPrefix": "gs://nowhere/x"}
    assert "gs://nowhere/x" in refused(client, job(baseOutputDirectory=base), status="NOT_FOUND")


def test_who_may(client: TestClient, stranger: TestClient, as_user: Callable[..., TestClient], app: Any) -> None:
    reply = sent(client, job())
    wrong = TestClient(app, headers={"Authorization": "Bearer tm_wrong"})
    for one in (stranger, wrong):
        error_of(one.get(f"/v1/{reply['name']}"), 403, "PERMISSION_DENIED")
        error_of(one.post(f"{PARENT}/customJobs", json=job()), 403, "PERMISSION_DENIED")
        error_of(one.get(f"{PARENT}/models"), 403, "PERMISSION_DENIED")
    unauthorised = as_user("nobody", role=None)
    assert "or it may not exist" in error_of(unauthorised.get(f"/v1/{reply['name']}"), 403, "PERMISSION_DENIED")
    viewer = as_user("viewer", role="viewer")
    assert viewer.get(f"/v1/{reply['name']}").status_code == 200
    error_of(viewer.post(f"/v1/{reply['name']}:cancel"), 403, "PERMISSION_DENIED")
    error_of(viewer.post(f"{PARENT}/customJobs", json=job()), 403, "PERMISSION_DENIED")
    reader = as_user("reader", scopes=("read",))
    error_of(reader.post(f"{PARENT}/customJobs", json=job()), 403, "PERMISSION_DENIED")


# --- its life --------------------------------------------------------------------------------------------------------


def test_states_errors_and_times(client: TestClient, start: Any, set_job: Any, clock: Any, settings: Settings) -> None:
    reply = sent(client, job(enableWebAccess=True))
    job_id = reply["name"].rpartition("/")[2]
    seen = []
    start(job_id)
    running = client.get(f"/v1/{reply['name']}").json()
    assert running["webAccessUris"] == {"workerpool0-0": f"{settings.api_url}/jobs/{job_id}"}
    for state in ("starting", "running", "cancelling", "succeeded", "failed", "cancelled", "expired"):
        ended = {"exit": {"kind": "user_error", "sentence": "worker-0 ended with 1."}} if state == "failed" else {}
        set_job(job_id, state=state, **ended)
        seen.append(client.get(f"/v1/{reply['name']}").json())
    assert [one["state"].removeprefix("JOB_STATE_") for one in seen] == [
        "PENDING", "RUNNING", "CANCELLING", "SUCCEEDED", "FAILED", "CANCELLED", "FAILED",
    ]  # fmt: skip
    assert seen[4]["error"] == {"code": 3, "message": "worker-0 ended with 1."}
    assert [one["error"]["code"] for one in seen[4:]] == [3, 1, 4]
    assert "startTime" in seen[3]


# The states in which Google's client stops to wait, as its jobs.py and training_jobs.py have them.
THE_END = ("SUCCEEDED", "FAILED", "CANCELLED", "PAUSED")


@pytest.mark.parametrize("state", [state.value for state in JobState])
def test_the_client_waits_until_a_job_has_ended_and_no_longer(client: TestClient, set_job: Any, state: str) -> None:
    body = {"displayName": "p", "trainingTaskDefinition": TASK, "trainingTaskInputs": {"worker_pool_specs": [POOL]}}
    for reply in (sent(client, job()), sent(client, body, "trainingPipelines")):
        set_job(reply["name"].rpartition("/")[2], state=state)
        seen = client.get(f"/v1/{reply['name']}").json()
        assert (seen["state"].partition("_STATE_")[2] in THE_END) == JobState(state).is_terminal
        # One that it takes for completed has no error.
        assert ("error" in seen) == (state in ("failed", "cancelled", "expired"))


def test_a_job_whose_time_is_over_failed_and_is_found_so(client: TestClient, set_job: Any) -> None:
    reply = sent(client, job(scheduling={"timeout": "60s"}))
    exit_ = {"kind": "deadline", "sentence": "It ran for longer than 60 s."}
    set_job(reply["name"].rpartition("/")[2], state="expired", exit=exit_)
    (found,) = client.get(f"{PARENT}/customJobs", params={"filter": 'state="JOB_STATE_FAILED"'}).json()["customJobs"]
    assert found["error"] == {"code": 4, "message": "It ran for longer than 60 s."}


def test_errors_of_a_pool_name_the_requests_field(client: TestClient) -> None:
    worker = {"replicaCount": "2", "containerSpec": {"imageUri": "i", "env": [{"name": "1 B", "value": "x"}]}}
    machine = {**POOL["machineSpec"], "acceleratorCount": 1_000}
    message = refused(client, job({**POOL, "machineSpec": machine}, worker))
    where = "custom_job.job_spec.worker_pool_specs"
    assert f"{where}[0].machine_spec.accelerator_count: must be at most" in message
    assert f"{where}[1].container_spec.env[\"1 B\"]: '1 B' is not a variable name" in message
    assert ("roles" in message, "errors" in message) == (False, False)
    message = refused(client, job({"replicaCount": "1", "containerSpec": {"imageUri": "i"}}))
    assert message.startswith(f"{where}[0].container_spec.command: is missing")


def test_numbers_among_a_pipelines_arguments_are_text(client: TestClient) -> None:
    pool = {"container_spec": {"image_uri": "i", "command": ["train"], "args": ["--epochs", 10.0, "--lr", 0.1]}}
    body = {"displayName": "p", "trainingTaskDefinition": TASK, "trainingTaskInputs": {"worker_pool_specs": [pool]}}
    reply = sent(client, body, "trainingPipelines")
    words = ["--epochs", "10", "--lr", "0.1"]
    assert ours(client, reply)["roles"]["chief"]["args"] == words
    backing = client.get(f"/v1/{reply['trainingTaskMetadata']['backingCustomJob']}").json()
    assert backing["jobSpec"]["workerPoolSpecs"][0]["containerSpec"]["args"] == words
    pool["container_spec"]["args"] = ["--flag", True]
    assert "args[1]': this is text, not True" in refused(client, body, collection="trainingPipelines")


def test_cancel_and_delete(client: TestClient, start: Any, set_job: Any, end_attempt: Any) -> None:
    reply = sent(client, job())
    place = f"/v1/{reply['name']}"
    assert "cancel it first" in error_of(client.delete(place), 400, "FAILED_PRECONDITION")
    assert client.post(f"{place}:cancel", json={}).json() == {}
    assert client.get(place).json()["state"] == "JOB_STATE_CANCELLED"
    assert client.get(place).json()["error"]["code"] == 1
    operation = client.delete(place).json()
    assert operation["done"]
    assert operation["response"] == {"@type": "type.googleapis.com/google.protobuf.Empty"}
    error_of(client.get(place), 404, "NOT_FOUND")
    assert client.get(f"/ui/{operation['name']}").json() == operation
    error_of(client.post(f"{place}:pause"), 501, "UNIMPLEMENTED")


def test_a_deletion_waits_for_the_last_processes(
    client: TestClient, start: Any, set_job: Any, end_attempt: Any
) -> None:
    reply = sent(client, job())
    job_id = reply["name"].rpartition("/")[2]
    attempt = start(job_id)
    set_job(job_id, state="succeeded")
    # Who only looks begins nothing.
    assert "is not found" in error_of(client.get(f"/v1/{reply['name']}/operations/delete"), 404, "NOT_FOUND")
    assert client.get(f"/v1/{reply['name']}").status_code == 200
    operation = client.delete(f"/v1/{reply['name']}").json()
    assert not operation.get("done")
    assert not client.get(f"/ui/{operation['name']}").json().get("done")
    end_attempt(attempt)
    assert client.get(f"/ui/{operation['name']}").json()["done"]
    error_of(client.get(f"/v1/{reply['name']}/operations/other"), 404, "NOT_FOUND")


def test_lists_are_filtered_and_paged(client: TestClient, clock: Any) -> None:
    names = []
    for number in range(5):
        clock.advance(1)
        body = {**job(), "displayName": f"job {number}", "labels": {"n": str(number % 2)}}
        names.append(sent(client, body)["name"])
    other = client.post("/v1/projects/default/locations/europe-west4/customJobs", json=job()).json()["name"]

    def listed(parent: str = PARENT, **query: Any) -> list[str]:
        page = client.get(f"{parent}/customJobs", params=query)
        assert page.status_code == 200, page.text
        return [one["name"] for one in page.json().get("customJobs", [])]

    assert listed() == names[::-1]
    assert listed("/v1/projects/default/locations/-") == [other, *names[::-1]]
    assert listed(filter='display_name="job 3"') == [names[3]]
    assert listed(filter='displayName="job 3" OR display_name = "job 1"') == [names[3], names[1]]
    assert listed(filter='labels.n="1" AND state="JOB_STATE_QUEUED"') == [names[3], names[1]]
    assert listed(filter='state="JOB_STATE_RUNNING"') == []
    page = client.get(f"{PARENT}/customJobs", params={"pageSize": 1, "filter": "labels.n=1"}).json()
    assert [one["name"] for one in page["customJobs"]] == [names[3]]
    page = client.get(
        f"{PARENT}/customJobs", params={"pageSize": 1, "filter": "labels.n=1", "pageToken": page["nextPageToken"]}
    ).json()
    assert [one["name"] for one in page["customJobs"]] == [names[1]]
    first = client.get(f"{PARENT}/customJobs", params={"pageSize": 2}).json()
    second = client.get(f"{PARENT}/customJobs", params={"pageSize": 2, "pageToken": first["nextPageToken"]}).json()
    last = client.get(f"{PARENT}/customJobs", params={"pageSize": 2, "pageToken": second["nextPageToken"]}).json()
    assert "nextPageToken" not in last
    assert [one["name"] for page in (first, second, last) for one in page["customJobs"]] == names[::-1]
    error_of(client.get(f"{PARENT}/customJobs", params={"filter": "x ="}), 400, "INVALID_ARGUMENT")
    error_of(client.get(f"{PARENT}/customJobs", params={"pageToken": "x"}), 400, "INVALID_ARGUMENT")
    assert client.get(f"{PARENT}/trainingPipelines").json() == {}


# --- nothing is ignored ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("disk", "message"),
    [
        ({"bootDiskType": 5}, "disk_spec.boot_disk_type': this is text"),
        ({"bootDiskType": "tape"}, "disk_spec.boot_disk_type: is one of"),
        ({"bootDiskSizeGb": "lots"}, "disk_spec.boot_disk_size_gb': this is a whole number"),
        ({"bootDiskSizeGb": 10**6}, "disk_spec.boot_disk_size_gb: is from 100 to 64000, not 1000000"),
        ({"foo": 1}, 'Unknown name "foo"'),
    ],
)
def test_a_disk_that_there_is_none_of_is_refused(client: TestClient, disk: Any, message: str) -> None:
    assert message in refused(client, job({**POOL, "diskSpec": disk}))
    sent(client, job({**POOL, "diskSpec": {"bootDiskType": "hyperdisk-balanced"}}))


def test_unsupported_strategies_and_dashboards_are_refused(client: TestClient) -> None:
    assert "FLEX_START" in refused(client, job(scheduling={"strategy": 6}), status="UNIMPLEMENTED")
    assert "enable_dashboard_access" in refused(client, job(enableDashboardAccess=True), status="UNIMPLEMENTED")
    assert "enable_web_access" in refused(client, job(enableWebAccess="yes"))
    sent(client, job(enableWebAccess=True, enableDashboardAccess=False))


@pytest.mark.parametrize("name", ["readMask", "fields", "force", "key", "validateOnly"])
def test_unsupported_parameters_are_refused_by_name(client: TestClient, name: str) -> None:
    for place in ("customJobs", "models", "metadataStores", "tensorboards"):
        answer = client.get(f"{PARENT}/{place}?{name}=x")
        assert error_of(answer, 501, "UNIMPLEMENTED").startswith(f"{name}: ")


def test_unknown_parameters_are_refused(client: TestClient) -> None:
    assert 'Unknown name "pageSiez"' in error_of(client.get(f"{PARENT}/customJobs?pageSiez=1"), 400, "INVALID_ARGUMENT")
    answer = client.post(f"{PARENT}/customJobs?jobId=x", json=job())
    assert 'Unknown name "jobId"' in error_of(answer, 400, "INVALID_ARGUMENT")
    assert not client.get(f"{PARENT}/customJobs").json()
    assert "json" in error_of(client.get(f"{PARENT}/customJobs?$alt=proto"), 400, "INVALID_ARGUMENT")
    reply = client.get(
        f"{PARENT}/customJobs?$alt=json;enum-encoding=int&prettyPrint=false&pageSize=3&filter=&readMask="
    )
    assert reply.status_code == 200, reply.text


@pytest.mark.parametrize(
    "place", ["customJobs", "trainingPipelines", "hyperparameterTuningJobs", "batchPredictionJobs"]
)
@pytest.mark.parametrize("state", ["NOPE", "4", "RUNNING", "X*"])
def test_a_filter_names_only_states_that_there_are(client: TestClient, place: str, state: str) -> None:
    answer = client.get(f"{PARENT}/{place}", params={"filter": f'state="{state}"'})
    assert state in error_of(answer, 400, "INVALID_ARGUMENT")
    word = "PIPELINE_STATE" if place == "trainingPipelines" else "JOB_STATE"
    for good in (f"{word}_RUNNING", f"{word}_*", f"{word}_PAUSED"):
        assert client.get(f"{PARENT}/{place}", params={"filter": f'NOT state="{good}"'}).status_code == 200


def test_a_time_in_a_filter_needs_no_quotes(client: TestClient) -> None:
    name = sent(client, job())["name"]
    for text, found in (("create_time>2026-01-01T00:00:00Z", [name]), ("create_time<2026-01-01T00:00:00+01:00", [])):
        listed = client.get(f"{PARENT}/customJobs", params={"filter": f"{text} AND labels.team=x"}).json()
        assert [one["name"] for one in listed.get("customJobs", [])] == found


def test_models_and_endpoints_have_no_state(client: TestClient) -> None:
    for place in ("models", "endpoints"):
        answer = client.get(f"{PARENT}/{place}", params={"filter": 'state="READY"'})
        assert "there is no field 'state'" in error_of(answer, 400, "INVALID_ARGUMENT")


# --- in Google's words -----------------------------------------------------------------------------------------------


def test_errors_name_the_fields_that_the_client_sent(client: TestClient) -> None:
    message = refused(client, job(scheduling={"timeout": "300000000000s"}))
    assert "max_run_time" not in message
    assert "scheduling.timeout" in message
    for place in ("customJobs", "hyperparameterTuningJobs", "models", "endpoints"):
        message = error_of(client.get(f"{PARENT}/{place}?pageToken=zzz"), 400, "INVALID_ARGUMENT")
        assert "page_token" in message
        assert "cursor" not in message


@pytest.mark.parametrize("path", ["projects/p/locations", "projects/p", "nothing", "projects/p/jobs/x"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_other_paths_are_not_found_in_their_shape(client: TestClient, path: str, method: str) -> None:
    assert path in error_of(client.request(method, f"/v1/{path}"), 404, "NOT_FOUND")


def test_unsupported_requests_are_refused_with_method_and_path(client: TestClient) -> None:
    message = error_of(client.patch(f"{PARENT}/customJobs/x", json={}), 501, "UNIMPLEMENTED")
    assert message.startswith("PATCH customJobs/x is not served by this platform, though")
    message = error_of(client.get(f"{PARENT}/featurestores"), 501, "UNIMPLEMENTED")
    assert message.startswith("GET featurestores is not served by this platform; served are customJobs")


def test_a_running_job_names_the_page_of_every_replica_where_it_is_queried_to(
    client: TestClient, set_job: Any, settings: Settings
) -> None:
    def pool(replicas: int) -> dict[str, Any]:
        return {"containerSpec": {"imageUri": "i", "command": ["true"]}, "replicaCount": str(replicas)}

    reply = sent(client, job(pool(1), {}, pool(2), enableWebAccess=True))
    job_id = reply["name"].rpartition("/")[2]
    assert "webAccessUris" not in reply
    set_job(job_id, state="running")
    uris = client.get(f"/v1/{reply['name']}").json()["webAccessUris"]
    page = f"{settings.api_url}/jobs/{job_id}"
    assert uris == {"workerpool0-0": page, "workerpool2-0": page, "workerpool2-1": page}
    for flags in ({}, {"enableWebAccess": False}):
        reply = sent(client, job(pool(1), **flags))
        set_job(reply["name"].rpartition("/")[2], state="running")
        assert "webAccessUris" not in client.get(f"/v1/{reply['name']}").json()
