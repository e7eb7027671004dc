"""Who may do what: every route of the application, every kind of caller. A route that is not in the table fails."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import Engine
from sqlalchemy.orm import Session
from starlette.testclient import TestClient
from trainmaster.studies import parse_study

from api import routers
from api.main import create_app
from api.pages.routes import PLACES
from core.bell import TOPIC_FORECAST, NullBell
from core.db.engine import SessionFactory, make_engine, make_sessions, unit_of_work
from core.db.repositories import questions
from core.db.repositories.metrics import NewObject, StreamKey, add_metrics
from core.db.repositories.questions import Kind
from core.db.tables import (
    Base,
    BookingRow,
    Deployment,
    DeploymentRevision,
    Endpoint,
    MlflowModel,
    MlflowRegistered,
    MlflowRun,
    MlflowVersion,
    Model,
    ModelAlias,
    ModelFile,
    ModelVersion,
    Node,
    Secret,
    Study,
    Trial,
    VertexResource,
)
from core.settings import Settings

Stage = tuple[Any, Callable[[], None]]

# Everybody who may come. `reader`: the member's read-only token. `plain`: the platform admin's token without the
# scope admin, so a user without projects. `expired`: the member's token of yesterday.
PEOPLE = ("anonymous", "attempt", "expired", "stranger", "plain", "reader", "viewer", "member", "owner", "root")

DATA = gzip.compress(b"code", mtime=0)
DIGEST = "sha256:" + hashlib.sha256(DATA).hexdigest()

# What each gets: ok is 2xx (and the redirects of pages), anything else a status.
OK = 0
_OUT = {"anonymous": 401, "attempt": 401, "expired": 401}
OPEN: Mapping[str, int] = {}
ANY_READER = _OUT
ANY_WRITER = {**_OUT, "reader": 403}
PLATFORM_ADMIN = {**_OUT, **dict.fromkeys(("stranger", "plain", "reader", "viewer", "member", "owner"), 403)}
VIEWER = {**_OUT, "stranger": 404, "plain": 404}
MEMBER = {**VIEWER, "reader": 403, "viewer": 403}
PROJECT_ADMIN = {**MEMBER, "member": 403}
ATTEMPT = {**dict.fromkeys(PEOPLE, 401), "attempt": OK}
# MLflow's: a job's own script reads and writes what is its job's, users read what is their projects'.
RUN_READER = {"anonymous": 401, "expired": 401, "stranger": 404, "plain": 404}
RUN_WRITER = {**dict.fromkeys(PEOPLE, 403), "anonymous": 401, "expired": 401, "attempt": OK}
ANY_RUN_READER = {"anonymous": 401, "expired": 401}


@dataclass(frozen=True)
class Case:
    """One route with a request that works for whoever may make it, and the refusals of the others."""

    refused: Mapping[str, int]
    path: str = ""  # unstated: the route's own, filled in
    more: Mapping[str, Any] = field(default_factory=dict)


def case(refused: Mapping[str, int], path: str = "", **more: Any) -> Case:
    return Case(refused, path, more)


CHECKPOINT = {"path": "checkpoints/step-1.safetensors"}
SPEC = {"name": "digits", "project": "vision", "command": "true"}
_ENDPOINT = "* /api/v1/projects/{project}/endpoints/{endpoint}"
STUDY = {
    "name": "search", "project": "vision", "parameters": {"x": {"type": "float", "min": 0, "max": 1}}, "metric": "loss",
    "goal": "minimize", "budget": {"trials": 5, "parallel": 3},
}  # fmt: skip
REPORT = {"role": "worker", "index": 0, "items": [{"seq": 1, "at": "2026-11-21T07:00:00Z", "kind": "heartbeat"}]}

_API, _FILES = "/mlflow/api/2.0/mlflow", "/mlflow/api/2.0/mlflow-artifacts/artifacts"
_OF_RUN = {"run_id": "attempt-1"}
_METRIC = {**_OF_RUN, "key": "loss", "value": 1, "timestamp": 1}
_MODEL = f"{_API}/logged-models/m-1"
MLFLOW: dict[str, Case] = {
    f"GET {_API}/experiments/get-by-name": case(RUN_READER, params={"experiment_name": "vision"}),
    f"GET {_API}/experiments/get": case(RUN_READER, params={"experiment_id": "project-vision"}),
    f"POST {_API}/experiments/create": case(RUN_WRITER, json={"name": "x"}),
    f"POST {_API}/experiments/search": case(ANY_RUN_READER, json={}),
    f"GET {_API}/experiments/search": case(ANY_RUN_READER),
    f"POST {_API}/experiments/set-experiment-tag": case({**RUN_WRITER, "attempt": 403}, json={}),
    f"POST {_API}/runs/create": case(RUN_WRITER, json={}),
    f"GET {_API}/runs/get": case(RUN_READER, params=_OF_RUN),
    f"POST {_API}/runs/update": case(RUN_WRITER, json=_OF_RUN),
    f"POST {_API}/runs/delete": case(RUN_WRITER, json={"run_id": "run-1"}),
    f"POST {_API}/runs/restore": case(RUN_WRITER, json={"run_id": "run-1"}),
    f"POST {_API}/runs/search": case(ANY_RUN_READER, json={"experiment_ids": ["project-vision"]}),
    f"POST {_API}/runs/log-metric": case(RUN_WRITER, json=_METRIC),
    f"POST {_API}/runs/log-parameter": case(RUN_WRITER, json={**_OF_RUN, "key": "a", "value": "b"}),
    f"POST {_API}/runs/set-tag": case(RUN_WRITER, json={**_OF_RUN, "key": "a", "value": "b"}),
    f"POST {_API}/runs/log-batch": case(RUN_WRITER, json=_OF_RUN),
    f"POST {_API}/runs/delete-tag": case(RUN_WRITER, json={"run_id": "run-1", "key": "a"}),
    f"POST {_API}/runs/log-inputs": case(RUN_WRITER, json=_OF_RUN),
    f"POST {_API}/runs/outputs": case(RUN_WRITER, json=_OF_RUN),
    f"POST {_API}/runs/log-model": case(RUN_WRITER, json={**_OF_RUN, "model_json": "{}"}),
    f"GET {_API}/metrics/get-history": case(RUN_READER, params={**_OF_RUN, "metric_key": "loss"}),
    **{
        f"GET {path}/metrics/get-history-bulk": case(RUN_READER, params={**_OF_RUN, "metric_key": "loss"})
        for path in (_API, "/mlflow/ajax-api/2.0/mlflow")
    },
    f"POST {_API}/logged-models": case(RUN_WRITER, json={}),
    f"POST {_API}/logged-models/search": case(ANY_RUN_READER, json={"experiment_ids": ["project-vision"]}),
    f"GET {_API}/logged-models/{{model_id}}": case(RUN_READER, _MODEL),
    f"PATCH {_API}/logged-models/{{model_id}}": case(RUN_WRITER, _MODEL, json={"status": 2}),
    f"POST {_API}/logged-models/{{model_id}}/params": case(RUN_WRITER, f"{_MODEL}/params", json={}),
    f"PATCH {_API}/logged-models/{{model_id}}/tags": case(RUN_WRITER, f"{_MODEL}/tags", json={}),
    f"DELETE {_API}/logged-models/{{model_id}}/tags/{{key:path}}": case(RUN_WRITER, f"{_MODEL}/tags/a"),
    f"POST {_API}/registered-models/create": case(RUN_WRITER, json={"name": "new"}),
    f"GET {_API}/registered-models/get": case(RUN_READER, params={"name": "known"}),
    f"GET {_API}/registered-models/search": case(ANY_RUN_READER),
    f"POST {_API}/model-versions/create": case(RUN_WRITER, json={"name": "known", "source": "models:/m-1"}),
    f"GET {_API}/model-versions/get": case(RUN_READER, params={"name": "known", "version": "1"}),
    f"GET {_API}/model-versions/get-download-uri": case(RUN_READER, params={"name": "known", "version": "1"}),
    f"GET {_API}/model-versions/search": case(ANY_RUN_READER),
    f"GET {_API}/artifacts/list": case(RUN_READER, params=_OF_RUN),
    "GET /mlflow/": case(OPEN),  # to the platform's own page
    f"GET {_FILES}": case(RUN_READER, params={"path": "runs/attempt-1"}),
    f"GET {_FILES}/{{path:path}}": case(RUN_READER, f"{_FILES}/runs/attempt-1/plot.png"),
    f"PUT {_FILES}/{{path:path}}": case(RUN_WRITER, f"{_FILES}/runs/attempt-1/new.png", content=b"x"),
    **{
        f"{method} /mlflow/{{rest:path}}": case(dict.fromkeys(PEOPLE, 404), "/mlflow/api/2.0/mlflow/traces")
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE")
    },
}

# Vertex AI's and Cloud Storage's, whose clients would try to refresh a token that is answered with 401.
_NOT_IN = {"anonymous": 403, "attempt": 403, "expired": 403}
VERTEX_READER = {**_NOT_IN, "stranger": 403, "plain": 403}
VERTEX_MEMBER = {**VERTEX_READER, "reader": 403, "viewer": 403}
BUCKET_READER = {**_NOT_IN, "stranger": 404, "plain": 404}
BUCKET_WRITER = {**BUCKET_READER, "reader": 403, "viewer": 403}
NOT_SERVED = {**dict.fromkeys(PEOPLE, 501), **_NOT_IN}
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


def _of_collection(name: str, live: str, ended: str, gone: tuple[str, dict[str, int]]) -> dict[str, Case]:
    one, located = f"{_PARENT}/{name}/{{resource}}", f"{_LOCATED}/{name}"
    operation = f"{one}/operations/{{operation}}"
    deleted, looks = gone
    return {
        f"POST {_PARENT}/{name}": case(VERTEX_MEMBER, located, json=_CREATED[name]),
        f"GET {_PARENT}/{name}": case(VERTEX_READER, located),
        f"GET {one}": case(VERTEX_READER, f"{located}/{live}"),
        f"POST {one}:{{action}}": case(VERTEX_MEMBER, f"{located}/{live}:cancel"),
        f"DELETE {one}": case(VERTEX_MEMBER, f"{located}/{ended}"),
        f"GET {operation}": case(looks, f"{located}/{deleted}/operations/delete"),
        f"GET {operation.replace('/v1', '/ui', 1)}": case(
            looks, f"{located}/{deleted}/operations/delete".replace("/v1", "/ui", 1)
        ),
    }


# A model is made by a training pipeline, and nothing of it is cancelled.
_NO_VERB = {**NOT_SERVED, "reader": 403}
_ONE_MODEL, _DIGITS = f"{_PARENT}/models/{{resource}}", f"{_LOCATED}/models/model-digits"
MODELS = {
    f"POST {_PARENT}/models": case(_NO_VERB, f"{_LOCATED}/models", json={}),
    f"POST {_PARENT}/models:upload": case(_NO_VERB, f"{_LOCATED}/models:upload", json={}),
    f"GET {_PARENT}/models": case(VERTEX_READER, f"{_LOCATED}/models"),
    f"GET {_ONE_MODEL}": case(VERTEX_READER, _DIGITS),
    f"GET {_ONE_MODEL}:listVersions": case(VERTEX_READER, f"{_DIGITS}:listVersions"),
    f"POST {_ONE_MODEL}:mergeVersionAliases": case(
        VERTEX_MEMBER, f"{_DIGITS}@1:mergeVersionAliases", json={"versionAliases": ["best"]}
    ),
    f"DELETE {_ONE_MODEL}:deleteVersion": case(VERTEX_MEMBER, f"{_DIGITS}@1:deleteVersion"),
    f"POST {_ONE_MODEL}:{{action}}": case(_NO_VERB, f"{_DIGITS}:cancel"),
    f"DELETE {_ONE_MODEL}": case(VERTEX_MEMBER, _DIGITS),
    **{
        f"GET {prefix}{_ONE_MODEL[3:]}/operations/{{operation}}": case(
            VERTEX_MEMBER, f"{prefix}{_LOCATED[3:]}/models/model-gone/operations/delete"
        )
        for prefix in ("/v1", "/ui")
    },
}
VERTEX: dict[str, Case] = {
    **MODELS,
    **_of_collection("customJobs", "job-1", "job-done", ("job-done", VERTEX_MEMBER)),
    **_of_collection("trainingPipelines", "job-paused", "job-over", ("job-over", VERTEX_MEMBER)),
    **_of_collection(
        "hyperparameterTuningJobs", "study-tuning", "study-tuned", ("study-cut", {**VERTEX_READER, "reader": 403})
    ),
    **{
        f"{method} {_PARENT}/{{rest:path}}": case(NOT_SERVED, f"{_LOCATED}/endpoints")
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE")
    },
    **{
        f"{method} {_PARENT.replace('/v1', '/ui', 1)}/{{rest:path}}": case(NOT_SERVED, f"/ui{_LOCATED[3:]}/endpoints/1")
        for method in ("GET", "POST", "DELETE")
    },
}
_OBJECT, _MODEL_FILE = "/storage/v1/b/{bucket}/o/{name:path}", "/storage/v1/b/vision/o/job-1%2Fmodel.bin"
_UPLOAD = "/upload/storage/v1/b/{bucket}/o"
_NO_SESSION = {**dict.fromkeys(PEOPLE, 404), **_NOT_IN, "reader": 403}
GCS: dict[str, Case] = {
    "GET /storage/v1/b": case(_NOT_IN),
    "POST /storage/v1/b": case(dict.fromkeys(PEOPLE, 403), json={"name": "x"}),
    "GET /storage/v1/b/{bucket}": case(BUCKET_READER, "/storage/v1/b/vision"),
    "GET /storage/v1/b/{bucket}/o": case(BUCKET_READER, "/storage/v1/b/vision/o"),
    **{
        f"{method} {place}{_OBJECT}": case(BUCKET_READER, place + _MODEL_FILE)
        for method in ("GET", "HEAD")
        for place in ("", "/download")
    },
    f"DELETE {_OBJECT}": case(BUCKET_WRITER, "/storage/v1/b/vision/o/job-1%2Fspare.bin"),
    f"POST {_UPLOAD}": case(
        BUCKET_WRITER,
        "/upload/storage/v1/b/vision/o",
        params={"uploadType": "media", "name": "job-1/new.bin"},
        content=b"x",
    ),
    **{
        f"{method} {_UPLOAD}": case(_NO_SESSION, "/upload/storage/v1/b/vision/o", params={"upload_id": "none.of-ours"})
        for method in ("PUT", "DELETE")
    },
    **{
        f"{method} /storage/v1/b/{{rest:path}}": case(NOT_SERVED, "/storage/v1/b/vision/iam")
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE")
    },
}

ROUTES: dict[str, Case] = {
    "GET /api/v1/jobs": case(ANY_READER),
    # Somebody who may not know of the project hears of a mistake in the spec, as if there were no such project.
    "POST /api/v1/jobs": case({**MEMBER, "stranger": 404, "plain": 404}, json={"spec": SPEC}),
    "POST /api/v1/forecasts": case({**MEMBER, "stranger": 404, "plain": 404}, json={"spec": SPEC}),
    "GET /api/v1/jobs/{job}/explanation": case(VIEWER, "/api/v1/jobs/job-queued/explanation"),
    "GET /api/v1/jobs/{job}/forecast": case(VIEWER, "/api/v1/jobs/job-queued/forecast"),
    "GET /api/v1/jobs/{job}": case(VIEWER),
    "DELETE /api/v1/jobs/{job}": case(MEMBER, "/api/v1/jobs/job-done"),
    "POST /api/v1/jobs/{job}/cancel": case(MEMBER),
    "POST /api/v1/jobs/{job}/pause": case(MEMBER),
    "POST /api/v1/jobs/{job}/resume": case(MEMBER, "/api/v1/jobs/job-paused/resume"),
    "POST /api/v1/jobs/{job}/clone": case(MEMBER, json={}),
    "POST /api/v1/studies": case({**MEMBER, "stranger": 404, "plain": 404}, json={"spec": STUDY}),
    "GET /api/v1/studies": case(ANY_READER),
    "GET /api/v1/studies/{study}": case(VIEWER),
    "DELETE /api/v1/studies/{study}": case(MEMBER, "/api/v1/studies/study-done"),
    "GET /api/v1/studies/{study}/best": case(VIEWER),
    "GET /api/v1/studies/{study}/trials": case(VIEWER),
    "GET /api/v1/studies/{study}/columns": case(VIEWER),
    "GET /api/v1/studies/{study}/curves": case(VIEWER),
    "GET /api/v1/studies/{study}/importance": case(VIEWER),
    "GET /api/v1/studies/{study}/prediction": case(VIEWER),
    "POST /api/v1/studies/{study}/clone": case({**MEMBER, "stranger": 404, "plain": 404}, json={}),
    "POST /api/v1/studies/{study}/stop": case(MEMBER),
    "POST /api/v1/studies/{study}/pause": case(MEMBER),
    "POST /api/v1/studies/{study}/resume": case(MEMBER, "/api/v1/studies/study-paused/resume"),
    "POST /api/v1/studies/{study}/extend": case(MEMBER, json={"trials": 3}),
    "POST /api/v1/studies/{study}/suggestions": case(MEMBER),
    "POST /api/v1/studies/{study}/trials/{number}/complete": case(MEMBER, json={"result": {"loss": 0.5}}),
    "GET /api/v1/endpoints": case(ANY_READER),
    "POST /api/v1/projects/{project}/endpoints": case(MEMBER, json={"name": "fresh"}),
    _ENDPOINT.replace("*", "GET"): case(VIEWER),
    _ENDPOINT.replace("*", "DELETE"): case(MEMBER),
    f"{_ENDPOINT.replace('*', 'POST')}/deployments": case(
        MEMBER, json={"deployment": "more", "model": "output/vision/job-1"}
    ),
    f"{_ENDPOINT.replace('*', 'POST')}/deployments/{{deployment}}/scale": case(MEMBER, json={"replicas": 2}),
    f"{_ENDPOINT.replace('*', 'POST')}/deployments/{{deployment}}/rollback": case(MEMBER, json={"revision": 1}),
    f"{_ENDPOINT.replace('*', 'DELETE')}/deployments/{{deployment}}": case(MEMBER),
    f"{_ENDPOINT.replace('*', 'PUT')}/traffic": case(MEMBER, json={"traffic": {"default": 100}}),
    # Nothing of it is ready, which those are told that may ask.
    **{
        f"{_ENDPOINT.replace('*', 'POST')}:{verb}": case(
            {**dict.fromkeys(PEOPLE, 503), **VIEWER}, json={"instances": []}
        )
        for verb in ("predict", "rawPredict")
    },
    "POST /api/v1/projects/{project}/batch-predictions": case(
        MEMBER, json={"model": "digits@1", "input": "output/vision/job-1"}
    ),
    "POST /api/v1/projects/{project}/models": case(MEMBER, json={"name": "fresh"}),
    "GET /api/v1/projects/{project}/models": case(VIEWER),
    "GET /api/v1/projects/{project}/models/{model}": case(VIEWER),
    "PATCH /api/v1/projects/{project}/models/{model}": case(MEMBER, json={"description": "x"}),
    "DELETE /api/v1/projects/{project}/models/{model}": case(MEMBER),
    "GET /api/v1/projects/{project}/models/{model}/history": case(VIEWER),
    "PUT /api/v1/projects/{project}/models/{model}/aliases/{alias}": case(MEMBER, json={"version": 1}),
    "DELETE /api/v1/projects/{project}/models/{model}/aliases/{alias}": case(
        MEMBER, "/api/v1/projects/vision/models/named/aliases/prod"
    ),
    "POST /api/v1/projects/{project}/models/{model}/versions": case(
        MEMBER, json={"job": "job-done", "path": "model.bin"}
    ),
    "GET /api/v1/projects/{project}/models/{model}/versions": case(VIEWER),
    "GET /api/v1/projects/{project}/models/{model}/versions/{version}": case(VIEWER),
    "PATCH /api/v1/projects/{project}/models/{model}/versions/{version}": case(MEMBER, json={"description": "x"}),
    "POST /api/v1/projects/{project}/models/{model}/versions/{version}/stage": case(MEMBER, json={"stage": "staging"}),
    "DELETE /api/v1/projects/{project}/models/{model}/versions/{version}": case(MEMBER),
    "GET /api/v1/projects/{project}/models/{model}/versions/{version}/files": case(VIEWER),
    **{
        f"{method} /api/v1/projects/{{project}}/models/{{model}}/versions/{{version}}/{what}": case(
            VIEWER, params={"path": "a.txt"} if what == "files/content" else None
        )
        for method in ("GET", "HEAD")
        for what in ("files/content", "archive")
    },
    "GET /api/v1/jobs/{job}/attempts": case(VIEWER),
    "GET /api/v1/jobs/{job}/attempts/{number}": case(VIEWER),
    "GET /api/v1/jobs/{job}/attempts/{number}/replicas": case(VIEWER),
    "GET /api/v1/jobs/{job}/attempts/{number}/replicas/{name}": case(VIEWER),
    "GET /api/v1/jobs/{job}/events": case(VIEWER),
    "GET /api/v1/events": case(ANY_READER),
    "GET /api/v1/jobs/{job}/logs": case(VIEWER),
    "GET /api/v1/jobs/{job}/logs/stream": case(VIEWER),
    "GET /api/v1/jobs/{job}/logs/{name}": case(VIEWER),
    "HEAD /api/v1/jobs/{job}/logs/{name}": case(VIEWER),
    "GET /api/v1/jobs/{job}/metrics": case(VIEWER),
    "GET /api/v1/jobs/{job}/metrics/names": case(VIEWER),
    "GET /api/v1/jobs/{job}/metrics/chart": case(VIEWER),
    "GET /api/v1/jobs/{job}/metrics/stream": case(VIEWER, "/api/v1/jobs/job-done/metrics/stream"),
    "GET /api/v1/jobs/{job}/metrics/objects": case(VIEWER, params={"name": "seen"}),
    "GET /api/v1/jobs/{job}/metrics/images/{image}": case(VIEWER, "/api/v1/jobs/job-1/metrics/images/1"),
    "GET /api/v1/jobs/{job}/resources": case(VIEWER),
    "GET /api/v1/metrics/chart": case(VIEWER, params={"job": "job-1"}),
    "GET /api/v1/jobs/{job}/checkpoints": case(VIEWER),
    "DELETE /api/v1/jobs/{job}/checkpoints": case(MEMBER, params=CHECKPOINT),
    "GET /api/v1/jobs/{job}/checkpoints/tensors": case(VIEWER, params=CHECKPOINT),
    "GET /api/v1/jobs/{job}/checkpoints/statistics": case(VIEWER, params=CHECKPOINT),
    "GET /api/v1/jobs/{job}/checkpoints/diff": case(VIEWER, params={**CHECKPOINT, "other": CHECKPOINT["path"]}),
    "GET /api/v1/jobs/{job}/checkpoints/content": case(VIEWER, params=CHECKPOINT),
    "HEAD /api/v1/jobs/{job}/checkpoints/content": case(VIEWER, params=CHECKPOINT),
    "PUT /api/v1/jobs/{job}/checkpoints/kept": case(MEMBER, params=CHECKPOINT),
    "DELETE /api/v1/jobs/{job}/checkpoints/kept": case(MEMBER, params=CHECKPOINT),
    "GET /api/v1/jobs/{job}/checkpoints/retention": case(VIEWER),
    "PUT /api/v1/jobs/{job}/checkpoints/retention": case(MEMBER, json={"last": 3}),
    "DELETE /api/v1/jobs/{job}/checkpoints/retention": case(MEMBER),
    "GET /api/v1/jobs/{job}/code/diff": case(VIEWER, params={"other": "job-1"}),
    "GET /api/v1/jobs/{job}/files": case(VIEWER),
    "GET /api/v1/jobs/{job}/files/content": case(VIEWER, params={"path": "model.bin"}),
    "HEAD /api/v1/jobs/{job}/files/content": case(VIEWER, params={"path": "model.bin"}),
    "POST /api/v1/archives": case(ANY_WRITER, params={"digest": DIGEST, "size": len(DATA)}),
    "PUT /api/v1/archives/{digest}": case(ANY_WRITER, params={"offset": 0}, content=DATA),
    "GET /api/v1/archives/{digest}": case(ANY_READER),
    "GET /api/v1/nodes": case(ANY_READER),
    "GET /api/v1/nodes/{node}": case(ANY_READER),
    "GET /api/v1/holders": case(ANY_READER),
    "DELETE /api/v1/nodes/{node}": case(PLATFORM_ADMIN, "/api/v1/nodes/node-gone"),
    "PUT /api/v1/nodes/{node}/labels": case(PLATFORM_ADMIN, json={"labels": {"pool": "fast"}}),
    "POST /api/v1/nodes/{node}/cordon": case(PLATFORM_ADMIN),
    "POST /api/v1/nodes/{node}/drain": case(PLATFORM_ADMIN),
    "POST /api/v1/nodes/{node}/uncordon": case(PLATFORM_ADMIN),
    "POST /api/v1/nodes/{node}/release": case(PLATFORM_ADMIN),
    "GET /api/v1/volumes": case(ANY_READER),
    "POST /api/v1/volumes": case(PLATFORM_ADMIN, json={"name": "claim", "kind": "pvc", "config": {"claim": "data"}}),
    "GET /api/v1/volumes/{volume}": case(ANY_READER),
    "DELETE /api/v1/volumes/{volume}": case(PLATFORM_ADMIN),
    "GET /api/v1/projects": case(ANY_READER),
    "POST /api/v1/projects": case(PLATFORM_ADMIN, json={"name": "speech"}),
    "GET /api/v1/projects/{project}": case(VIEWER),
    "PATCH /api/v1/projects/{project}": case(PROJECT_ADMIN, json={"description": "x"}),
    "DELETE /api/v1/projects/{project}": case(PROJECT_ADMIN, "/api/v1/projects/empty"),
    "GET /api/v1/projects/{project}/members": case(VIEWER),
    "PUT /api/v1/projects/{project}/members/{user}": case(PROJECT_ADMIN, json={"role": "member"}),
    "DELETE /api/v1/projects/{project}/members/{user}": case(PROJECT_ADMIN),
    "GET /api/v1/projects/{project}/secrets": case(VIEWER),
    "PUT /api/v1/projects/{project}/secrets/{name}": case(PROJECT_ADMIN, json={"value": "x"}),
    "DELETE /api/v1/projects/{project}/secrets/{name}": case(PROJECT_ADMIN),
    "GET /api/v1/queue": case(ANY_READER),
    "GET /api/v1/queue/running": case(ANY_READER),
    "GET /api/v1/shares": case(ANY_READER),
    "GET /api/v1/quotas": case(ANY_READER),
    "GET /api/v1/projects/{project}/quota": case(VIEWER),
    "PATCH /api/v1/projects/{project}/quota": case(PLATFORM_ADMIN, json={"limit": {"gpus": 4}}),
    "POST /api/v1/simulations": case(PLATFORM_ADMIN, json={"days": 7}),
    "GET /api/v1/simulations/{simulation}": case({**PLATFORM_ADMIN, "root": 404}, "/api/v1/simulations/none"),
    "GET /api/v1/policy": case(ANY_READER),
    "PATCH /api/v1/policy": case(PLATFORM_ADMIN, json={"settings": {"time_slice": "1h"}}),
    "GET /api/v1/reservations": case(ANY_READER),
    "POST /api/v1/reservations": case(
        PLATFORM_ADMIN,
        json={"name": "week", "project": "vision", "nodes": ["node-a"], "ends_at": "2026-11-22T07:00:00Z"},
    ),
    "DELETE /api/v1/reservations/{reservation}": case(PLATFORM_ADMIN),
    "GET /api/v1/users": case(ANY_READER),
    "POST /api/v1/users": case(PLATFORM_ADMIN, json={"name": "fresh"}),
    "PATCH /api/v1/users/{user}": case(PLATFORM_ADMIN, json={"is_disabled": True}),
    "GET /api/v1/tokens": case(ANY_READER),
    "POST /api/v1/tokens": case(ANY_WRITER, json={"name": "x", "scopes": ["read"]}),
    # A token of the member's: to everybody else but platform admins it is not there.
    "DELETE /api/v1/tokens/{token_id}": case(
        {**ANY_WRITER, **dict.fromkeys(("stranger", "plain", "viewer", "owner"), 404)}
    ),
    "GET /api/v1/spec/schema": case(OPEN),
    "POST /api/v1/login/codes": case({**ANY_WRITER, "plain": 403}),
    "POST /api/v1/login": case(dict.fromkeys(PEOPLE, 401), json={"code": "no-code-of-ours"}),
    "GET /api/v1/me": case(ANY_READER),
    "GET /api/v1/health": case(OPEN),
    "GET /api/v1/live": case(OPEN),
    "GET /api/v1/ready": case(OPEN),
    "POST /api/v1/runtime/report": case(ATTEMPT, json=REPORT),
    "POST /api/v1/runtime/metrics": case(ATTEMPT, json={"role": "worker", "index": 0, "series": []}),
    # Let in, and told that this job was submitted without code.
    "GET /api/v1/runtime/code": case({**ATTEMPT, "attempt": 404}),
    **MLFLOW,
    **VERTEX,
    **GCS,
    "POST /api/v1/tensorboards": case(VIEWER, json={"jobs": ["job-1"]}),
    # The address is the right: whoever has none is told that it is good no more, with a token or without.
    **{
        f"{method} /tensorboard/{{secret}}/{{path:path}}": case(dict.fromkeys(PEOPLE, 404), "/tensorboard/no-such/data")
        for method in ("GET", "HEAD", "POST", "OPTIONS")
    },
    "GET /tensorboard/{secret}": case(dict.fromkeys(PEOPLE, 404), "/tensorboard/no-such"),
    "GET /metrics": case({**PLATFORM_ADMIN, "plain": OK}),
    **{f"GET /{place}": case(OPEN) for place in ("", *PLACES)},  # a page that holds nothing; what it shows, it asks for
    **{f"GET /{place}/{{below:path}}": case(OPEN, f"/{place}/x") for place in PLACES},
    "GET /assets/{name}": case(OPEN, "/assets/index-1.js"),
    "GET /icon.svg": case(OPEN),
    "GET /theme.js": case(OPEN),
    "POST /api/v1/session": case(dict.fromkeys(PEOPLE, 403), json={"code": "x"}),  # from no page of ours
    "DELETE /api/v1/session": case(_OUT),
    "GET /openapi.json": case(OPEN),
    "HEAD /openapi.json": case(OPEN),
}

FILLED = {
    "{job}": "job-1",
    "{study}": "study-1",
    "{endpoint}": "sums",
    "{deployment}": "default",
    "{number}": "1",
    "{model}": "digits",
    "{version}": "1",
    "{alias}": "beta",
    "{name}": "worker-0",
    "{digest}": DIGEST,
    "{node}": "node-a",
    "{volume}": "data",
    "{project}": "vision",
    "{user}": "viewer",
    "{token_id}": "token-of-member",
    "{reservation}": "reservation-1",
}


def all_routes() -> set[str]:
    found = set()
    for noun in (*routers.NOUNS, *routers.ROOTS):
        prefix = "" if noun in routers.ROOTS else routers.PREFIX
        for route in importlib.import_module(f"api.{noun}.routes").router.routes:
            found |= {f"{method} {prefix}{route.path}" for method in route.methods}
    app = create_app(Settings(secret_key=SecretStr("k" * 40)), bell=NullBell())
    for route in app.routes:
        found |= {f"{method} {getattr(route, 'path', '')}" for method in getattr(route, "methods", None) or ()}
    return found


def test_every_route_is_in_the_table_and_the_table_has_no_other() -> None:
    missing = sorted(all_routes() - ROUTES.keys())
    assert not missing, f"say in the table ROUTES who may use {missing}"
    assert not sorted(ROUTES.keys() - all_routes())


def furnish(house: Any) -> None:
    conftest = importlib.import_module("tests.unit.api_files.conftest")
    conftest.furnish(house)
    with unit_of_work(house.sessions) as session:
        house.add_token(session, "member", "tm_reader", ("read",))
        house.add_token(session, "member", "tm_expired", ("read", "write"), expires_at=house.now - timedelta(days=1))
        house.add_token(session, "root", "tm_plain", ("read", "write"))
        house.add_job(session, "job-paused", state="paused")
        house.add_job(session, "job-queued", state="queued")
        house.add_job(session, "job-done", state="succeeded")
        house.add_project(session, "empty", owner="admin", member="member", viewer="viewer")
        session.add(
            Node(
                name="node-gone", executor="fake", labels={}, allocatable={"cpu_milli": 0, "memory_bytes": 0}, gpus=[],
                is_ready=False, seen_at=house.now,
            )
        )  # fmt: skip
        session.add(
            BookingRow(
                id="reservation-1", name="later", project_id="project-vision", nodes=["node-a"],
                begins_at=house.now + timedelta(days=30), ends_at=house.now + timedelta(days=31), created_by="user-root",
                created_at=house.now,
            )
        )  # fmt: skip
        furnish_mlflow(session, house.now)
        furnish_studies(session, house.now)
        furnish_models(session, house.now)
        furnish_endpoints(session, house.now)
        house.add_job(session, "job-over", state="succeeded")
        session.flush()
        for collection, job_id in (
            ("customJobs", "job-1"),
            ("customJobs", "job-done"),
            ("trainingPipelines", "job-paused"),
            ("trainingPipelines", "job-over"),
        ):
            session.add(
                VertexResource(
                    collection=collection, id=job_id, job_id=job_id, project_id="project-vision", location="us-central1",
                    display_name="x", labels={}, body={}, created_at=house.now,
                )
            )  # fmt: skip
        seen = NewObject("seen", "image", 1, 1, "image/png", b"1")
        add_metrics(session, StreamKey("job-1", 1, "worker", 0), {}, [seen], now=house.now)
        session.add(Secret(project_id="project-vision", name="worker_0", sealed=b"x", updated_at=house.now))


def furnish_studies(session: Session, now: datetime) -> None:
    """Without a template, with a point that is ready and one that is being tried."""
    ready = {"parameters": {"x": 0.5}, "memo": {}}
    spec = parse_study(STUDY).model_dump(mode="json")
    for name, state in (("1", "running"), ("paused", "paused"), ("done", "succeeded")):
        session.add(
            Study(
                id=f"study-{name}", project_id="project-vision", user_id="user-member", name=name, spec=spec, seed=1,
                state=state, trial_count=1, prepared=[ready], created_at=now, started_at=now, updated_at=now,
            )
        )  # fmt: skip
    told = {"location": "us-central1", "displayName": "x", "labels": {}, "body": {}}
    for name, state in (("tuning", "running"), ("tuned", "succeeded"), ("cut", "cancelled")):
        session.add(
            Study(
                id=f"study-{name}", project_id="project-vision", user_id="user-member", name=name,
                spec={**spec, "vertex": told}, seed=1, state=state, created_at=now, started_at=now, updated_at=now,
                deleted_at=now if name == "cut" else None,
            )
        )  # fmt: skip
    session.flush()
    session.add(Trial(study_id="study-1", number=1, state="running", parameters={"x": 0.1}, created_at=now))


def furnish_endpoints(session: Session, now: datetime) -> None:
    """One with a deployed model of two revisions, of which nothing runs."""
    session.add(
        Endpoint(
            id="endpoint-1", project_id="project-vision", user_id="user-member", name="sums", created_at=now,
            updated_at=now,
        )
    )  # fmt: skip
    session.flush()
    session.add(
        Deployment(
            id="deployment-1", endpoint_id="endpoint-1", name="default", state="active", replicas=1, traffic=100,
            wanted=2, stable=1, created_at=now, updated_at=now,
        )
    )  # fmt: skip
    session.flush()
    for number in (1, 2):
        session.add(
            DeploymentRevision(
                deployment_id="deployment-1", number=number, spec={"model": "output/vision/job-1"},
                user_id="user-member", created_at=now,
            )
        )  # fmt: skip


def furnish_models(session: Session, now: datetime) -> None:
    """A version whose file is there, and a model with an alias."""
    for name in ("digits", "named"):
        session.add(
            Model(
                id=f"model-{name}", project_id="project-vision", user_id="user-member", name=name, version_count=1,
                created_at=now, updated_at=now,
            )
        )  # fmt: skip
        session.flush()
        session.add(
            ModelVersion(
                id=f"version-{name}", model_id=f"model-{name}", project_id="project-vision", user_id="user-member", number=1,
                state="ready", job_id="job-done", source={"kind": "output", "job": "job-done", "path": "model"},
                lineage={"job": "job-done", "job_name": "digits"},
                volume="output", path=".models/vision/version-1", digest="sha256:0", size_bytes=1, file_count=1,
                created_at=now, updated_at=now,
            )
        )  # fmt: skip
    session.flush()
    session.add(
        ModelFile(version_id="version-digits", path="a.txt", source="a.txt", size_bytes=1, mtime_ns=0, sha256="0" * 64)
    )
    session.add(
        Model(
            id="model-gone", project_id="project-vision", user_id="user-member", name="gone", created_at=now, updated_at=now,
            deleted_at=now,
        )
    )  # fmt: skip
    session.add(ModelAlias(model_id="model-named", name="prod", version_id="version-named", updated_at=now))


def furnish_mlflow(session: Session, now: datetime) -> None:
    """A run that job-1 made, with a tag; a model of it with one too; and a version that is registered."""
    of_job = {"project_id": "project-vision", "job_id": "job-1"}
    session.add(
        MlflowRun(
            id="run-1", attempt_id="attempt-1", replica="", name="r", status="RUNNING", tags={"a": "b"}, params={},
            inputs={}, outputs=[], started_at=now, **of_job,
        )
    )  # fmt: skip
    session.add(
        MlflowModel(
            id="m-1", run_id="run-1", name="m", kind="", status="LOGGED_MODEL_PENDING", tags={"a": "b"}, params={},
            metrics=[], created_at=now, updated_at=now, **of_job,
        )
    )  # fmt: skip
    session.add(MlflowRegistered(project_id="project-vision", name="known", created_at=now, updated_at=now))
    session.flush()
    session.add(
        MlflowVersion(
            name="known", version=1, run_id="run-1", model_id="m-1", source="models:/m-1", created_at=now,
            updated_at=now, **of_job,
        )
    )  # fmt: skip


@dataclass
class PlannerBell:
    """Whoever asks the planner is answered: by nobody's plan, but at once."""

    sessions: SessionFactory
    clock: Callable[[], datetime]

    def ring(self, topic: str, key: str = "") -> None:
        if topic != TOPIC_FORECAST:
            return
        with unit_of_work(self.sessions) as session:
            forecast = {
                "places": [],
                "reason": None,
                "position": 1,
                "start": None,
                "options": [],
                "later": [],
                "victims": [],
            }
            now = self.clock()
            why = {
                "at": now.isoformat(), "verdict": "absent", "sentence": "is not there", "reason": None, "position": None,
                "places": [], "waiting": 0, "running": 0, "nodes": 0, "then": "",
            }  # fmt: skip
            told = {Kind.FORECAST: forecast, Kind.EXPLANATION: why, Kind.STUDY: {"trials": 0, "reason": "Not known."}}
            questions.answer(session, {one.id: told[one.kind] for one in questions.unanswered(session, now, 10)}, now)


@contextmanager
def make_stage(folder: Path, engine: Engine) -> Iterator[Any]:
    """One furnished house for all tests of the module."""
    conftest = importlib.import_module("tests.unit.api_files.conftest")
    (folder / "home").mkdir()
    settings = Settings(home=folder / "home", secret_key=SecretStr("k" * 40), executor="fake", test_fake_executor=True)
    Base.metadata.create_all(engine)
    sessions = make_sessions(engine)
    bell = PlannerBell(sessions, lambda: house.now)
    app = create_app(settings, sessions=sessions, bell=bell, clock=lambda: house.now)
    with TestClient(app, raise_server_exceptions=False, follow_redirects=False) as client:
        house = conftest.House(app, client, settings, app.state.platform.sessions, folder / "output")
        furnish(house)
        house.log("job-1", 1, "worker-0", "line\n")
        pages = folder / "pages"
        (pages / "assets").mkdir(parents=True)
        for name in ("index.html", "icon.svg", "theme.js", "assets/index-1.js"):
            (pages / name).write_text("x")
        for name in ("model.bin", "spare.bin"):
            (house.output / "vision/job-1" / name).write_bytes(b"1")
        write_checkpoint(house)
        for path in ("vision/job-done/model.bin", ".models/vision/version-1/a.txt"):
            (house.output / path).parent.mkdir(parents=True)
            (house.output / path).write_bytes(b"1")
        artifacts = house.output / "vision/job-1/mlflow/runs/attempt-1"
        artifacts.mkdir(parents=True)
        (artifacts / "plot.png").write_bytes(b"1")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("api.pages.routes.BUILD", pages)
            yield house


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The house, and a function that puts its database back as it was."""
    folder = tmp_path_factory.mktemp("house")
    database, template = folder / "db.sqlite3", folder / "template.sqlite3"
    engine = make_engine(f"sqlite:///{database}")
    with make_stage(folder, engine) as house:
        engine.dispose()
        shutil.copy(database, template)

        def restore() -> None:
            engine.dispose()
            for suffix in ("-wal", "-shm"):
                Path(f"{database}{suffix}").unlink(missing_ok=True)
            shutil.copy(template, database)
            forget(house)

        yield house, restore
    engine.dispose()


def write_checkpoint(house: Any) -> None:
    header = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    path = house.output / "vision/job-1" / CHECKPOINT["path"]
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 4)


def forget(house: Any) -> None:
    """What the application keeps beside its database, and files that went with a request."""
    write_checkpoint(house)
    (house.output / "vision/job-1/spare.bin").write_bytes(b"1")
    house.app.state.callers.clear()
    shutil.rmtree(house.settings.archive_dir, ignore_errors=True)


@pytest.mark.parametrize("route", sorted(ROUTES))
def test_everybody_gets_what_they_may_and_nothing_else(stage: Stage, route: str) -> None:
    house, restore = stage
    method, _, path = route.partition(" ")
    wanted = ROUTES[route]
    for key, value in FILLED.items():
        path = path.replace(key, "worker_0" if key == "{name}" and "secrets" in path else value)
    path = wanted.path or path
    for who in PEOPLE:
        if path.endswith(DIGEST):  # an upload that this caller began
            house.call(
                "root" if method == "GET" and who in _OUT else _uploader(who),
                "POST",
                "/archives",
                params={"digest": DIGEST, "size": len(DATA)},
            )
        answer = house.client.request(method, path, headers=house.auth(who), **wanted.more)
        expected = wanted.refused.get(who, OK)
        if expected == OK:
            assert answer.status_code < 400, f"{who}: {answer.status_code} {answer.text}"
        else:
            assert answer.status_code == expected, f"{who}: {answer.status_code} {answer.text}"
            if path.startswith("/mlflow"):
                assert answer.json()["message"].endswith("."), answer.text
            elif method != "HEAD" and path.startswith(("/api", "/tensorboard")):
                assert answer.headers["content-type"] == "application/problem+json"
                assert answer.json()["detail"].endswith((".", "`")), answer.json()["detail"]
        if method not in ("GET", "HEAD"):
            restore()


def _uploader(who: str) -> str:
    # A token that only reads cannot begin an upload; its user can.
    return {"reader": "member"}.get(who, who)


@pytest.mark.parametrize("who", ["stranger", "plain"])
def test_lists_show_nothing_of_projects_that_are_not_the_callers(stage: Stage, who: str) -> None:
    house, _ = stage
    for path in ("/jobs", "/events", "/projects", "/queue", "/queue/running", "/shares", "/quotas", "/reservations"):
        text = house.call(who, "GET", path).text
        assert "job-1" not in text
        assert "vision" not in text


def test_a_refusal_does_not_tell_whether_the_thing_exists(stage: Stage) -> None:
    house, _ = stage
    there = house.call("stranger", "GET", "/jobs/job-1").json()
    not_there = house.call("stranger", "GET", "/jobs/job-x").json()
    assert there["detail"].replace("job-1", "job-x") == not_there["detail"]
    there = house.call("stranger", "GET", "/projects/vision").json()
    not_there = house.call("stranger", "GET", "/projects/vizion").json()
    assert there["detail"].replace("vision", "vizion") == not_there["detail"]
