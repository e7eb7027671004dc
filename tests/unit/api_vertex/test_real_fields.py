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


def _pool(told: Any) -> Any:
    return {"displayName": "x", "jobSpec": {"workerPoolSpecs": [told]}}


_PROGRAM = {"containerSpec": {"imageUri": "i"}, "replicaCount": 1}
_SOURCE = {"instancesFormat": "jsonl", "gcsSource": {"uris": ["gs://default/x"]}}
_SINK = {"predictionsFormat": "jsonl", "gcsDestination": {"outputUriPrefix": "gs://default/y"}}


def _search(told: Any) -> Any:
    """``told``: a study's spec."""
    return {
        "displayName": "x", "maxTrialCount": 1, "parallelTrialCount": 1, "studySpec": told,
        "trialJobSpec": {"workerPoolSpecs": [_PROGRAM]},
    }  # fmt: skip


def _parameter(told: Any) -> Any:
    return _search({"metrics": [{"metricId": "m", "goal": 1}], "parameters": [told]})


def _stopped(told: Any) -> Any:
    float_one = {"parameterId": "p", "doubleValueSpec": {"maxValue": 1}}
    return _search({"metrics": [{"metricId": "m", "goal": 1}], "parameters": [float_one], **told})


def _model(told: Any) -> Any:
    return {"model": {"displayName": "x", "containerSpec": {"imageUri": "i"}, **told}}


def _batch(told: Any) -> Any:
    return {"displayName": "x", **told}


# Messages that lie in others. Braces: what is made before.
NESTED: dict[str, tuple[str, Any]] = {
    "GcsDestination": (
        "customJobs",
        lambda told: {"displayName": "x", "jobSpec": {"workerPoolSpecs": [_PROGRAM], "baseOutputDirectory": told}},
    ),
    "EnvVar": (
        "customJobs",
        lambda told: _pool({"replicaCount": 1, "containerSpec": {"imageUri": "i", "env": [told]}}),
    ),
    "StudySpec.MetricSpec": ("hyperparameterTuningJobs", lambda told: _search({"metrics": [told]})),
    "StudySpec.ParameterSpec": ("hyperparameterTuningJobs", _parameter),
    **{
        f"StudySpec.ParameterSpec.{kind}ValueSpec": (
            "hyperparameterTuningJobs",
            lambda told, kind=kind: _parameter({"parameterId": "p", f"{kind.lower()}ValueSpec": told}),
        )
        for kind in ("Double", "Integer", "Categorical", "Discrete")
    },
    "StudySpec.ParameterSpec.ConditionalParameterSpec": (
        "hyperparameterTuningJobs",
        lambda told: _parameter(
            {"parameterId": "p", "categoricalValueSpec": {"values": ["a"]}, "conditionalParameterSpecs": [told]}
        ),
    ),
    **{
        f"StudySpec.{rule}AutomatedStoppingSpec": (
            "hyperparameterTuningJobs",
            lambda told, field=field: _stopped({field: told}),
        )
        for rule, field in (
            ("DecayCurve", "decayCurveStoppingSpec"),
            ("Median", "medianAutomatedStoppingSpec"),
            ("Convex", "convexAutomatedStoppingSpec"),
        )
    },
    "UploadModelRequest": ("models:upload", lambda told: told),
    "Port": ("models:upload", lambda told: _model({"containerSpec": {"imageUri": "i", "ports": [told]}})),
    "PredictSchemata": ("models:upload", lambda told: _model({"predictSchemata": told})),
    "DeployModelRequest": ("endpoints/x:deployModel", lambda told: told),
    "UndeployModelRequest": ("endpoints/x:undeployModel", lambda told: told),
    "DeployedModel": ("endpoints/x:deployModel", lambda told: {"deployedModel": told}),
    "DedicatedResources": (
        "endpoints/x:deployModel",
        lambda told: {"deployedModel": {"model": "m", "dedicatedResources": told}},
    ),
    "BatchPredictionJob.InputConfig": ("batchPredictionJobs", lambda told: _batch({"inputConfig": told})),
    "GcsSource": ("batchPredictionJobs", lambda told: _batch({"inputConfig": {**_SOURCE, "gcsSource": told}})),
    "BatchPredictionJob.InstanceConfig": (
        "batchPredictionJobs",
        lambda told: _batch({"inputConfig": _SOURCE, "instanceConfig": told}),
    ),
    "BatchPredictionJob.OutputConfig": (
        "batchPredictionJobs",
        lambda told: _batch({"inputConfig": _SOURCE, "outputConfig": told}),
    ),
    "BatchDedicatedResources": ("batchPredictionJobs", lambda told: _batch({"dedicatedResources": told})),
    "ManualBatchTuningParameters": (
        "batchPredictionJobs",
        lambda told: _batch({"inputConfig": _SOURCE, "outputConfig": _SINK, "manualBatchTuningParameters": told}),
    ),
    "TensorboardRun": ("tensorboards/{board}/experiments/e/runs", lambda told: told),
    "TensorboardTimeSeries": (
        "tensorboards/{board}/experiments/e/runs/r/timeSeries",
        lambda told: {"valueType": 1, **told},
    ),
    "TimeSeriesData": ("tensorboards/{board}/experiments/e/runs/r:write", lambda told: {"timeSeriesData": [told]}),
    "TimeSeriesDataPoint": (
        "tensorboards/{board}/experiments/e/runs/r:write",
        lambda told: {"timeSeriesData": [{"tensorboardTimeSeriesId": "s", "values": [told]}]},
    ),
}
# Where each message lies: the collection, and the request's body with the message in it.
PLACES: Final[dict[str, tuple[str, Any]]] = {
    "CustomJob": ("customJobs", lambda told: told),
    "CustomJobSpec": ("customJobs", lambda told: {"displayName": "x", "jobSpec": told}),
    "WorkerPoolSpec": ("customJobs", _pool),
    "DiskSpec": ("customJobs", lambda told: _pool({"replicaCount": 1, "diskSpec": told})),
    "Scheduling": (
        "customJobs",
        lambda told: {
            "displayName": "x",
            "jobSpec": {
                "workerPoolSpecs": [{"containerSpec": {"imageUri": "i"}, "replicaCount": 1}],
                "scheduling": told,
            },
        },
    ),
    "ContainerSpec": ("customJobs", lambda told: _pool({"replicaCount": 1, "containerSpec": told})),
    "PythonPackageSpec": ("customJobs", lambda told: _pool({"replicaCount": 1, "pythonPackageSpec": told})),
    "MachineSpec": (
        "customJobs",
        lambda told: _pool({"replicaCount": 1, "containerSpec": {"imageUri": "i"}, "machineSpec": told}),
    ),
    "TrainingPipeline": ("trainingPipelines", lambda told: told),
    "HyperparameterTuningJob": ("hyperparameterTuningJobs", lambda told: told),
    "StudySpec": ("hyperparameterTuningJobs", _search),
    "Model": ("models:upload", lambda told: {"model": told}),
    "ModelContainerSpec": ("models:upload", lambda told: {"model": {"displayName": "x", "containerSpec": told}}),
    "Endpoint": ("endpoints", lambda told: told),
    "BatchPredictionJob": ("batchPredictionJobs", lambda told: told),
    "MetadataStore": ("metadataStores", lambda told: told),
    "Context": ("metadataStores/default/contexts", lambda told: told),
    "Artifact": ("metadataStores/default/artifacts", lambda told: told),
    "Execution": ("metadataStores/default/executions", lambda told: told),
    "Tensorboard": ("tensorboards", lambda told: told),
    "TensorboardExperiment": ("tensorboards/{board}/experiments", lambda told: told),
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
