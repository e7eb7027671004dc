"""Jobs of Vertex AI's clients with an experiment or a TensorBoard."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.unit.api_vertex.test_jobs import PARENT, POOL, TASK, error_of, job, ours, refused, sent

HOME = PARENT.removeprefix("/v1/")
CONTEXTS = f"{HOME}/metadataStores/default/contexts"


@pytest.fixture
def experiment(client: TestClient) -> str:
    client.post(f"{PARENT}/metadataStores?metadataStoreId=default", json={})
    for name, schema in (("e", "system.Experiment"), ("e-r", "system.ExperimentRun")):
        client.post(f"/v1/{CONTEXTS}?contextId={name}", json={"displayName": name, "schemaTitle": schema})
    return f"{CONTEXTS}/e"


@pytest.fixture
def board(client: TestClient) -> str:
    return str(client.post(f"{PARENT}/tensorboards", json={"displayName": "b"}).json()["response"]["name"])


def test_a_job_gets_its_experiment_and_run(client: TestClient, experiment: str) -> None:
    reply = sent(client, job(experiment=experiment, experimentRun=f"{CONTEXTS}/e-r", serviceAccount="me@example.org"))
    assert reply["jobSpec"]["experimentRun"] == f"{CONTEXTS}/e-r"
    env = ours(client, reply)["env"]
    assert (env["AIP_EXPERIMENT_NAME"], env["AIP_EXPERIMENT_RUN_NAME"]) == (experiment, f"{CONTEXTS}/e-r")
    assert env["VERTEX_AI_SDK_SERVER"] == "trainmaster"
    assert "CLOUD_ML_PROJECT_ID" not in env


def test_without_a_run_the_job_gets_one_of_its_own(client: TestClient, experiment: str) -> None:
    reply = sent(client, job(experiment=experiment))
    job_id = reply["name"].rpartition("/")[2]
    assert reply["jobSpec"]["experimentRun"] == f"{CONTEXTS}/e-{job_id}"
    run = client.get(f"/v1/{CONTEXTS}/e-{job_id}").json()
    assert (run["displayName"], run["schemaTitle"], run["parentContexts"]) == (
        job_id,
        "system.ExperimentRun",
        [experiment],
    )
    assert run["metadata"] == {"_params": {}, "_metrics": {}, "_state": "RUNNING"}
    assert "AIP_EXPERIMENT_RUN_NAME" not in ours(client, reply)["env"]  # each job's is told by its id
    pipeline = {
        "displayName": "p", "trainingTaskDefinition": TASK,
        "trainingTaskInputs": {"worker_pool_specs": [POOL], "experiment": experiment},
    }  # fmt: skip
    made = sent(client, pipeline, "trainingPipelines")
    assert client.get(f"/v1/{CONTEXTS}/e-{made['name'].rpartition('/')[2]}").status_code == 200


def test_a_job_with_a_board_has_an_experiment_there(client: TestClient, board: str) -> None:
    reply = sent(client, job(tensorboard=board))
    assert ours(client, reply)["env"]["AIP_TENSORBOARD_RESOURCE_NAME"] == board
    made = client.get(f"/v1/{board}/experiments/{reply['name'].rpartition('/')[2]}").json()
    assert (made["displayName"], made["source"]) == ("My job", reply["name"])
    # The SDK lists its runs when the job has ended.
    assert client.get(f"/v1/{made['name']}/runs").json() == {}


def test_an_unknown_experiment_is_refused_at_creation(client: TestClient, experiment: str, board: str) -> None:
    def words(status: str = "INVALID_ARGUMENT", **spec: Any) -> str:
        return refused(client, job(**spec), status=status)

    assert "is not found" in words("NOT_FOUND", experiment=f"{CONTEXTS}/none")
    assert "is not an experiment" in words("NOT_FOUND", experiment=f"{CONTEXTS}/e-r")
    assert "is not a run of one" in words("NOT_FOUND", experiment=experiment, experimentRun=experiment)
    assert "needs job_spec.experiment" in words(experimentRun=f"{CONTEXTS}/e-r")
    assert "is not the whole name of an experiment" in words(experiment="e")
    assert "is not the whole name of a TensorBoard" in words(tensorboard=experiment)
    assert "another project or location" in words(tensorboard=board.replace("us-central1", "europe-west4"))
    assert "another project or location" in words(tensorboard=board.replace("default", "theirs"))
    assert "service accounts are not served" in words("UNIMPLEMENTED", serviceAccount="me@example.org")
    tuning = {
        "displayName": "t", "maxTrialCount": 1, "parallelTrialCount": 1,
        "studySpec": {
            "metrics": [{"metricId": "acc", "goal": 1}],
            "parameters": [{"parameterId": "lr", "doubleValueSpec": {"minValue": 0.1, "maxValue": 1}, "scaleType": 1}],
        },
        "trialJobSpec": job(experiment=experiment)["jobSpec"],
    }  # fmt: skip
    answer = client.post(f"{PARENT}/hyperparameterTuningJobs", json=tuning)
    assert "start_run itself" in error_of(answer, 501, "UNIMPLEMENTED")
    assert client.get(f"{PARENT}/customJobs").json() == {}
