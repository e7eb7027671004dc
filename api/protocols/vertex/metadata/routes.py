"""Metadata stores: contexts (experiments and their runs), artifacts, executions."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request, Response

from api.app.unit_of_work import AppContextDep
from api.protocols.kit.json_values import answer
from api.protocols.vertex.metadata import lineage, runs
from api.protocols.vertex.metadata.kinds import ARTIFACT, CONTEXT, EXECUTION, STORE
from api.protocols.vertex.names import PARENT, ParentDep
from api.protocols.vertex.records.principals import PrincipalDep
from api.protocols.vertex.records.routes import ResourceRoutes, add_action, add_resource_routes, record_path
from api.protocols.vertex.vertex_route import VertexRoute

router = APIRouter(route_class=VertexRoute, include_in_schema=False)

_IN_STORE: Final = "metadataStores/{store}"
CONTEXTS: Final = ResourceRoutes(
    CONTEXT, f"{_IN_STORE}/contexts", STORE, show=lineage.show_contexts, make=runs.create, change=runs.change
)
EXECUTIONS: Final = ResourceRoutes(EXECUTION, f"{_IN_STORE}/executions", STORE)


def _query(routes: ResourceRoutes, action: str, answer_of: lineage.Query) -> None:
    def query(request: Request, parent: ParentDep, principal: PrincipalDep, context: AppContextDep) -> Response:
        with context.read() as work:
            tx = principal.open(work, parent, "viewer", verb=routes.permission(action))
            return answer(answer_of(tx, record_path(request, routes.template)))

    router.add_api_route(f"{PARENT}/{routes.template}:{action}", query, methods=["GET"], name=f"vertex_{action}")


# Before the routes that refuse all other verbs.
for _on, _action, _apply in (
    (CONTEXTS, "addContextArtifactsAndExecutions", lineage.add_members),
    (CONTEXTS, "addContextChildren", lineage.add_children),
    (CONTEXTS, "removeContextChildren", lineage.remove_children),
    (EXECUTIONS, "addExecutionEvents", lineage.add_events),
):
    add_action(router, _on.template, _action, _apply, permission=_on.permission(_action))
_query(CONTEXTS, "queryContextLineageSubgraph", lineage.of_context)
_query(EXECUTIONS, "queryExecutionInputsAndOutputs", lineage.of_execution)

for _routes in (
    ResourceRoutes(STORE, "metadataStores", make=runs.create_store),
    CONTEXTS,
    ResourceRoutes(ARTIFACT, f"{_IN_STORE}/artifacts", STORE),
    EXECUTIONS,
):
    add_resource_routes(router, _routes)
