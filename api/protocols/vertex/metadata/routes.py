"""Metadata stores: contexts (experiments and their runs), artifacts, executions."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request, Response

from api.app.unit_of_work import AppContextDep
from api.protocols.vertex.answers import answer
from api.protocols.vertex.metadata import lineage, runs
from api.protocols.vertex.metadata.kinds import ARTIFACT, CONTEXT, EXECUTION, STORE
from api.protocols.vertex.proto import Message
from api.protocols.vertex.records.principals import PrincipalDep
from api.protocols.vertex.records.routes import ResourceRoutes, add_resource_routes, place_of
from api.protocols.vertex.request_types import PARENT, ParentDep, RawBody
from api.protocols.vertex.vertex_route import VertexRoute

router = APIRouter(route_class=VertexRoute, include_in_schema=False)

_IN_STORE: Final = "metadataStores/{store}"
CONTEXTS: Final = ResourceRoutes(
    CONTEXT, f"{_IN_STORE}/contexts", STORE, show=lineage.show_contexts, make=runs.create, change=runs.change
)
EXECUTIONS: Final = ResourceRoutes(EXECUTION, f"{_IN_STORE}/executions", STORE)


def _post(shelf: ResourceRoutes, action: str, work_of: lineage.Verb) -> None:
    def verb(
        request: Request, body: RawBody, parent: ParentDep, visitor: PrincipalDep, context: AppContextDep
    ) -> Response:
        with context.write() as work:
            room = visitor.enter(work, parent, "member", verb=shelf.permission(action))
            return answer(work_of(room, place_of(request, shelf.one), Message(body, action)))

    router.add_api_route(f"{PARENT}/{shelf.one}:{action}", verb, methods=["POST"], name=f"vertex_{action}")


def _query(shelf: ResourceRoutes, action: str, look: lineage.Query) -> None:
    def query(request: Request, parent: ParentDep, visitor: PrincipalDep, context: AppContextDep) -> Response:
        with context.read() as work:
            room = visitor.enter(work, parent, "viewer", verb=shelf.permission(action))
            return answer(look(room, place_of(request, shelf.one)))

    router.add_api_route(f"{PARENT}/{shelf.one}:{action}", query, methods=["GET"], name=f"vertex_{action}")


# In front of the routes that refuse all other verbs.
_post(CONTEXTS, "addContextArtifactsAndExecutions", lineage.add_members)
_post(CONTEXTS, "addContextChildren", lineage.add_children)
_post(CONTEXTS, "removeContextChildren", lineage.remove_children)
_post(EXECUTIONS, "addExecutionEvents", lineage.add_events)
_query(CONTEXTS, "queryContextLineageSubgraph", lineage.of_context)
_query(EXECUTIONS, "queryExecutionInputsAndOutputs", lineage.of_execution)

for _shelf in (
    ResourceRoutes(STORE, "metadataStores", make=runs.create_store),
    CONTEXTS,
    ResourceRoutes(ARTIFACT, f"{_IN_STORE}/artifacts", STORE),
    EXECUTIONS,
):
    add_resource_routes(router, _shelf)
