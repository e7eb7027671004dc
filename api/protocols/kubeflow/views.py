"""TrainJobs, pods and events as Kubernetes' objects."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from trainmaster.spec import JobSpec
from trainmaster.wire.jobs import WaitReasonView

from api.protocols.kit.json_values import timestamp
from api.protocols.kubeflow.jobs import Pod
from api.protocols.kubeflow.manifests import GROUP, NODE, PROCESSES, RUNTIME_KIND, RUNTIME_LABEL, VERSION, image_of
from core.db.tables import Event, Job
from core.domain.jobs.states import JobState, ReplicaState
from core.settings import Settings

_PHASES: Final = {
    ReplicaState.PENDING: "Pending",
    ReplicaState.STARTING: "Pending",
    ReplicaState.RUNNING: "Running",
    ReplicaState.SUCCEEDED: "Succeeded",
    ReplicaState.FAILED: "Failed",
    ReplicaState.LOST: "Failed",
    ReplicaState.STOPPED: "Failed",
}
# A pod condition of Kubernetes; in Kubeflow a waiting TrainJob shows it on its pods.
_SCHEDULED: Final = "Scheduled"
_WARNING_EVENTS: Final = (".failed", ".lost", ".given_up", ".expired")


def job_view(
    job: Job, namespace: str, waits: WaitReasonView | None = None, *, is_listed: bool = False
) -> dict[str, Any]:
    """The TrainJob with the fields that clients read; ``status`` is empty until there is a condition.

    Args:
        waits: why it waits.
        is_listed: without what makes a list of hundreds large and no client reads of one: command, arguments and
        environment,
            which hold the source of whole functions.
    """
    spec = JobSpec.model_validate(job.spec)
    worker = spec.roles["worker"]
    labels = dict(spec.labels)
    runtime = labels.pop(RUNTIME_LABEL, "")
    trainer: dict[str, Any] = {"numNodes": worker.replicas}
    if not is_listed:
        trainer["env"] = [{"name": name, "value": value} for name, value in worker.env.items()]
        trainer["args"] = list(worker.args or ())
    if isinstance(worker.command, tuple | list) and not is_listed:
        trainer["command"] = list(worker.command)
    if worker.image:
        trainer["image"] = worker.image
    if limits := _limits(spec):
        trainer["resourcesPerNode"] = {"requests": limits, "limits": limits}
    conditions = _conditions(job, waits)
    return {
        "apiVersion": VERSION,
        "kind": "TrainJob",
        "metadata": {
            "name": job.name,
            "namespace": namespace,
            "uid": job.id,
            "creationTimestamp": timestamp(job.created_at),
            **({"labels": labels} if labels else {}),
        },
        "spec": {
            "runtimeRef": {"apiGroup": GROUP, "kind": RUNTIME_KIND, "name": runtime},
            "trainer": trainer,
            **({} if spec.max_run_time is None else {"activeDeadlineSeconds": round(spec.max_run_time)}),
        },
        "status": {"conditions": conditions} if conditions else {},
    }


def _conditions(job: Job, waits: WaitReasonView | None) -> list[dict[str, Any]]:
    # No condition while it starts or runs: the client counts pods only if there is none.
    state = JobState(job.state)
    sentence = str((job.exit or {}).get("sentence") or f"The job is {state.value}.")
    if state is JobState.SUCCEEDED:
        condition = ("Complete", "JobsCompleted", sentence)
    elif state.is_terminal:
        cause = str((job.exit or {}).get("kind") or state.value) if state is JobState.FAILED else state.value
        condition = ("Failed", _camel_case(cause), sentence)
    elif state is JobState.PAUSED:
        condition = ("Suspended", "Suspended", f"The job is paused; `trainmaster resume {job.name}` lets it go on.")
    elif state is JobState.QUEUED and waits is not None:
        return [_condition(_SCHEDULED, "False", _camel_case(waits.code), waits.sentence, job.queued_at)]
    else:
        return []
    return [_condition(condition[0], "True", condition[1], condition[2], job.finished_at or job.updated_at)]


def _condition(kind: str, status: str, reason: str, message: str, at: datetime) -> dict[str, Any]:
    condition = {"type": kind, "status": status, "reason": reason, "message": message}
    return {**condition, "lastTransitionTime": timestamp(at)}


def pod_view(pod: Pod, namespace: str, settings: Settings) -> dict[str, Any]:
    spec = JobSpec.model_validate(pod.job.spec)
    worker = spec.roles["worker"]
    container: dict[str, Any] = {"name": NODE, "image": worker.image or image_of(settings)}
    limits = _limits(spec)
    if limits.keys() - {"memory"}:  # from memory alone the client cannot derive a device
        container["resources"] = {"limits": limits, "requests": limits}
    if PROCESSES in worker.env:
        container["env"] = [{"name": PROCESSES, "value": worker.env[PROCESSES]}]
    replica = pod.replica
    status: dict[str, Any] = {"phase": _PHASES[ReplicaState(replica.state)]}
    if replica.started_at is not None:
        status["startTime"] = timestamp(replica.started_at)
    if sentence := (replica.exit or {}).get("sentence") or replica.detail:
        status["message"] = str(sentence)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod.name,
            "namespace": namespace,
            "uid": replica.id,
            "creationTimestamp": timestamp(pod.attempt.created_at),
            "labels": {
                "jobset.sigs.k8s.io/jobset-name": pod.job.name,
                "jobset.sigs.k8s.io/replicatedjob-name": NODE,
                "batch.kubernetes.io/job-completion-index": str(replica.index),
            },
        },
        "spec": {"nodeName": replica.node, "containers": [container]},
        "status": status,
    }


def event_view(event: Event, name: str, namespace: str) -> dict[str, Any]:
    fields = {
        "reason": _camel_case(event.kind),
        "message": event.reason or f"{event.kind} by {event.actor}",
        "type": "Warning" if event.kind.endswith(_WARNING_EVENTS) else "Normal",
        "source": {"component": event.actor},
    }
    return _event(fields, str(event.id), name, namespace, event.at)


def waiting_view(job: Job, namespace: str, waits: WaitReasonView) -> dict[str, Any]:
    """The wait reason as an event, as Kubernetes' scheduler sends it; the client shows events."""
    fields = {
        "reason": _camel_case(waits.code),
        "message": waits.sentence,
        "type": "Warning" if waits.is_infeasible else "Normal",
        "source": {"component": "scheduler"},
    }
    return _event(fields, "waits", job.name, namespace, job.queued_at)


def _event(fields: dict[str, Any], key: str, name: str, namespace: str, at: datetime) -> dict[str, Any]:
    stamp = timestamp(at)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.{key}", "namespace": namespace, "creationTimestamp": stamp},
        "involvedObject": {"apiVersion": VERSION, "kind": "TrainJob", "name": name, "namespace": namespace},
        **fields,
        "count": 1,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
    }


def _camel_case(text: str) -> str:
    """``job.queued`` as ``JobQueued``."""
    return "".join(word.capitalize() for word in text.replace(".", "_").split("_"))


def _limits(spec: JobSpec) -> dict[str, str]:
    resources = spec.roles["worker"].resources.model_dump(mode="json", exclude_defaults=True)
    limits: dict[str, str] = {name: str(resources[name]) for name in ("cpu", "memory") if name in resources}
    if "gpus" in resources:
        kinds = resources.get("gpu_type")
        kind = kinds if isinstance(kinds, str) else next(iter(kinds or ()), None)
        limits["nvidia.com/gpu" if kind is None else f"nvidia.com/mig-{kind.removeprefix('mig-')}"] = str(
            resources["gpus"]
        )
    return limits
