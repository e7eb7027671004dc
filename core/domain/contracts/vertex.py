"""Vertex AI: ``CLUSTER_SPEC``, ``AIP_*``, ``CLOUD_ML_*`` of custom training, ``AIP_*`` of containers for predictions.

https://cloud.google.com/vertex-ai/docs/training/distributed-training
https://cloud.google.com/vertex-ai/docs/training/code-requirements#environment-variables
https://cloud.google.com/vertex-ai/docs/predictions/custom-container-requirements
"""

from __future__ import annotations

import json
from typing import Any, Final

from trainmaster.spec import JobSpec

from core.domain.contracts.context import ReplicaContext, framework_endpoint
from core.domain.jobs.layout import ReplicaAddress

# The job's Python points Google's SDK at this platform, unless its own environment says otherwise.
SDK_SERVER: Final = "VERTEX_AI_SDK_SERVER"
# Credentials of Google's mean Google's servers.
_OWN_CREDENTIALS: Final = "GOOGLE_APPLICATION_CREDENTIALS"
_POOLS: Final = ("workerpool0", "workerpool1", "workerpool2", "workerpool3")


def variables(replica_context: ReplicaContext) -> dict[str, str]:
    context = replica_context.context
    base = context.paths.output  # a trial's output is a folder of its own already
    env = {
        "AIP_MODEL_DIR": f"{base}/model/",
        "AIP_CHECKPOINT_DIR": f"{base}/checkpoints/",
        "AIP_TENSORBOARD_LOG_DIR": f"{base}/logs/",
        "CLOUD_ML_JOB_ID": context.job_id,
        "CLOUD_ML_PROJECT_ID": context.project,
        "CLOUD_ML_REGION": context.region,
        # One file per replica: two replicas on one machine must not overwrite each other's.
        "CLOUD_ML_HP_METRIC_FILE": f"{context.paths.own}/hypertune/output.metric",
    }
    if context.trial_id:
        env["CLOUD_ML_TRIAL_ID"] = context.trial_id
    user_env = replica_context.spec.role_env(replica_context.replica.role)
    if "AIP_EXPERIMENT_NAME" in user_env and "AIP_EXPERIMENT_RUN_NAME" not in user_env:
        env["AIP_EXPERIMENT_RUN_NAME"] = context.job_id  # a run of the job's own, as there
    if "AIP_TENSORBOARD_RESOURCE_NAME" in user_env and context.api_url is not None:
        env["AIP_TENSORBOARD_API_URI"] = context.api_url
    has_own_credentials = _OWN_CREDENTIALS in {*user_env, *replica_context.spec.secrets}
    if user_env.get(SDK_SERVER) == "trainmaster" and context.api_url is not None and not has_own_credentials:
        env |= _storage_clients(context.api_url)
        if replica_context.spec.output is not None:
            # What `Blob.from_string(os.environ["AIP_MODEL_DIR"] + …)` means: see trainmaster_vertex.py of the runtime.
            env["TRAINMASTER_OUTPUT_URI"] = f"gs://{replica_context.spec.output}"
    return env | _cluster_spec(replica_context)


def serving_variables(replica_context: ReplicaContext) -> dict[str, str]:
    """``AIP_HTTP_PORT``: the replica's port; ``AIP_STORAGE_URI``: the folder that the model is mounted at."""
    return {
        "AIP_HTTP_PORT": str(replica_context.replica.ports.framework),
        **({"AIP_STORAGE_URI": replica_context.context.paths.data} if replica_context.spec.input is not None else {}),
    }


def _storage_clients(api_url: str) -> dict[str, str]:
    """Points Cloud Storage's clients at this platform; their default credentials are the attempt's token here.

    Not STORAGE_EMULATOR_HOST: with that google-cloud-storage sends no token at all. See API_ENDPOINT_OVERRIDE (versions
    2, 3) in
    https://github.com/googleapis/python-storage/blob/main/google/cloud/storage/_helpers.py, and FSSPEC_* (gcsfs and
    pandas) in
    https://filesystem-spec.readthedocs.io/en/latest/features.html#configuration.
    """
    url = api_url.rstrip("/")
    return {
        "API_ENDPOINT_OVERRIDE": url,
        "FSSPEC_GCS_ENDPOINT_URL": url,
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # it would ask Google's own servers for a minute
    }


def pools(replica_context: ReplicaContext) -> tuple[tuple[ReplicaAddress, ...], ...]:
    """The four pools: the primary replica alone, the other ranks, ps, evaluators.

    The primary is the chief; without one, the replica of rank 0, since a Vertex program expects its chief in pool 0.
    """
    ranked = tuple(member.address for member in replica_context.world.members)
    return (ranked[:1], ranked[1:], replica_context.layout.of_role("ps"), replica_context.layout.of_role("evaluator"))


def _cluster_spec(replica_context: ReplicaContext) -> dict[str, str]:
    """Every replica knows the pools. A replica outside of them (a custom role next to workers) is a task named after
    its role.
    """
    members = pools(replica_context)
    task: dict[str, Any] = next(
        (
            {"type": name, "index": index}
            for name, pool in zip(_POOLS, members, strict=True)
            for index, replica in enumerate(pool)
            if (replica.role, replica.index) == (replica_context.replica.role, replica_context.replica.index)
        ),
        {"type": replica_context.replica.role, "index": replica_context.replica.index},
    )
    if replica_context.context.trial_id:
        task["trial"] = replica_context.context.trial_id
    spec = {
        "cluster": {
            name: [framework_endpoint(replica) for replica in pool]
            for name, pool in zip(_POOLS, members, strict=True)
            if pool
        },
        "environment": "cloud",
        "task": task,
        "job": _custom_job_spec(replica_context.spec, members, replica_context.context.paths.output),
    }
    return {"CLUSTER_SPEC": json.dumps(spec, separators=(",", ":"))}


def _custom_job_spec(spec: JobSpec, members: tuple[tuple[ReplicaAddress, ...], ...], output: str) -> dict[str, Any]:
    """The job as Vertex's ``CustomJobSpec`` in proto3 JSON (int64 as text); an empty pool keeps its place."""
    while members and not members[-1]:
        members = members[:-1]
    return {
        "workerPoolSpecs": [_pool_spec(spec, pool[0].role, len(pool)) if pool else {} for pool in members],
        "baseOutputDirectory": {"outputUriPrefix": output},
    }


def _pool_spec(spec: JobSpec, role_name: str, replicas: int) -> dict[str, Any]:
    role = spec.roles[role_name]
    command = role.command if role.command is not None else spec.command
    args = role.args if role.args is not None else spec.args
    container = {
        "imageUri": role.image or spec.image or "",
        "command": ["/bin/sh", "-c", command] if isinstance(command, str) else list(command or ()),
        "args": list(args),
    }
    machine: dict[str, Any] = {}
    if role.resources.gpus:
        machine["acceleratorCount"] = role.resources.device_count
        if role.resources.gpu_type:
            machine["acceleratorType"] = role.resources.gpu_type[0]
    return {
        "machineSpec": machine,
        "replicaCount": str(replicas),
        "containerSpec": {key: value for key, value in container.items() if value},
    }
