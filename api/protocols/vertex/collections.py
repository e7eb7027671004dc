"""The collections that share one set of routes: their interface, its implementation for jobs, and their registry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.app.unit_of_work import AppContext
from api.protocols.vertex.long_running import deletion_view, operation_not_found
from api.protocols.vertex.names import VertexCall
from api.protocols.vertex.paging import ListQuery
from api.protocols.vertex.serving import batch_jobs, endpoints, models
from api.protocols.vertex.training import custom_jobs, jobs, pipelines
from api.protocols.vertex.tuning import resources as tuning
from core.db.tables import Job, VertexResource
from core.domain.errors import Conflict


class Collection(Protocol):
    """Every method raises ``NotFound`` or ``Forbidden``; ``create`` also ``InvalidRequest`` and ``NotServed``."""

    def create(self, call: VertexCall, raw: Any) -> str:
        """Returns the new resource's id."""
        ...

    def get(self, call: VertexCall, resource_id: str) -> dict[str, Any]: ...

    def page(self, call: VertexCall, query: ListQuery) -> dict[str, Any]: ...

    def cancel(self, call: VertexCall, resource_id: str) -> None: ...

    def delete(self, call: VertexCall, resource_id: str) -> dict[str, Any]:
        """Returns an operation. Raises ``Conflict`` if the resource has not ended."""
        ...

    def poll_deletion(self, call: VertexCall, resource_id: str) -> dict[str, Any]:
        """The current state of the deletion. Raises ``NotFound`` if none was started."""
        ...


@dataclass(frozen=True, slots=True)
class JobCollection:
    """Job-backed resources. ``make`` creates one, ``view`` renders it."""

    name: str
    make: Callable[[VertexCall, Any], str]
    view: Callable[[AppContext, jobs.JobResource], dict[str, Any]]

    def create(self, call: VertexCall, raw: Any) -> str:
        return self.make(call, raw)

    def get(self, call: VertexCall, resource_id: str) -> dict[str, Any]:
        with call.context.read() as work:
            resource = jobs.find(work.session, call, self.name, resource_id, "viewer", verb=f"{self.name}.get")
            return self.view(call.context, resource)

    def page(self, call: VertexCall, query: ListQuery) -> dict[str, Any]:
        with call.context.read() as work:
            return jobs.list_jobs(work, call, self.name, query, lambda found: self.view(call.context, found))

    def cancel(self, call: VertexCall, resource_id: str) -> None:
        with call.context.write() as work:
            resource = jobs.find(work.session, call, self.name, resource_id, "member", verb=f"{self.name}.cancel")
            jobs.cancel(work, call.caller, resource)

    def delete(self, call: VertexCall, resource_id: str) -> dict[str, Any]:
        """Start or continue the deletion of an ended job. It is done when the job's last processes are gone."""
        verb = f"{self.name}.delete"
        with call.context.write() as work:
            resource = jobs.find(work.session, call, self.name, resource_id, "member", verb=verb)
            if resource.is_trial:
                raise Conflict(f"{resource.name} is the job of a trial; delete the hyperparameter tuning job.")
            if self.name == custom_jobs.COLLECTION and _has_pipeline(work.session, resource_id):
                raise Conflict(f"{resource.name} is the job of a training pipeline; delete the pipeline.")
            is_done = jobs.delete(work, call.caller, resource)
            resource.row.deletion_requested_at = resource.row.deletion_requested_at or work.now
        return deletion_view(resource.name, is_done=is_done)

    def poll_deletion(self, call: VertexCall, resource_id: str) -> dict[str, Any]:
        """The operation has no row: it is done when its job is deleted, and polling it continues the deletion."""
        with call.context.read() as work:
            member = call.member_of(work.session, "member", verb=f"{self.name}.get")
            query = (
                select(Job.deleted_at, VertexResource.deletion_requested_at)
                .join(VertexResource, VertexResource.job_id == Job.id)
                .where(
                    VertexResource.collection == self.name,
                    VertexResource.id == resource_id,
                    VertexResource.project_id == member.project_id,
                )
            )
            row = work.session.execute(query).one_or_none()
        name = call.parent.name_of(self.name, resource_id)
        if row is None or row == (None, None):
            raise operation_not_found(name)
        if row[0] is not None:
            return deletion_view(name, is_done=True)
        return self.delete(call, resource_id)


def _has_pipeline(session: Session, job_id: str) -> bool:
    query = select(VertexResource.id).where(
        VertexResource.collection == pipelines.COLLECTION, VertexResource.job_id == job_id
    )
    return session.execute(query).first() is not None


COLLECTIONS: Final[dict[str, Collection]] = {
    custom_jobs.COLLECTION: JobCollection(custom_jobs.COLLECTION, custom_jobs.create, custom_jobs.view),
    pipelines.COLLECTION: JobCollection(
        pipelines.COLLECTION,
        pipelines.create,
        lambda _context, found: pipelines.view(found),
    ),
    tuning.COLLECTION: tuning.TuningJobs(),
    models.COLLECTION: models.Models(),
    endpoints.COLLECTION: endpoints.Endpoints(),
    batch_jobs.COLLECTION: JobCollection(batch_jobs.COLLECTION, batch_jobs.create, batch_jobs.view),
}
