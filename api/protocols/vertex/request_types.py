"""Paths, parameters and bodies that the routes share."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import Body, Depends, Path

from api.app.unit_of_work import AppContextDep
from api.protocols.vertex.names import Parent, parent_of
from api.protocols.vertex.table import table_of

PARENT: Final = "/v1/projects/{project}/locations/{location}"
# The SDK polls operations here over REST: it is the first of its address rules.
PARENT_OF_PROGRESS: Final = PARENT.replace("/v1/", "/ui/", 1)
ResourceId = Annotated[str, Path(max_length=128)]
RawBody = Annotated[dict[str, Any], Body()]


def _parent(
    project: Annotated[str, Path(max_length=100)],
    location: Annotated[str, Path(max_length=64)],
    context: AppContextDep,
) -> Parent:
    return parent_of(project, location, table_of(context).project(project))


ParentDep = Annotated[Parent, Depends(_parent)]
