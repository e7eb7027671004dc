"""Vertex AI's REST API, as far as ``google-cloud-aiplatform`` needs it for training: a thin adapter over our own jobs.

Not in our own description: it is Google's, and versioned by it. At the root, where ``api_endpoint`` points to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import APIRouter, Body, Depends, Path, Query, Response

from api.auth import Caller, Reader, Writer
from api.vertex import custom_jobs, jobs, operations, training_pipelines
from api.vertex.answers import NotServed, VertexRoute, answer
from api.vertex.names import Parent, parent_of
from api.vertex.table import table_of
from api.work import Platform, PlatformDep
from core.domain.errors import NotFound

router = APIRouter(route_class=VertexRoute, include_in_schema=False)

PARENT: Final = "/v1/projects/{project}/locations/{location}"
_Id = Annotated[str, Path(max_length=128)]
_Body = Annotated[dict[str, Any], Body()]


@dataclass(frozen=True, slots=True)
class Collection:
    """How resources of one kind are made and shown."""

    create: Callable[[Platform, Caller, Parent, Any], str]
    view: Callable[[Platform, jobs.Found], dict[str, Any]]


COLLECTIONS: Final = {
    custom_jobs.COLLECTION: Collection(custom_jobs.create, custom_jobs.view),
    training_pipelines.COLLECTION: Collection(
        training_pipelines.create, lambda _platform, found: training_pipelines.view(found)
    ),
}


def _parent(
    project: Annotated[str, Path(max_length=100)], location: Annotated[str, Path(max_length=64)], platform: PlatformDep
) -> Parent:
    return parent_of(project, location, table_of(platform.settings).project(project))


ParentDep = Annotated[Parent, Depends(_parent)]


def _list_query(
    filter: Annotated[str, Query()] = "",  # noqa: A002 (as Google names it)
    pageSize: Annotated[int, Query(ge=0)] = 0,  # noqa: N803
    pageToken: Annotated[str, Query(max_length=500)] = "",  # noqa: N803
    orderBy: Annotated[str, Query(max_length=500)] = "",  # noqa: N803
) -> jobs.ListQuery:
    return jobs.ListQuery(filter, pageSize, pageToken, orderBy)


def _add(collection: str, kind: Collection) -> None:
    """The routes of one collection."""

    def create(body: _Body, parent: ParentDep, caller: Writer, platform: PlatformDep) -> Response:
        resource_id = kind.create(platform, caller, parent, body)
        with platform.read() as work:
            return answer(kind.view(platform, _find(work.session, caller, parent, resource_id, "viewer", "get")))

    def list_all(
        parent: ParentDep,
        caller: Reader,
        platform: PlatformDep,
        query: Annotated[jobs.ListQuery, Depends(_list_query)],
    ) -> Response:
        with platform.read() as work:
            page = jobs.list_page(work, caller, parent, collection, query, lambda found: kind.view(platform, found))
        return answer(page)

    def get(resource: _Id, parent: ParentDep, caller: Reader, platform: PlatformDep) -> Response:
        with platform.read() as work:
            return answer(kind.view(platform, _find(work.session, caller, parent, resource, "viewer", "get")))

    def verb(resource: _Id, action: str, parent: ParentDep, caller: Writer, platform: PlatformDep) -> Response:
        if action != "cancel":
            raise NotServed(f"{collection}:{action[:50]} is not served by this platform.")
        with platform.write() as work:
            jobs.cancel(work, caller, _find(work.session, caller, parent, resource, "member", "cancel"))
        return answer({})

    def delete(resource: _Id, parent: ParentDep, caller: Writer, platform: PlatformDep) -> Response:
        return answer(operations.delete(platform, caller, parent, collection, resource))

    def operation(resource: _Id, operation: _Id, parent: ParentDep, caller: Writer, platform: PlatformDep) -> Response:
        if operation != operations.DELETION:
            raise NotFound(f"Operation {parent.name_of(collection, resource, 'operations', operation)} is not found.")
        return answer(operations.look(platform, caller, parent, collection, resource))

    def _find(session: Any, caller: Caller, parent: Parent, resource: str, role: Any, what: str) -> jobs.Found:
        return jobs.find(session, caller, parent, collection, resource, role, verb=f"{collection}.{what}")

    def add(path: str, handler: Callable[..., Response], method: str) -> None:
        router.add_api_route(path, handler, methods=[method], name=f"vertex_{collection}_{handler.__name__}")

    one = f"{PARENT}/{collection}/{{resource}}"
    add(f"{PARENT}/{collection}", create, "POST")
    add(f"{PARENT}/{collection}", list_all, "GET")
    add(f"{one}:{{action}}", verb, "POST")
    add(one, get, "GET")
    add(one, delete, "DELETE")
    add(f"{one}/operations/{{operation}}", operation, "GET")
    # Where the SDK asks for an operation's progress over REST: the first of its address rules is this one.
    add(f"{one}/operations/{{operation}}".replace("/v1/", "/ui/", 1), operation, "GET")


for _name, _kind in COLLECTIONS.items():
    _add(_name, _kind)


@router.api_route(f"{PARENT}/{{rest:path}}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
@router.api_route(PARENT.replace("/v1/", "/ui/", 1) + "/{rest:path}", methods=["GET", "POST", "DELETE"])
def nothing_here(rest: str, parent: ParentDep, caller: Reader) -> Response:
    """What is of the real API and not of ours is told by its name."""
    del parent, caller
    collection = rest.partition("/")[0].partition(":")[0][:60]
    raise NotServed(
        f"{collection} are not served by this platform; served are {', '.join(COLLECTIONS)} and Cloud Storage."
    )
