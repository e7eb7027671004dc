"""Every field of the real API's messages is served, ignored as what only the server says, or refused by its name.

The list is that of ``google-cloud-aiplatform`` 2.7.0 and 1.165.1; tests/frameworks compares it with the installed ones.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
from starlette.testclient import TestClient

from tests.unit.api_vertex.test_jobs import PARENT, TASK

FIELDS: Final[dict[str, list[str]]] = json.loads(Path(__file__).with_name("real_fields.json").read_text())


def _pool(reply: Any) -> Any:
    return {"displayName": "x", "jobSpec": {"workerPoolSpecs": [reply]}}


_PROGRAM = {"containerSpec": {"imageUri": "i"}, "replicaCount": 1}
_SOURCE = {"instancesFormat": "jsonl", "gcsSource": {"uris": ["gs://default/x"]}}
_SINK = {"predictionsFormat": "jsonl", "gcsDestination": {"outputUriPrefix": "gs://default/y"}}


def _search(reply: Any) -> Any:
    """``told``: a study's spec."""
    return {
        "displayName": "x", "maxTrialCount": 1, "parallelTrialCount": 1, "studySpec": reply,
        "trialJobSpec": {"workerPoolSpecs": [_PROGRAM]},
    }  # fmt: skip


def _parameter(reply: Any) -> Any:
    return _search({"metrics": [{"metricId": "m", "goal": 1}], "parameters": [reply]})


def _stopped(reply: Any) -> Any:
    float_one = {"parameterId": "p", "doubleValueSpec": {"maxValue": 1}}
    return _search({"metrics": [{"metricId": "m", "goal": 1}], "parameters": [float_one], **reply})


def _model(reply: Any) -> Any:
    return {"model": {"displayName": "x", "containerSpec": {"imageUri": "i"}, **reply}}


def _batch(reply: Any) -> Any:
    return {"displayName": "x", **reply}


# Messages that lie in others. Braces: what is made before.
NESTED: dict[str, tuple[str, Any]] = {
    "GcsDestination": (
        "customJobs",
        lambda reply: {
            "displayName": "x",
            "jobSpec": {"workerPoolSpecs": [_PROGRAM], "baseOutputDirectory": reply},
        },
    ),
    "EnvVar": (
        "customJobs",
        lambda reply: _pool({"replicaCount": 1, "containerSpec": {"imageUri": "i", "env": [reply]}}),
    ),
    "StudySpec.MetricSpec": ("hyperparameterTuningJobs", lambda reply: _search({"metrics": [reply]})),
    "StudySpec.ParameterSpec": ("hyperparameterTuningJobs", _parameter),
    **{
        f"StudySpec.ParameterSpec.{kind}ValueSpec": (
            "hyperparameterTuningJobs",
            lambda reply, kind=kind: _parameter({"parameterId": "p", f"{kind.lower()}ValueSpec": reply}),
        )
        for kind in ("Double", "Integer", "Categorical", "Discrete")
    },
    "StudySpec.ParameterSpec.ConditionalParameterSpec": (
        "hyperparameterTuningJobs",
        lambda reply: _parameter(
            {"parameterId": "p", "categoricalValueSpec": {"values": ["a"]}, "conditionalParameterSpecs": [reply]}
        ),
    ),
    **{
        f"StudySpec.{rule}AutomatedStoppingSpec": (
            "hyperparameterTuningJobs",
            lambda reply, field=field: _stopped({field: reply}),
        )
        for rule, field in (
            ("DecayCurve", "decayCurveStoppingSpec"),
            ("Median", "medianAutomatedStoppingSpec"),
            ("Convex", "convexAutomatedStoppingSpec"),
        )
    },
    "UploadModelRequest": ("models:upload", lambda reply: reply),
    "Port": ("models:upload", lambda reply: _model({"containerSpec": {"imageUri": "i", "ports": [reply]}})),
    "PredictSchemata": ("models:upload", lambda reply: _model({"predictSchemata": reply})),
    "DeployModelRequest": ("endpoints/x:deployModel", lambda reply: reply),
    "UndeployModelRequest": ("endpoints/x:undeployModel", lambda reply: reply),
    "DeployedModel": ("endpoints/x:deployModel", lambda reply: {"deployedModel": reply}),
    "DedicatedResources": (
        "endpoints/x:deployModel",
        lambda reply: {"deployedModel": {"model": "m", "dedicatedResources": reply}},
    ),
    "BatchPredictionJob.InputConfig": ("batchPredictionJobs", lambda reply: _batch({"inputConfig": reply})),
    "GcsSource": ("batchPredictionJobs", lambda reply: _batch({"inputConfig": {**_SOURCE, "gcsSource": reply}})),
    "BatchPredictionJob.InstanceConfig": (
        "batchPredictionJobs",
        lambda reply: _batch({"inputConfig": _SOURCE, "instanceConfig": reply}),
    ),
    "BatchPredictionJob.OutputConfig": (
        "batchPredictionJobs",
        lambda reply: _batch({"inputConfig": _SOURCE, "outputConfig": reply}),
    ),
    "BatchDedicatedResources": ("batchPredictionJobs", lambda reply: _batch({"dedicatedResources": reply})),
    "ManualBatchTuningParameters": (
        "batchPredictionJobs",
        lambda reply: _batch({"inputConfig": _SOURCE, "outputConfig": _SINK, "manualBatchTuningParameters": reply}),
    ),
    "TensorboardRun": ("tensorboards/{board}/experiments/e/runs", lambda reply: reply),
    "TensorboardTimeSeries": (
        "tensorboards/{board}/experiments/e/runs/r/timeSeries",
        lambda reply: {"valueType": 1, **reply},
    ),
    "TimeSeriesData": (
        "tensorboards/{board}/experiments/e/runs/r:write",
        lambda reply: {"timeSeriesData": [reply]},
    ),
    "TimeSeriesDataPoint": (
        "tensorboards/{board}/experiments/e/runs/r:write",
        lambda reply: {"timeSeriesData": [{"tensorboardTimeSeriesId": "s", "values": [reply]}]},
    ),
}
# Where each message lies: the collection, and the request's body with the message in it.
PLACES: Final[dict[str, tuple[str, Any]]] = {
    "CustomJob": ("customJobs", lambda reply: reply),
    "CustomJobSpec": ("customJobs", lambda reply: {"displayName": "x", "jobSpec": reply}),
    "WorkerPoolSpec": ("customJobs", _pool),
    "DiskSpec": ("customJobs", lambda reply: _pool({"replicaCount": 1, "diskSpec": reply})),
    "Scheduling": (
        "customJobs",
        lambda reply: {
            "displayName": "x",
            "jobSpec": {
                "workerPoolSpecs": [{"containerSpec": {"imageUri": "i"}, "replicaCount": 1}],
                "scheduling": reply,
            },
        },
    ),
    "ContainerSpec": ("customJobs", lambda reply: _pool({"replicaCount": 1, "containerSpec": reply})),
    "PythonPackageSpec": ("customJobs", lambda reply: _pool({"replicaCount": 1, "pythonPackageSpec": reply})),
    "MachineSpec": (
        "customJobs",
        lambda reply: _pool({"replicaCount": 1, "containerSpec": {"imageUri": "i"}, "machineSpec": reply}),
    ),
    "TrainingPipeline": ("trainingPipelines", lambda reply: reply),
    "HyperparameterTuningJob": ("hyperparameterTuningJobs", lambda reply: reply),
    "StudySpec": ("hyperparameterTuningJobs", _search),
    "Model": ("models:upload", lambda reply: {"model": reply}),
    "ModelContainerSpec": ("models:upload", lambda reply: {"model": {"displayName": "x", "containerSpec": reply}}),
    "Endpoint": ("endpoints", lambda reply: reply),
    "BatchPredictionJob": ("batchPredictionJobs", lambda reply: reply),
    "MetadataStore": ("metadataStores", lambda reply: reply),
    "Context": ("metadataStores/default/contexts", lambda reply: reply),
    "Artifact": ("metadataStores/default/artifacts", lambda reply: reply),
    "Execution": ("metadataStores/default/executions", lambda reply: reply),
    "Tensorboard": ("tensorboards", lambda reply: reply),
    "TensorboardExperiment": ("tensorboards/{board}/experiments", lambda reply: reply),
    **NESTED,
}


@pytest.mark.parametrize("message", sorted(FIELDS))
def test_no_field_of_the_real_api_is_called_unknown(client: TestClient, message: str) -> None:
    collection, body = PLACES[message]
    if collection.startswith("metadataStores/"):
        client.post(f"{PARENT}/metadataStores?metadataStoreId=default", json={})
    if "{board}" in collection:
        made = client.post(f"{PARENT}/tensorboards", json={"displayName": "x"}).json()
        board = made["response"]["name"]
        for path in ("experiments?tensorboardExperimentId=e", "experiments/e/runs?tensorboardRunId=r"):
            client.post(f"/v1/{board}/{path}", json={"displayName": "x"})
        series = {"displayName": "x", "valueType": 1}
        client.post(f"/v1/{board}/experiments/e/runs/r/timeSeries?tensorboardTimeSeriesId=s", json=series)
        collection = collection.format(board=board.rpartition("/")[2])
    for name in FIELDS[message]:
        answer = client.post(f"{PARENT}/{collection}", json=body({name: "x"}))
        assert "Cannot find field" not in answer.text, f"{message}.{name}: {answer.text}"
    # The message is read at all: what nobody knows is told.
    answer = client.post(f"{PARENT}/{collection}", json=body({"nobody_knows": "x"}))
    assert "nobody_knows" in answer.json()["error"]["message"], answer.text


@pytest.mark.parametrize("name", ["checkpoints", "default_checkpoint_id"])
def test_checkpoints_of_models_are_refused_by_name(client: TestClient, name: str) -> None:
    model = {"displayName": "x", "containerSpec": {"imageUri": "i"}, name: "x"}
    for collection, body in (
        ("models:upload", {"model": model}),
        ("trainingPipelines", {"displayName": "p", "trainingTaskDefinition": TASK, "modelToUpload": model}),
    ):
        answer = client.post(f"{PARENT}/{collection}", json=body)
        assert answer.status_code == 501, answer.text
        assert f"{name}: checkpoints of a model are" in answer.json()["error"]["message"]
