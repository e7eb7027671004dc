"""Maps a submission of Ray's client to our job spec."""

from __future__ import annotations

from typing import Any, Final

from api.protocols.kit.errors import NotServed
from api.protocols.kit.job_fields import command_with_packages, own_labels, slug
from api.protocols.ray.requests import JobRequest, RuntimeEnv
from core.domain.contracts.tf_config import past_placeholders
from core.domain.errors import InvalidSpec

ROLE: Final = "worker"
SUBMISSION_LABEL: Final = "ray-submission-id"
_ENTRYPOINT: Final = "RAY_JOB_ENTRYPOINT"
_LABELS: Final = 100  # of the metadata
# Ray's custom resource for an accelerator.
_ACCELERATOR: Final = "accelerator_type:"
_NODE_LABEL: Final = "ray.io/"  # labels that Ray itself gives its nodes
# Field of our spec -> field of Ray's request; the longest first.
_FIELDS: Final = (
    (f"roles.{ROLE}.resources.gpu_type", "entrypoint_resources"),
    (f"roles.{ROLE}.resources.gpus", "entrypoint_num_gpus"),
    (f"roles.{ROLE}.resources.cpu", "entrypoint_num_cpus"),
    (f"roles.{ROLE}.resources.memory", "entrypoint_memory"),
    ("node_selector", "entrypoint_label_selector"),
    ("env", "runtime_env.env_vars"),
    ("image", "runtime_env.image_uri"),
    ("code", "runtime_env.working_dir"),
    ("command", "entrypoint"),
)


def job_spec_of(
    project: str, submission_id: str, request: JobRequest, environment: RuntimeEnv, code: str | None
) -> dict[str, Any]:
    """Our job spec, not yet validated. Raises ``NotServed`` for unsupported resources."""
    resources, selector = _resources(request)
    labels = own_labels({**dict(list(request.metadata.items())[:_LABELS]), SUBMISSION_LABEL: submission_id})
    # Placeholders in an entrypoint are literal text.
    entrypoint, carried = past_placeholders(request.entrypoint, _ENTRYPOINT)
    spec: dict[str, Any] = {
        "name": slug(request.metadata.get("job_name") or submission_id, "ray-job"),
        "project": project,
        "command": _command(entrypoint, environment),
        "env": {**environment.env_vars, **carried},
        # One driver process, however many GPUs; Ray starts it once.
        "roles": {ROLE: {"replicas": 1, "resources": resources, "processes_per_replica": 1}},
        "labels": labels,
        "max_restarts": 0,
        "node_selector": selector,
    }
    if code is not None:
        spec["code"] = code
    if environment.image:
        spec["image"] = environment.image
    return spec


def _command(entrypoint: str, environment: RuntimeEnv) -> str | list[str]:
    if not environment.requirements:
        return entrypoint
    return command_with_packages(environment.requirements, "/bin/sh", "-c", entrypoint)


def _resources(request: JobRequest) -> tuple[dict[str, Any], dict[str, str]]:
    """Resources of the replica, and its node selector."""
    found: dict[str, Any] = {}
    if request.num_cpus:
        found["cpu"] = request.num_cpus
    if request.memory:
        found["memory"] = request.memory
    if request.num_gpus:
        whole = int(request.num_gpus) if request.num_gpus.is_integer() else None
        found["gpus"] = request.num_gpus if whole is None else whole
    for name, amount in request.resources.items():
        if not amount:
            continue
        if not name.startswith(_ACCELERATOR):
            raise NotServed(
                f"entrypoint_resources.{name[:100]}: custom resources are not served by this platform, but for "
                f"{_ACCELERATOR}<model>; choose nodes by their labels (entrypoint_label_selector).",
                field="entrypoint_resources",
            )
        found.setdefault("gpu_type", []).append(name.removeprefix(_ACCELERATOR))
    for name, value in request.label_selector.items():
        if name.startswith(_NODE_LABEL) or value.startswith(("!", "in(")):
            raise NotServed(
                f"entrypoint_label_selector.{name[:100]}: {value[:60]!r} is not served; give a label of nodes and "
                "its one value.",
                field="entrypoint_label_selector",
            )
    return found, dict(request.label_selector)


def translated_message(error: InvalidSpec) -> str:
    """The error message with the request's field names."""
    if not error.errors:
        return error.sentence
    mistakes = []
    for mistake in error.errors[:3]:
        path = str(mistake["path"] or "")
        for ours, theirs in _FIELDS:
            if path == ours or path.startswith((f"{ours}.", f"{ours}[")):
                path = theirs + path.removeprefix(ours)
                break
        hint = f" ({mistake['hint']})" if mistake.get("hint") else ""
        mistakes.append(f"{path}: {mistake['message']}{hint}" if path else f"{mistake['message']}{hint}")
    return "; ".join(mistakes) + "."
