"""The collections that share one set of routes: their interface, its implementation for jobs, and their registry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from api.app.unit_of_work import AppContext
from api.auth import Caller
from api.protocols.vertex import deletions
from api.protocols.vertex.names import Parent
from api.protocols.vertex.paging import ListQuery
from api.protocols.vertex.registry import models
from api.protocols.vertex.serving import batch_jobs, endpoints
from api.protocols.vertex.training import custom_jobs, jobs, pipelines
from api.protocols.vertex.tuning import resources as tuning


class Collection(Protocol):
    """Every method raises ``NotFound`` or ``Forbidden``; ``create`` also ``InvalidRequest`` and ``NotServed``."""

    def create(self, context: AppContext, caller: Caller, parent: Parent, raw: Any) -> str:
        """Returns the new resource's id."""
        ...

    def get(self, context: AppContext, caller: Caller, parent: Parent, resource_id: str) -> dict[str, Any]: ...

    def page(self, context: AppContext, caller: Caller, parent: Parent, query: ListQuery) -> dict[str, Any]: ...

    def cancel(self, context: AppContext, caller: Caller, parent: Parent, resource_id: str) -> None: ...

    def delete(self, context: AppContext, caller: Caller, parent: Parent, resource_id: str) -> dict[str, Any]:
        """Returns an operation. Raises ``Conflict`` if the resource has not ended."""
        ...

    def poll_deletion(self, context: AppContext, caller: Caller, parent: Parent, resource_id: str) -> dict[str, Any]:
        """The current state of the deletion. Raises ``NotFound`` if none was started."""
        ...


@dataclass(frozen=True, slots=True)
class JobCollection:
    """Job-backed resources. ``make`` creates one, ``view`` renders it."""

    name: str
    make: Callable[[AppContext, Caller, Parent, Any], str]
    view: Callable[[AppContext, jobs.JobResource], dict[str, Any]]

    def create(self, context: AppContext, caller: Caller, parent: Parent, raw: Any) -> str:
        return self.make(context, caller, parent, raw)

    def get(self, context: AppContext, caller: Caller, parent: Parent, resource_id: str) -> dict[str, Any]:
        with context.read() as work:
            found = jobs.find(work.session, caller, parent, self.name, resource_id, "viewer", verb=f"{self.name}.get")
            return self.view(context, found)

    def page(self, context: AppContext, caller: Caller, parent: Parent, query: ListQuery) -> dict[str, Any]:
        with context.read() as work:
            return jobs.list_page(work, caller, parent, self.name, query, lambda found: self.view(context, found))

    def cancel(self, context: AppContext, caller: Caller, parent: Parent, resource_id: str) -> None:
        with context.write() as work:
            found = jobs.find(
                work.session, caller, parent, self.name, resource_id, "member", verb=f"{self.name}.cancel"
            )
            jobs.cancel(work, caller, found)

    def delete(self, context: AppContext, caller: Caller, parent: Parent, resource_id: str) -> dict[str, Any]:
        return deletions.delete(context, caller, parent, self.name, resource_id)

    def poll_deletion(self, context: AppContext, caller: Caller, parent: Parent, resource_id: str) -> dict[str, Any]:
        return deletions.poll_deletion(context, caller, parent, self.name, resource_id)


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
