"""Vertex AI's endpoints, uploads and batch predictions in the table of who may do what."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from core.db.tables import Endpoint, Model, ModelVersion
from tests.unit.api_files.permissions.rights import NOT_SERVED, PEOPLE, VERTEX_MEMBER, VERTEX_READER, Case, case

_PARENT, _LOCATED = "/v1/projects/{project}/locations/{location}", "/v1/projects/vision/locations/us-central1"
_HOME = _LOCATED.removeprefix("/v1/")
_ENDPOINT, _SUMS = f"{_PARENT}/endpoints/{{resource}}", f"{_LOCATED}/endpoints/sums"
_BATCH, _BATCHES = f"{_PARENT}/batchPredictionJobs", f"{_LOCATED}/batchPredictionJobs"
_SERVER = {"imageUri": "i", "predictRoute": "/p", "healthRoute": "/h"}
_MODEL = {"displayName": "Digits", "artifactUri": "gs://vision/job-1", "containerSpec": _SERVER}
# Nothing of it is ready, which those are told that may ask.
_NOT_READY = {**dict.fromkeys(PEOPLE, 503), **VERTEX_READER}

WANTED: dict[str, Any] = {
    "displayName": "x",
    "model": f"{_HOME}/models/model-digits",
    "inputConfig": {"instancesFormat": "jsonl", "gcsSource": {"uris": ["gs://vision/job-1/model.bin"]}},
    "outputConfig": {"predictionsFormat": "jsonl", "gcsDestination": {"outputUriPrefix": "gs://vision/answers"}},
    "dedicatedResources": {"machineSpec": {"machineType": "n1-standard-2"}},
}


SERVING: dict[str, Case] = {
    f"POST {_PARENT}/models:upload": case(VERTEX_MEMBER, f"{_LOCATED}/models:upload", json={"model": _MODEL}),
    f"POST {_PARENT}/endpoints": case(VERTEX_MEMBER, f"{_LOCATED}/endpoints", json={"displayName": "x"}),
    f"GET {_PARENT}/endpoints": case(VERTEX_READER, f"{_LOCATED}/endpoints"),
    f"GET {_ENDPOINT}": case(VERTEX_READER, _SUMS),
    f"PATCH {_ENDPOINT}": case(VERTEX_MEMBER, _SUMS, json={"displayName": "y"}),
    f"DELETE {_ENDPOINT}": case(VERTEX_MEMBER, f"{_LOCATED}/endpoints/empty"),
    f"POST {_ENDPOINT}:deployModel": case(
        VERTEX_MEMBER,
        f"{_SUMS}:deployModel",
        json={
            "deployedModel": {
                "model": f"{_HOME}/models/model-served",
                "dedicatedResources": {"machineSpec": {"machineType": "n1-standard-2"}, "minReplicaCount": 1},
            }
        },
    ),
    f"POST {_ENDPOINT}:undeployModel": case(
        VERTEX_MEMBER, f"{_SUMS}:undeployModel", json={"deployedModelId": "default"}
    ),
    f"POST {_ENDPOINT}:predict": case(_NOT_READY, f"{_SUMS}:predict", json={"instances": [1]}),
    f"POST {_ENDPOINT}:rawPredict": case(_NOT_READY, f"{_SUMS}:rawPredict", json={"instances": [1]}),
    f"POST {_ENDPOINT}:{{action}}": case({**NOT_SERVED, "reader": 403}, f"{_SUMS}:explain", json={}),
    f"POST {_BATCH}": case(VERTEX_MEMBER, _BATCHES, json=WANTED),
    f"GET {_BATCH}": case(VERTEX_READER, _BATCHES),
    f"GET {_BATCH}/{{resource}}": case(VERTEX_READER, f"{_BATCHES}/job-1"),
    f"POST {_BATCH}/{{resource}}:{{action}}": case(VERTEX_MEMBER, f"{_BATCHES}/job-1:cancel"),
    f"DELETE {_BATCH}/{{resource}}": case(VERTEX_MEMBER, f"{_BATCHES}/job-done"),
}


def furnish_serving(session: Session, now: datetime) -> None:
    """A model that was uploaded with its server, an endpoint with nothing deployed, and one that was deleted."""
    who = {"project_id": "project-vision", "user_id": "user-member", "created_at": now, "updated_at": now}
    session.add(Model(id="model-served", name="served", version_count=1, **who))
    session.add(Endpoint(id="endpoint-2", name="empty", **who))
    session.add(Endpoint(id="gone", name="gone", deleting_at=now, deleted_at=now, **who))
    session.flush()
    session.add(
        ModelVersion(
            id="version-served",
            model_id="model-served",
            number=1,
            state="ready",
            source={"kind": "upload", "path": "x"},
            lineage={"job": "", "job_name": ""},
            volume="output",
            path=".models/vision/version-served",
            digest="sha256:0",
            size_bytes=1,
            file_count=1,
            registration={"vertex": {"containerSpec": _SERVER}},
            **who,
        )
    )
