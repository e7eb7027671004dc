"""Orders for drivers, of which a test says only what it is about."""

from __future__ import annotations

from typing import Any

from core.domain.ids import AttemptId, JobId
from core.domain.sharing.resources import ResourceRequest
from executors.base import ReplicaKey, ReplicaOrder


def bare_order(
    attempt: str = "att-1", role: str = "worker", index: int = 0, generation: int = 1, **fields: Any
) -> ReplicaOrder:
    """One replica of job ``job-1`` that runs ``true``, asks for nothing and mounts nothing."""
    stated: dict[str, Any] = {
        "job_name": "job",
        "attempt_number": 1,
        "node": "node-0",
        "command": ("true",),
        "args": (),
        "env": {},
        "process_env": ({},),
        "request": ResourceRequest(),
        **fields,
    }
    return ReplicaOrder(key=ReplicaKey(JobId("job-1"), AttemptId(attempt), role, index, generation), **stated)
