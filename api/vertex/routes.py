"""Vertex AI's REST API, as far as ``google-cloud-aiplatform`` needs it for training: a thin adapter over our own jobs.

Not in our own description: it is Google's, and versioned by it. At the root, where ``api_endpoint`` points to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

from fastapi import APIRouter, Body, Depends, Path, Query, Response

from api.auth import Reader, Writer
from api.vertex import custom_jobs, jobs, models, operations, training_pipelines, tuning
from api.vertex.answers import NotServed, VertexRoute, answer
from api.vertex.collection import Collection, JobCollection
from api.vertex.names import Parent, parent_of
from api.vertex.table import table_of
from api.work import PlatformDep
from core.domain.errors import NotFound

router = APIRouter(route_class=VertexRoute, include_in_schema=False)

PARENT: Final = "/v1/projects/{project}/locations/{location}"
_Id = Annotated[str, Path(max_length=128)]
_Body = Annotated[dict[str, Any], Body()]


COLLECTIONS: Final[dict[str, Collection]] = {
    custom_jobs.COLLECTION: JobCollection(custom_jobs.COLLECTION, custom_jobs.create, custom_jobs.view),
    training_pipelines.COLLECTION: JobCollection(
        training_pipelines.COLLECTION,
        training_pipelines.create,
        lambda _platform, found: training_pipelines.view(found),
    ),
    tuning.COLLECTION: tuning.TuningJobs(),
    models.COLLECTION: models.Models(),
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
        return answer(kind.get(platform, caller, parent, resource_id))

    def list_all(
        parent: ParentDep,
        caller: Reader,
        platform: PlatformDep,
        query: Annotated[jobs.ListQuery, Depends(_list_query)],
    ) -> Response:
        return answer(kind.page(platform, caller, parent, query))

    def get(resource: _Id, parent: ParentDep, caller: Reader, platform: PlatformDep) -> Response:
        return answer(kind.get(platform, caller, parent, resource))

    def verb(resource: _Id, action: str, parent: ParentDep, caller: Writer, platform: PlatformDep) -> Response:
        if action != "cancel":
            raise NotServed(f"{collection}:{action[:50]} is not served by this platform.")
        kind.cancel(platform, caller, parent, resource)
        return answer({})

    def delete(resource: _Id, parent: ParentDep, caller: Writer, platform: PlatformDep) -> Response:
        return answer(kind.delete(platform, caller, parent, resource))

    def operation(resource: _Id, operation: _Id, parent: ParentDep, caller: Writer, platform: PlatformDep) -> Response:
        if operation != operations.DELETION:
            raise NotFound(f"Operation {parent.name_of(collection, resource, 'operations', operation)} is not found.")
        return answer(kind.look(platform, caller, parent, resource))

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


_MODEL: Final = f"{PARENT}/{models.COLLECTION}/{{resource}}"


# In front of the routes of all collections, which have one verb.
@router.get(f"{_MODEL}:listVersions")
def list_model_versions(resource: _Id, parent: ParentDep, caller: Reader, platform: PlatformDep) -> Response:
    return answer(models.list_versions(platform, caller, parent, resource))


@router.post(f"{_MODEL}:mergeVersionAliases")
def merge_version_aliases(
    resource: _Id, body: _Body, parent: ParentDep, caller: Writer, platform: PlatformDep
) -> Response:
    return answer(models.merge_aliases(platform, caller, parent, resource, body))


@router.delete(f"{_MODEL}:deleteVersion")
def delete_model_version(resource: _Id, parent: ParentDep, caller: Writer, platform: PlatformDep) -> Response:
    return answer(models.delete_version(platform, caller, parent, resource))


@router.post(f"{PARENT}/{models.COLLECTION}:upload")
def upload_model(body: _Body, parent: ParentDep, caller: Writer, platform: PlatformDep) -> Response:
    return answer({"name": models.Models().create(platform, caller, parent, body)})


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
