"""Raw job specs of a serving replica and of a batch prediction, and the ports in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from trainmaster.wire.serving import BatchPredictRequest, ServingSpec

_MOST: Final = 65_535
_DIGITS: Final = 5


# Default port of an image's server, as on Vertex AI:
# https://cloud.google.com/vertex-ai/docs/predictions/custom-container-requirements#image
IMAGE_PORT: Final = 8080
ENDPOINT_LABEL: Final = "endpoint"
BATCH_LABEL: Final = "batch-prediction"
# Variables that tell a batch prediction its model.
MODEL_NAME: Final = "AIP_MODEL_NAME"
MODEL_DIGEST: Final = "AIP_MODEL_DIGEST"
# Mount point of a batch prediction's instances, next to the model.
INSTANCES: Final = "/data/instances"
_RETENTION_S: Final = 7 * 86_400  # retention of ended replicas' jobs
_NAME: Final = 63
# In images; the process executor names the file.
MODULE: Final = ("python", "-m", "trainmaster_serving")


def holder_of(endpoint: str, deployment: str) -> str:
    """The holder under which a deployment holds a model version, as long as a rollback to it is possible."""
    return f"endpoint {endpoint}, deployed model {deployment}"


def container_port(spec: ServingSpec) -> int:
    """The port on which a container of this revision listens."""
    return read_port(spec.env.get("AIP_HTTP_PORT", "")) or spec.port or IMAGE_PORT


def replica_job(
    spec: ServingSpec,
    *,
    project: str,
    endpoint: str,
    deployment: str,
    revision: int,
    own_server: Sequence[str] | None,
) -> dict[str, Any]:
    """A raw job spec.

    Args:
        own_server: the process executor's command of the platform's server: there a replica is assigned a port, and
            listens on the loopback. ``None``: a replica is a container with an address of its own.
    """
    is_container = own_server is None
    command, args = spec.command, list(spec.args)
    if spec.has_own_server:
        command = list(MODULE if own_server is None else own_server)
        args = [*_reading(spec.framework, spec.model_file, trust_code=spec.trust_code), *args]
        args += ["--host", "0.0.0.0" if is_container else "127.0.0.1"]  # noqa: S104 (of the container)
    return {
        "name": f"{endpoint}-{deployment}"[:_NAME].rstrip("._-"),
        "project": project,
        "contract": "serving",
        **_stated(image=spec.image or spec.server_image, command=command),
        "args": args,
        "env": {
            "AIP_MODE": "PREDICTION",
            "AIP_ENDPOINT_ID": endpoint,
            "AIP_DEPLOYED_MODEL_ID": deployment,
            "AIP_HEALTH_ROUTE": spec.health_route,
            "AIP_PREDICT_ROUTE": spec.predict_route,
            **({"AIP_HTTP_PORT": str(container_port(spec))} if is_container else {}),
            **spec.env,
        },
        "secrets": spec.secrets,
        "input": spec.model,
        "roles": {"worker": {"replicas": 1, "processes_per_replica": 1, "resources": spec.resources}},
        "priority": spec.priority,
        "preemptible": spec.preemptible,
        "node_selector": spec.node_selector,
        "max_restarts": 0,  # the endpoint's reconciler replaces it, and counts its failures
        "warm": "never",
        "ttl": _RETENTION_S,
        "labels": {ENDPOINT_LABEL: endpoint, "deployment": deployment, "revision": str(revision)},
    }


def batch_job(
    request: BatchPredictRequest,
    *,
    project: str,
    model: str,
    model_file: str,
    instances: str,
    instances_file: str,
    image: str | None,
    own_server: Sequence[str] | None,
    model_name: str,
    model_digest: str = "",
) -> dict[str, Any]:
    """A raw job spec: ``replicas`` workers that share the shards; a failed worker restarts on its own.

    Args:
        model, instances: volume/path of folders; ``model_file``, ``instances_file``: one file there, or all of them.
        model_name, model_digest: written next to the predictions, so that another model does not resume them; without a
            digest the replicas compute one of the model's files.
    """
    volume, _, path = instances.partition("/")
    args = [
        *_reading(request.framework, model_file, trust_code=request.trust_code),
        "--batch",
        *("--format", request.format),
        *(("--csv-rows", request.csv_rows) if request.csv_rows != "object" else ()),
        *("--batch-size", str(request.batch_size)),
        *("--shard-size", str(request.shard_size)),
        # Explicit, because without mounts the fixed paths in arguments are replaced.
        *("--instances", INSTANCES),
        *(("--instances-file", instances_file) if instances_file else ()),
    ]
    return {
        "name": request.name,
        "project": project,
        "contract": "serving",
        **_stated(image=image, output=request.output, max_run_time=request.max_run_time),
        "command": list(MODULE if own_server is None else own_server),
        "args": args,
        "env": {
            "AIP_MODE": "BATCH_PREDICTION",
            **request.env,
            # Not as arguments: an older version in the user's own image would reject those.
            MODEL_NAME: model_name,
            **({MODEL_DIGEST: model_digest} if model_digest else {}),
        },
        "input": model,
        "mounts": [{"volume": volume, "path": path, "at": INSTANCES}],
        "roles": {
            "worker": {
                "replicas": request.replicas,
                "processes_per_replica": 1,
                "restart": "replica",
                "resources": request.resources,
            }
        },
        "secrets": list(request.secrets),
        "priority": request.priority,
        "preemptible": request.preemptible,
        "node_selector": dict(request.node_selector),
        "warm": "never",
        "labels": {BATCH_LABEL: "true", **request.labels},
    }


def _reading(framework: str, file: str, *, trust_code: bool) -> list[str]:
    return [
        *("--framework", framework),
        *(("--model-file", file) if file else ()),
        *(("--trust-code",) if trust_code else ()),
    ]


def _stated(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def read_port(text: str) -> int | None:
    """``None``: not a port from 1 to 65535 in ASCII digits (``str.isdigit`` accepts digits that ``int`` refuses)."""
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS):
        return None
    return int(text) if 1 <= int(text) <= _MOST else None
