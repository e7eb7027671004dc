"""Job states and exits mapped to Ray's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from core.db.tables import Job
from core.domain.jobs.exits import ExitKind
from core.domain.jobs.states import DesiredState, JobState

_STATES: Final = {
    JobState.QUEUED: "PENDING",
    JobState.STARTING: "PENDING",
    JobState.PAUSED: "PENDING",
    JobState.RUNNING: "RUNNING",
    JobState.CANCELLING: "RUNNING",
    JobState.SUCCEEDED: "SUCCEEDED",
    JobState.FAILED: "FAILED",
    JobState.EXPIRED: "FAILED",
    JobState.CANCELLED: "STOPPED",
}
# Exits that are Ray's JOB_ENTRYPOINT_COMMAND_ERROR; the message has details.
_OF_PROGRAM: Final = frozenset({ExitKind.USER_ERROR, ExitKind.OUT_OF_MEMORY})
_PROGRAM_ERROR: Final = "JOB_ENTRYPOINT_COMMAND_ERROR"


@dataclass(frozen=True, slots=True)
class RayStatus:
    """``exit_code``: the driver's, once it has exited."""

    status: str
    message: str
    error_type: str | None = None
    exit_code: int | None = None


def is_waiting(job: Job) -> bool:
    return job.state in (JobState.QUEUED, JobState.STARTING)


def status_of(job: Job, waits: str) -> RayStatus:
    """``waits``: the planner's wait reason."""
    state = JobState(job.state)
    status = _STATES[state]
    if not state.is_terminal:
        return RayStatus(status, _message(job, state, waits))
    job_exit = job.exit or {}
    code = job_exit.get("exit_code")
    sentence = str(job_exit.get("sentence") or "")
    if state is JobState.SUCCEEDED:
        return RayStatus(status, "Job finished successfully.", exit_code=code)
    is_of_program = state is JobState.FAILED and job_exit.get("kind") in {kind.value for kind in _OF_PROGRAM}
    return RayStatus(status, sentence or f"The job is {state.value}.", _PROGRAM_ERROR if is_of_program else None, code)


def _message(job: Job, state: JobState, waits: str) -> str:
    if job.desired_state == DesiredState.CANCEL or state is JobState.CANCELLING:
        return "Job is being stopped."
    if state is JobState.RUNNING:
        return "Job is currently running."
    if state is JobState.PAUSED:
        return "Job is paused; `trainmaster resume` lets it go on."
    return f"Job has not started yet. {waits}".strip()
