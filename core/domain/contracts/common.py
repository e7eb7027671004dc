"""The environment of every replica, whatever the framework; with a trial's parameters, which are also in a file."""

from __future__ import annotations

import json
from typing import Final

from core.domain.contracts.context import ReplicaContext, framework_endpoint

# Defaults: a value of the user's is no clash.
DEFAULTS: Final = frozenset(
    {
        "OMP_NUM_THREADS",
        "PYTHONUNBUFFERED",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        "TF_FORCE_GPU_ALLOW_GROWTH",
        "XLA_PYTHON_CLIENT_MEM_FRACTION",
        "AIP_HTTP_PORT",  # an image's server may choose its port
        "CLOUD_ML_PROJECT_ID",  # a client of Vertex AI names the project
        "CLOUD_ML_REGION",  # and one of its own regions
    }
)


def variables(replica_context: ReplicaContext) -> dict[str, str]:
    """The replica's identity, its folders, its API, its devices, and its trial."""
    context, replica = replica_context.context, replica_context.replica
    paths = context.paths
    env = {
        "TRAINMASTER_JOB_ID": context.job_id,
        "TRAINMASTER_JOB_NAME": context.job_name,
        "TRAINMASTER_ATTEMPT": str(context.attempt_number),
        "TRAINMASTER_ATTEMPT_ID": context.attempt_id,
        "TRAINMASTER_ROLE": replica.role,
        "TRAINMASTER_INDEX": str(replica.index),
        "TRAINMASTER_PROJECT": context.project,
        "TRAINMASTER_WORK_DIR": paths.work,
        "TRAINMASTER_DATA_DIR": paths.data,
        "TRAINMASTER_OUTPUT_DIR": paths.output,
        "TRAINMASTER_TOKEN_FILE": context.token_file or f"{paths.own}/token",
        "TRAINMASTER_REPORT_FILE": context.report_file or f"{paths.own}/report.jsonl",
        "TRAINMASTER_LAYOUT": _layout(replica_context),
        # With block buffering the log would stay empty while the job trains.
        "PYTHONUNBUFFERED": "1",
    }
    optional = {
        "TRAINMASTER_API_URL": context.api_url,
        "TRAINMASTER_STUDY_ID": context.study_id,
        "TRAINMASTER_TRIAL_ID": context.trial_id,
        "TRAINMASTER_RESUME_FROM": context.resume_from,
        "TRACEPARENT": context.traceparent,
        "CUDA_VISIBLE_DEVICES": _devices(replica_context),
        "OMP_NUM_THREADS": _threads(replica_context),
        "TRAINMASTER_METRIC_PATTERNS": json.dumps(replica_context.spec.metric_patterns)
        if replica_context.spec.metric_patterns
        else None,
    }
    return (
        env
        | {name: value for name, value in optional.items() if value is not None}
        | _part(replica_context)
        | _trial(replica_context)
    )


def files(replica_context: ReplicaContext) -> dict[str, str]:
    """Path -> content of the files that the runtime writes before the start: a trial's parameters as JSON."""
    trial = replica_context.context.trial
    return {} if trial is None else {_parameters_path(replica_context): json.dumps(trial.parameters, indent=1) + "\n"}


def _trial(replica_context: ReplicaContext) -> dict[str, str]:
    trial = replica_context.context.trial
    if trial is None:
        return {}
    return {
        "TRAINMASTER_STUDY": trial.study,
        "TRAINMASTER_TRIAL": str(trial.number),
        "TRAINMASTER_PARAMETERS": json.dumps(trial.parameters),
        "TRAINMASTER_PARAMETERS_FILE": _parameters_path(replica_context),
    }


def _parameters_path(replica_context: ReplicaContext) -> str:
    return f"{replica_context.context.paths.own}/parameters.json"


def _layout(replica_context: ReplicaContext) -> str:
    roles: dict[str, list[str]] = {}
    for replica in replica_context.layout.replicas:
        roles.setdefault(replica.role, []).append(framework_endpoint(replica))
    return json.dumps({"roles": roles, "gpus": list(replica_context.replica.gpus)}, separators=(",", ":"))


def _devices(replica_context: ReplicaContext) -> str | None:
    """The assigned devices; empty (none at all) for a replica without GPUs.

    ``None`` if the engine itself assigns them (a Kubernetes device plugin): naming them here would hide them.
    """
    if replica_context.replica.gpus:
        return ",".join(replica_context.replica.gpus)
    return "" if replica_context.gpu_count == 0 else None


def _part(replica_context: ReplicaContext) -> dict[str, str]:
    """Limits that keep programs to their fraction of a device; otherwise each takes as much as it can get.

    MPS: https://docs.nvidia.com/deploy/mps/index.html#cuda-mps-active-thread-percentage (binds under MPS alone). JAX:
    https://docs.jax.dev/en/latest/gpu_memory_allocation.html. TensorFlow has no fraction, but can allocate on demand:
    https://www.tensorflow.org/guide/gpu#limiting_gpu_memory_growth. For torch, trainmaster_train.init sets the limit.
    """
    milli = replica_context.gpu_milli
    if not milli:
        return {}
    each = milli / 1000 / replica_context.processes
    return {
        "TRAINMASTER_GPU_FRACTION": f"{milli / 1000:g}",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(max(1, round(100 * each))),
        "XLA_PYTHON_CLIENT_MEM_FRACTION": f"{each:.3g}",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }


def _threads(replica_context: ReplicaContext) -> str | None:
    """The replica's CPUs divided by its processes, at least 1.

    Without stated CPUs, a gang gets one thread per process, as with torchrun, so that its processes do not compete for
    the cores; a job of one process keeps the library's default (``None``).
    """
    cpu_milli = replica_context.spec.roles[replica_context.replica.role].resources.cpu_milli
    # A launcher is one process that starts as many as the platform would.
    processes = max(1, replica_context.replica.processes) if replica_context.has_launcher else replica_context.processes
    if cpu_milli is None:
        return "1" if len(replica_context.layout.replicas) > 1 or processes > 1 else None
    return str(max(1, cpu_milli // 1000 // processes))
