from __future__ import annotations

from typing import Annotated

from fastapi import Query
from trainmaster.wire.code import CodeDifference

from api.app.unit_of_work import AppContextDep
from api.auth import JobAccess, JobViewer
from api.code import service
from api.http.routing import new_router

router = new_router("code")


@router.get("/jobs/{job}/code/diff", operation_id="diff_code", summary="Which files of two jobs' code differ")
def diff_code(
    job: JobViewer,
    context: AppContextDep,
    other: Annotated[str, Query(min_length=1, max_length=100, description="The job to compare with, by id or name.")],
) -> CodeDifference:
    """From `job` to `other`, with the texts of small text files. Archives are not unpacked to disk. A damaged or
    oversized archive is an error.
    """
    return service.difference(context, job, JobAccess(job.caller, other, "viewer"))
