"""The interface between routes and one type of resource, and its implementation for job-backed types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from api.app.unit_of_work import AppContext
from api.auth import Caller
from api.protocols.vertex.names import Parent
from api.protocols.vertex.operations import deletions
from api.protocols.vertex.training import jobs


class Collection(Protocol):
    """Every method raises ``NotFound`` or ``Forbidden``; ``create`` also ``InvalidRequest`` and ``NotServed``."""

    def create(self, context: AppContext, caller: Caller, parent: Parent, raw: Any) -> str:
        """Returns the new resource's id."""
        ...

    def get(self, context: AppContext, caller: Caller, parent: Parent, resource_id: str) -> dict[str, Any]: ...

    def page(self, context: AppContext, caller: Caller, parent: Parent, query: jobs.ListQuery) -> dict[str, Any]: ...

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

    def page(self, context: AppContext, caller: Caller, parent: Parent, query: jobs.ListQuery) -> dict[str, Any]:
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
