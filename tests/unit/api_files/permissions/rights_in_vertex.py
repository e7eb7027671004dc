"""Vertex AI's routes of jobs and models in the table of who may do what."""

from __future__ import annotations

from typing import Any

from tests.unit.api_files.permissions.rights import NOT_IN, NOT_SERVED, PEOPLE, VERTEX_MEMBER, VERTEX_READER, Case, case
from tests.unit.api_files.permissions.rights_in_vertex_records import RECORDS
from tests.unit.api_files.permissions.rights_in_vertex_serving import SERVING

_PARENT, _LOCATED = "/v1/projects/{project}/locations/{location}", "/v1/projects/vision/locations/us-central1"
_POOL = {"replicaCount": "1", "containerSpec": {"imageUri": "i", "command": ["true"]}}
_TASK = "gs://google-cloud-aiplatform/schema/trainingjob/definition/custom_task_1.0.0.yaml"
_CREATED: dict[str, dict[str, Any]] = {
    "customJobs": {"displayName": "x", "jobSpec": {"workerPoolSpecs": [_POOL]}},
    "trainingPipelines": {
        "displayName": "x",
        "trainingTaskDefinition": _TASK,
        "trainingTaskInputs": {"workerPoolSpecs": [_POOL]},
    },
    "hyperparameterTuningJobs": {
        "displayName": "x",
        "maxTrialCount": 2,
        "parallelTrialCount": 1,
        "studySpec": {
            "metrics": [{"metricId": "loss", "goal": "MINIMIZE"}],
            "parameters": [{"parameterId": "x", "doubleValueSpec": {"minValue": 0, "maxValue": 1}}],
        },
        "trialJobSpec": {"workerPoolSpecs": [_POOL]},
    },
}


def _of_collection(name: str, live: str, ended: str) -> dict[str, Case]:
    one, located = f"{_PARENT}/{name}/{{resource}}", f"{_LOCATED}/{name}"
    return {
        f"POST {_PARENT}/{name}": case(VERTEX_MEMBER, located, json=_CREATED[name]),
        f"GET {_PARENT}/{name}": case(VERTEX_READER, located),
        f"GET {one}": case(VERTEX_READER, f"{located}/{live}"),
        f"POST {one}:{{action}}": case(VERTEX_MEMBER, f"{located}/{live}:cancel"),
        f"DELETE {one}": case(VERTEX_MEMBER, f"{located}/{ended}"),
    }


# A model is made by a training pipeline, and nothing of it is cancelled.
_NO_VERB = {**NOT_SERVED, "reader": 403}
_ONE_MODEL, _DIGITS = f"{_PARENT}/models/{{resource}}", f"{_LOCATED}/models/model-digits"
MODELS = {
    f"POST {_PARENT}/models": case(_NO_VERB, f"{_LOCATED}/models", json={}),
    f"GET {_PARENT}/models": case(VERTEX_READER, f"{_LOCATED}/models"),
    f"GET {_ONE_MODEL}": case(VERTEX_READER, _DIGITS),
    f"GET {_ONE_MODEL}:listVersions": case(VERTEX_READER, f"{_DIGITS}:listVersions"),
    f"POST {_ONE_MODEL}:mergeVersionAliases": case(
        VERTEX_MEMBER, f"{_DIGITS}@1:mergeVersionAliases", json={"versionAliases": ["best"]}
    ),
    f"PATCH {_ONE_MODEL}": case(VERTEX_MEMBER, f"{_DIGITS}?updateMask=displayName", json={"displayName": "y"}),
    f"DELETE {_ONE_MODEL}:deleteVersion": case(VERTEX_MEMBER, f"{_DIGITS}@1:deleteVersion"),
    f"POST {_ONE_MODEL}:{{action}}": case(_NO_VERB, f"{_DIGITS}:cancel"),
    f"DELETE {_ONE_MODEL}": case(VERTEX_MEMBER, _DIGITS),
}
_OPERATION, _UPLOADED = "operations/{operation}", "models/model-served/operations/upload-1"
_MADE = "metadataStores/default/operations/create"
_WAITS = {**VERTEX_READER, "reader": 403}
_FOUND = {"GET": VERTEX_READER, ":wait": _WAITS, ":cancel": VERTEX_MEMBER, "DELETE": VERTEX_MEMBER}
OPERATIONS: dict[str, Case] = {
    f"{method} {prefix}{_PARENT[3:]}/{path}{_OPERATION}{action}": case(
        # Of those that may ask nobody knows an operation without a resource.
        {**dict.fromkeys(PEOPLE, 404), **_FOUND[action or method]} if not path else _FOUND[action or method],
        f"{prefix}{_LOCATED[3:]}/{(_MADE if method == 'GET' else _UPLOADED) if path else 'operations/1'}{action}",
        **({"params": {"timeout": "0.1s"}} if action == ":wait" else {}),
    )
    for prefix in ("/v1", "/ui")
    for method, action in (("GET", ""), ("POST", ":cancel"), ("POST", ":wait"), ("DELETE", ""))
    for path in ("{resource:path}/", "")
} | {
    f"GET {prefix}{_PARENT[3:]}/{path}": case(VERTEX_READER, f"{prefix}{_LOCATED[3:]}/{place}")
    for prefix in ("/v1", "/ui")
    for path, place in (
        ("operations", "operations"),
        ("{collection}/{resource}/operations", "models/model-served/operations"),
    )
}
VERTEX: dict[str, Case] = {
    **MODELS,
    **OPERATIONS,
    **SERVING,
    **RECORDS,
    **_of_collection("customJobs", "job-1", "job-done"),
    **_of_collection("trainingPipelines", "job-paused", "job-over"),
    **_of_collection("hyperparameterTuningJobs", "study-tuning", "study-tuned"),
    **{
        f"{method} /v1beta1/{{rest:path}}": case(NOT_SERVED, _LOCATED.replace("v1", "v1beta1", 1))
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE")
    },
    **{
        f"{method} /v1/{{rest:path}}": case({**dict.fromkeys(PEOPLE, 404), **NOT_IN}, "/v1/projects/default/locations")
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE")
    },
    **{
        f"{method} {_PARENT}/{{rest:path}}": case(NOT_SERVED, f"{_LOCATED}/pipelineJobs")
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE")
    },
    **{
        f"{method} {_PARENT.replace('/v1', '/ui', 1)}/{{rest:path}}": case(
            NOT_SERVED, f"/ui{_LOCATED[3:]}/pipelineJobs/1"
        )
        for method in ("GET", "POST", "DELETE")
    },
}
