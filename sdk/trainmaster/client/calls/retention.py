"""Retention policies, and pinned jobs."""

from __future__ import annotations

from collections.abc import Mapping

from trainmaster.client.calls.build import path, typed
from trainmaster.client.steps import Call
from trainmaster.wire.jobs import JobDetail
from trainmaster.wire.retention import RetentionPolicyUpdate, RetentionPolicyView, RetentionPreview


def get_retention_policy(project: str) -> Call[RetentionPolicyView]:
    """For how long the project keeps data of ended jobs."""
    return typed(
        RetentionPolicyView, "get_retention_policy", "GET", path("/projects/{project}/retention", project=project)
    )


def set_retention_policy(project: str, keep: Mapping[str, str | float | None]) -> Call[RetentionPolicyView]:
    """Change the policy, such as ``{"outputs": "30d", "metrics": None}``; kinds that are not named stay."""
    at = path("/projects/{project}/retention", project=project)
    return typed(
        RetentionPolicyView, "update_retention_policy", "PATCH", at, body=RetentionPolicyUpdate(keep=dict(keep))
    )


def preview_retention_policy(
    project: str, keep: Mapping[str, str | float | None] | None = None
) -> Call[RetentionPreview]:
    """What the policy, with the changes ``keep``, would delete now, and the bytes that it frees."""
    at = path("/projects/{project}/retention/preview", project=project)
    body = RetentionPolicyUpdate(keep=dict(keep or {}))
    return typed(RetentionPreview, "preview_retention_policy", "POST", at, body=body, is_repeatable=True)


def pin_job(job: str) -> Call[JobDetail]:
    """Exempt the job from retention."""
    return typed(JobDetail, "pin_job", "PUT", path("/jobs/{job}/pin", job=job))


def unpin_job(job: str) -> Call[JobDetail]:
    """Let retention delete the job's data again."""
    return typed(JobDetail, "unpin_job", "DELETE", path("/jobs/{job}/pin", job=job))
