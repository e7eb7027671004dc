"""Resource names: ``projects/<ours>/locations/<a region of theirs>/<collection>/<id>``, and routes' parameters."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import Body, Depends, Path
from sqlalchemy.orm import Session

from api.app.unit_of_work import AppContext, AppContextDep
from api.auth import Caller, ProjectMembership, Reader, Role, Writer
from api.protocols.kit.vertex_table import table_of
from core.domain.errors import Forbidden, InvalidRequest, NotFound

_LOCATION: Final = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?|-")
ANY_LOCATION: Final = "-"
PARENT: Final = "/v1/projects/{project}/locations/{location}"
# The SDK polls operations here over REST: it is the first of its address rules.
PARENT_OF_PROGRESS: Final = PARENT.replace("/v1/", "/ui/", 1)
ResourceId = Annotated[str, Path(max_length=128)]
RawBody = Annotated[dict[str, Any], Body()]


@dataclass(frozen=True, slots=True)
class Parent:
    """A resource's project and location. ``location``: stored as sent; jobs of all locations share one cluster.
    ``own``: our project to which the table maps ``project``.
    """

    project: str
    location: str
    own: str

    def name_of(self, *parts: str) -> str:
        return "/".join(("projects", self.project, "locations", self.location, *parts))


def member_of(session: Session, caller: Caller, parent: Parent, role: Role, *, verb: str) -> ProjectMembership:
    """The caller's membership of the project. Raises ``Forbidden``, as Vertex AI does for unknown projects, too."""
    try:
        return caller.member_of(session, parent.own, role)
    except NotFound:
        own = ", ".join(sorted(member.project for member in caller.projects.values())[:5])
        hint = f" Yours here are {own}." if own else " You are a member of no project here."
        raise Forbidden(
            f"Permission 'aiplatform.{verb}' denied on resource '//aiplatform.googleapis.com/"
            f"{parent.name_of()}' (or it may not exist).{hint}"
        ) from None


@dataclass(frozen=True, slots=True)
class VertexCall:
    """A request to resources of a project and location, by an authenticated user."""

    context: AppContext
    caller: Caller
    parent: Parent

    def member_of(self, session: Session, role: Role, *, verb: str) -> ProjectMembership:
        """As the function :func:`member_of`."""
        return member_of(session, self.caller, self.parent, role, verb=verb)

    def demand_member(self, role: Role, *, verb: str) -> None:
        """Raises ``Forbidden``, or ``InvalidRequest`` if no location is given."""
        if self.parent.location == ANY_LOCATION:
            raise InvalidRequest("A location is needed; write one such as us-central1.", field="location")
        with self.context.read() as work:
            self.member_of(work.session, role, verb=verb)


def _parent(
    project: Annotated[str, Path(max_length=100)], location: Annotated[str, Path(max_length=64)], context: AppContextDep
) -> Parent:
    """Raises ``InvalidRequest`` for an invalid location."""
    if not _LOCATION.fullmatch(location):
        raise InvalidRequest(f"Location {location[:100]!r} is none; write one such as us-central1.", field="location")
    return Parent(project, location, table_of(context).project(project))


ParentDep = Annotated[Parent, Depends(_parent)]


def _reading(context: AppContextDep, caller: Reader, parent: ParentDep) -> VertexCall:
    return VertexCall(context, caller, parent)


def _writing(context: AppContextDep, caller: Writer, parent: ParentDep) -> VertexCall:
    return VertexCall(context, caller, parent)


ReadCall = Annotated[VertexCall, Depends(_reading)]
WriteCall = Annotated[VertexCall, Depends(_writing)]
