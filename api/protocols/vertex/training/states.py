"""Job states and errors mapped to Vertex AI's."""

from __future__ import annotations

from typing import Any, Final

from core.db.tables import Job
from core.domain.jobs.exits import ExitKind
from core.domain.jobs.states import DesiredState, JobState

# Only states that Google's client handles correctly: it waits for ever on EXPIRED, and takes PAUSED for completed.
_STATES: Final = {
    JobState.QUEUED: "QUEUED",
    JobState.STARTING: "PENDING",
    JobState.RUNNING: "RUNNING",
    JobState.PAUSED: "QUEUED",
    JobState.CANCELLING: "CANCELLING",
    JobState.SUCCEEDED: "SUCCEEDED",
    JobState.FAILED: "FAILED",
    JobState.CANCELLED: "CANCELLED",
    JobState.EXPIRED: "FAILED",
}
# https://cloud.google.com/vertex-ai/docs/reference/rest/v1/JobState and PipelineState.
_NAMES: Final = (
    "UNSPECIFIED",
    "QUEUED",
    "PENDING",
    "RUNNING",
    "SUCCEEDED",
    "FAILED",
    "CANCELLING",
    "CANCELLED",
    "PAUSED",
)
PIPELINE_STATES: Final = tuple(f"PIPELINE_STATE_{name}" for name in _NAMES)
JOB_STATES: Final = tuple(f"JOB_STATE_{name}" for name in (*_NAMES, "EXPIRED", "UPDATING", "PARTIALLY_SUCCEEDED"))
# google.rpc.Code
CANCELLED, INVALID_ARGUMENT, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, FAILED_PRECONDITION, INTERNAL = 1, 3, 4, 8, 9, 13
_CODES: Final = {
    ExitKind.CANCELLED: CANCELLED,
    ExitKind.USER_ERROR: INVALID_ARGUMENT,
    ExitKind.DEADLINE: DEADLINE_EXCEEDED,
    ExitKind.OUT_OF_MEMORY: RESOURCE_EXHAUSTED,
    ExitKind.CAPACITY: RESOURCE_EXHAUSTED,
}


def state_of(job: Job) -> str:
    """The state without its prefix, such as ``RUNNING``."""
    state = JobState(job.state)
    if job.desired_state == DesiredState.CANCEL and not state.is_terminal:
        return "CANCELLING"
    return _STATES[state]


def error_of(job: Job) -> dict[str, Any] | None:
    """A ``google.rpc.Status`` if the job ended without success."""
    state = JobState(job.state)
    if not state.is_terminal or state is JobState.SUCCEEDED:
        return None
    job_exit = job.exit or {}
    kinds = {kind.value: code for kind, code in _CODES.items()}
    if state is JobState.CANCELLED:
        code = CANCELLED
    elif state is JobState.EXPIRED:
        code = DEADLINE_EXCEEDED
    else:
        code = kinds.get(str(job_exit.get("kind")), INTERNAL)
    return {"code": code, "message": str(job_exit.get("sentence") or f"The job is {state.value}.")}
