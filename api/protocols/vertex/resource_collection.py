"""What the routes need of one kind of resource, and the two kinds that are a job each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from api.app.unit_of_work import Platform
from api.auth import Caller
from api.protocols.vertex.names import Parent
from api.protocols.vertex.operations import deletions
from api.protocols.vertex.training import jobs


class Collection(Protocol):
    """Every method raises ``NotFound`` or ``Forbidden``; ``create`` also ``InvalidRequest`` and ``NotServed``."""

    def create(self, platform: Platform, caller: Caller, parent: Parent, raw: Any) -> str:
        """Gives the new resource's id."""
        ...

    def get(self, platform: Platform, caller: Caller, parent: Parent, resource_id: str) -> dict[str, Any]: ...

    def page(self, platform: Platform, caller: Caller, parent: Parent, query: jobs.ListQuery) -> dict[str, Any]: ...

    def cancel(self, platform: Platform, caller: Caller, parent: Parent, resource_id: str) -> None: ...

    def delete(self, platform: Platform, caller: Caller, parent: Parent, resource_id: str) -> dict[str, Any]:
        """Gives an operation. Raises ``Conflict``: it has not ended."""
        ...

    def look(self, platform: Platform, caller: Caller, parent: Parent, resource_id: str) -> dict[str, Any]:
        """The operation of its deletion as it is now. Raises ``NotFound``: nobody began one."""
        ...


@dataclass(frozen=True, slots=True)
class JobCollection:
    """Resources that are a row beside a job. ``make``: makes one, ``view``: shows it."""

    name: str
    make: Callable[[Platform, Caller, Parent, Any], str]
    view: Callable[[Platform, jobs.Found], dict[str, Any]]

    def create(self, platform: Platform, caller: Caller, parent: Parent, raw: Any) -> str:
        return self.make(platform, caller, parent, raw)

    def get(self, platform: Platform, caller: Caller, parent: Parent, resource_id: str) -> dict[str, Any]:
        with platform.read() as work:
            found = jobs.find(work.session, caller, parent, self.name, resource_id, "viewer", verb=f"{self.name}.get")
            return self.view(platform, found)

    def page(self, platform: Platform, caller: Caller, parent: Parent, query: jobs.ListQuery) -> dict[str, Any]:
        with platform.read() as work:
            return jobs.list_page(work, caller, parent, self.name, query, lambda found: self.view(platform, found))

    def cancel(self, platform: Platform, caller: Caller, parent: Parent, resource_id: str) -> None:
        with platform.write() as work:
            found = jobs.find(
                work.session, caller, parent, self.name, resource_id, "member", verb=f"{self.name}.cancel"
            )
            jobs.cancel(work, caller, found)

    def delete(self, platform: Platform, caller: Caller, parent: Parent, resource_id: str) -> dict[str, Any]:
        return deletions.delete(platform, caller, parent, self.name, resource_id)

    def look(self, platform: Platform, caller: Caller, parent: Parent, resource_id: str) -> dict[str, Any]:
        return deletions.look(platform, caller, parent, self.name, resource_id)
