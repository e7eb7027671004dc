"""Routes of jobs, what they write and their code in the table of who may do what."""

from __future__ import annotations

import gzip
import hashlib

from tests.unit.api_files.permissions.rights import ANY_READER, ANY_WRITER, MEMBER, VIEWER, Case, case

DATA = gzip.compress(b"code", mtime=0)
DIGEST = "sha256:" + hashlib.sha256(DATA).hexdigest()
CHECKPOINT = {"path": "checkpoints/step-1.safetensors"}
SPEC = {"name": "digits", "project": "vision", "command": "true"}

JOBS: dict[str, Case] = {
    "GET /api/v1/jobs": case(ANY_READER),
    # Somebody who may not know of the project hears of a mistake in the spec, as if there were no such project.
    "POST /api/v1/jobs": case({**MEMBER, "stranger": 404, "plain": 404}, json={"spec": SPEC}),
    "POST /api/v1/forecasts": case({**MEMBER, "stranger": 404, "plain": 404}, json={"spec": SPEC}),
    "GET /api/v1/jobs/{job}/explanation": case(VIEWER, "/api/v1/jobs/job-queued/explanation"),
    "GET /api/v1/jobs/{job}/forecast": case(VIEWER, "/api/v1/jobs/job-queued/forecast"),
    "GET /api/v1/jobs/{job}": case(VIEWER),
    "DELETE /api/v1/jobs/{job}": case(MEMBER, "/api/v1/jobs/job-done"),
    "POST /api/v1/jobs/{job}/cancel": case(MEMBER),
    "PUT /api/v1/jobs/{job}/pin": case(MEMBER),
    "DELETE /api/v1/jobs/{job}/pin": case(MEMBER),
    "POST /api/v1/jobs/{job}/pause": case(MEMBER),
    "POST /api/v1/jobs/{job}/resume": case(MEMBER, "/api/v1/jobs/job-paused/resume"),
    "POST /api/v1/jobs/{job}/clone": case(MEMBER, json={}),
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
    "GET /api/v1/jobs/{job}/metrics/suggestions": case(VIEWER),
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
    "GET /api/v1/jobs/{job}/usage": case(VIEWER),
    "GET /api/v1/jobs/{job}/files": case(VIEWER),
    "GET /api/v1/jobs/{job}/files/content": case(VIEWER, params={"path": "model.bin"}),
    "HEAD /api/v1/jobs/{job}/files/content": case(VIEWER, params={"path": "model.bin"}),
    "POST /api/v1/archives": case(ANY_WRITER, params={"digest": DIGEST, "size": len(DATA)}),
    "PUT /api/v1/archives/{digest}": case(ANY_WRITER, params={"offset": 0}, content=DATA),
    "GET /api/v1/archives/{digest}": case(ANY_READER),
}
