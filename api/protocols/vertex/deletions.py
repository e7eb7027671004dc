"""Deletions of job-backed resources: long-running operations that end when the job's last processes are gone.

An operation has no row: it is done when its job is deleted, and polling it continues the deletion.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import select

from api.app.unit_of_work import AppContext
from api.auth import Caller
from api.protocols.vertex.names import Parent, member_of
from api.protocols.vertex.training import jobs
from core.db.tables import Job, VertexResource
from core.domain.errors import Conflict, NotFound

DELETION: Final = "delete"


def delete(context: AppContext, caller: Caller, parent: Parent, collection: str, resource_id: str) -> dict[str, Any]:
    """Start or continue the deletion of an ended job; the operation may be done already."""
    with context.write() as work:
        found = jobs.find(work.session, caller, parent, collection, resource_id, "member", verb=f"{collection}.delete")
        if found.is_trial:
            raise Conflict(f"{found.name} is the job of a trial; delete the hyperparameter tuning job.")
        if collection == "customJobs" and _has_pipeline(work.session, resource_id):
            raise Conflict(f"{found.name} is the job of a training pipeline; delete the pipeline.")
        is_done = jobs.delete(work, caller, found)
        found.row.deletion_requested_at = found.row.deletion_requested_at or work.now
    return deletion_view(found.name, is_done=is_done)


def poll_deletion(
    context: AppContext, caller: Caller, parent: Parent, collection: str, resource_id: str
) -> dict[str, Any]:
    """The current state of a job's deletion. Raises ``NotFound`` if none was started."""
    with context.read() as work:
        member = member_of(work.session, caller, parent, "member", verb=f"{collection}.get")
        query = (
            select(Job.deleted_at, VertexResource.deletion_requested_at)
            .join(VertexResource, VertexResource.job_id == Job.id)
            .where(
                VertexResource.collection == collection,
                VertexResource.id == resource_id,
                VertexResource.project_id == member.project_id,
            )
        )
        row = work.session.execute(query).one_or_none()
    name = parent.name_of(collection, resource_id)
    if row is None or row == (None, None):
        raise NotFound(f"Operation {name}/operations/{DELETION} is not found.")
    if row[0] is not None:
        return deletion_view(name, is_done=True)
    return delete(context, caller, parent, collection, resource_id)


def _has_pipeline(session: Any, job_id: str) -> bool:
    query = select(VertexResource.id).where(
        VertexResource.collection == "trainingPipelines", VertexResource.job_id == job_id
    )
    return session.execute(query).first() is not None


def deletion_view(name: str, *, is_done: bool) -> dict[str, Any]:
    """The operation that deletes the resource ``name``."""
    done = {"done": True, "response": {"@type": "type.googleapis.com/google.protobuf.Empty"}} if is_done else {}
    return {"name": f"{name}/operations/{DELETION}", **done}
