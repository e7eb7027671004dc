"""Access to one endpoint of a project, like ``api.auth.JobAccess`` for jobs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Path
from sqlalchemy import or_, select
from sqlalchemy.orm import Session
from trainmaster.spec.errors import suggest

from api.app.token_scopes import Scope
from api.auth import Caller, ProjectMembership, Role, require
from core.db.tables import Deployment, Endpoint
from core.domain.errors import Conflict, NotFound


@dataclass(frozen=True, slots=True)
class EndpointAccess:
    """Access to an endpoint with at least ``role`` in its project; ``load`` checks it. ``ref``: its name or id."""

    caller: Caller
    project: str
    ref: str
    role: Role

    def load(self, session: Session, *, is_changing: bool = False) -> tuple[Endpoint, ProjectMembership]:
        """The row, and the caller's membership in its project. ``is_changing``: lock the row for a change.

        Raises:
            NotFound: the caller may not see the project, or it has no such endpoint.
            Forbidden: the caller's role is below ``role``.
            Conflict: ``is_changing``, and the endpoint is being deleted.
        """
        member = self.caller.member_of(session, self.project, self.role)
        query = select(Endpoint).where(
            Endpoint.project_id == member.project_id,
            Endpoint.deleted_at.is_(None),
            or_(Endpoint.name == self.ref, Endpoint.id == self.ref),
        )
        # A name may equal another endpoint's id: the name wins.
        query = query.order_by((Endpoint.name == self.ref).desc()).limit(1)
        row = session.scalars(query.with_for_update() if is_changing else query).one_or_none()
        if row is None:
            names = select(Endpoint.name).where(Endpoint.project_id == member.project_id, Endpoint.deleted_at.is_(None))
            meant = suggest(self.ref, session.scalars(names.limit(200)))
            hint = f" Did you mean {meant}?" if meant else ""
            raise NotFound(f"Project {self.project!r} has no endpoint {self.ref!r}.{hint}")
        if is_changing and row.deleting_at is not None:
            raise Conflict(f"Endpoint {row.name!r} is being deleted; wait for that, then create a new endpoint.")
        return row, member

    def deployment(self, session: Session, endpoint: Endpoint, name: str) -> Deployment:
        """A deployed model of the endpoint, locked for a change. Raises ``NotFound``."""
        query = select(Deployment).where(Deployment.endpoint_id == endpoint.id, Deployment.ended_at.is_(None))
        found = session.scalars(query.where(Deployment.name == name).with_for_update()).one_or_none()
        if found is None:
            names = sorted(deployment.name for deployment in session.scalars(query))
            has = f"it has {', '.join(names)}" if names else "nothing is deployed to it"
            raise NotFound(f"Endpoint {endpoint.name!r} has no deployed model {name!r}: {has}.")
        return found


def endpoint_of(role: Role) -> Callable[..., Awaitable[EndpointAccess]]:
    """A dependency for ``{project}``/``{endpoint}`` routes; roles above viewer need a token of scope write."""
    authenticated = require(Scope.READ if role == "viewer" else Scope.WRITE)

    async def access(
        project: Annotated[str, Path(description="Name of the project.", max_length=100)],
        endpoint: Annotated[str, Path(description="The endpoint's name, or its id.", max_length=100)],
        caller: Caller = Depends(authenticated),  # noqa: B008 (an annotation cannot see the local name)
    ) -> EndpointAccess:
        return EndpointAccess(caller, project, endpoint, role)

    return access


EndpointViewer = Annotated[EndpointAccess, Depends(endpoint_of("viewer"))]
EndpointMember = Annotated[EndpointAccess, Depends(endpoint_of("member"))]
