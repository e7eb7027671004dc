from __future__ import annotations

from typing import Annotated

from fastapi import Path
from trainmaster.wire.jobs import AttemptView

from api.attempts.schemas import attempt_view
from api.auth import JobViewer
from api.routing import new_router
from api.work import PlatformDep
from core.db.repositories.attempts import attempt_by_number, attempts_of_job
from core.domain.errors import NotFound

router = new_router("attempts", "/jobs/{job}/attempts")


@router.get("", operation_id="list_attempts", summary="All launches of the gang, oldest first")
def list_attempts(job: JobViewer, platform: PlatformDep) -> list[AttemptView]:
    with platform.read() as work:
        row = job.load(work.session)
        return [attempt_view(*found) for found in attempts_of_job(work.session, row.id)]


@router.get("/{number}", operation_id="get_attempt", summary="One launch with its replicas")
def get_attempt(job: JobViewer, number: Annotated[int, Path(ge=1, le=2**31 - 1)], platform: PlatformDep) -> AttemptView:
    with platform.read() as work:
        row = job.load(work.session)
        found = attempt_by_number(work.session, row.id, number)
        if found is None:
            raise NotFound(f"Job {job.ref!r} has no attempt {number}; it has had {row.attempt_count}.")
        return attempt_view(*found)
