"""Metadata stores: contexts (experiments and their runs), artifacts, executions."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request, Response

from api.app.unit_of_work import AppContextDep
from api.protocols.kit.json_values import answer
from api.protocols.vertex.metadata import lineage, runs
from api.protocols.vertex.metadata.kinds import ARTIFACT, CONTEXT, EXECUTION, STORE
from api.protocols.vertex.names import PARENT, ParentDep, RawBody
from api.protocols.vertex.proto import Message
from api.protocols.vertex.records.principals import PrincipalDep
from api.protocols.vertex.records.routes import ResourceRoutes, add_resource_routes, record_path
from api.protocols.vertex.vertex_route import VertexRoute

router = APIRouter(route_class=VertexRoute, include_in_schema=False)

_IN_STORE: Final = "metadataStores/{store}"
CONTEXTS: Final = ResourceRoutes(
    CONTEXT, f"{_IN_STORE}/contexts", STORE, show=lineage.show_contexts, make=runs.create, change=runs.change
)
EXECUTIONS: Final = ResourceRoutes(EXECUTION, f"{_IN_STORE}/executions", STORE)


def _post(routes: ResourceRoutes, action: str, apply: lineage.Verb) -> None:
    def verb(
        request: Request, body: RawBody, parent: ParentDep, principal: PrincipalDep, context: AppContextDep
    ) -> Response:
        with context.write() as work:
            tx = principal.open(work, parent, "member", verb=routes.permission(action))
            return answer(apply(tx, record_path(request, routes.template), Message(body, action)))

    router.add_api_route(f"{PARENT}/{routes.template}:{action}", verb, methods=["POST"], name=f"vertex_{action}")


def _query(routes: ResourceRoutes, action: str, answer_of: lineage.Query) -> None:
    def query(request: Request, parent: ParentDep, principal: PrincipalDep, context: AppContextDep) -> Response:
        with context.read() as work:
            tx = principal.open(work, parent, "viewer", verb=routes.permission(action))
            return answer(answer_of(tx, record_path(request, routes.template)))

    router.add_api_route(f"{PARENT}/{routes.template}:{action}", query, methods=["GET"], name=f"vertex_{action}")


# Before the routes that refuse all other verbs.
_post(CONTEXTS, "addContextArtifactsAndExecutions", lineage.add_members)
_post(CONTEXTS, "addContextChildren", lineage.add_children)
_post(CONTEXTS, "removeContextChildren", lineage.remove_children)
_post(EXECUTIONS, "addExecutionEvents", lineage.add_events)
_query(CONTEXTS, "queryContextLineageSubgraph", lineage.of_context)
_query(EXECUTIONS, "queryExecutionInputsAndOutputs", lineage.of_execution)

for _routes in (
    ResourceRoutes(STORE, "metadataStores", make=runs.create_store),
    CONTEXTS,
    ResourceRoutes(ARTIFACT, f"{_IN_STORE}/artifacts", STORE),
    EXECUTIONS,
):
    add_resource_routes(router, _routes)
