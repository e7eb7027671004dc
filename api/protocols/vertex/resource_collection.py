"""What the routes need of one kind of resource, and the two kinds that are a job each."""

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
        """Gives the new resource's id."""
        ...

    def get(self, context: AppContext, caller: Caller, parent: Parent, resource_id: str) -> dict[str, Any]: ...

    def page(self, context: AppContext, caller: Caller, parent: Parent, query: jobs.ListQuery) -> dict[str, Any]: ...

    def cancel(self, context: AppContext, caller: Caller, parent: Parent, resource_id: str) -> None: ...

    def delete(self, context: AppContext, caller: Caller, parent: Parent, resource_id: str) -> dict[str, Any]:
        """Gives an operation. Raises ``Conflict``: it has not ended."""
        ...

    def poll_deletion(self, context: AppContext, caller: Caller, parent: Parent, resource_id: str) -> dict[str, Any]:
        """The operation of its deletion as it is now. Raises ``NotFound``: nobody began one."""
        ...


@dataclass(frozen=True, slots=True)
class JobCollection:
    """Resources that are a row beside a job. ``make``: makes one, ``view``: shows it."""

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
