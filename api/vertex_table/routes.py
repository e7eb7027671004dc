from __future__ import annotations

from typing import Annotated

from fastapi import Query
from trainmaster.spec.fields import MAX_GPUS
from trainmaster.wire.vertex_table import VertexMachineView, VertexTableUpdate, VertexTableView

from api.app.unit_of_work import AppContextDep
from api.auth import PlatformAdmin, Reader
from api.http.routing import new_router
from api.vertex_table import service
from api.vertex_table.service import MachineQuery

router = new_router("vertex-table", "/vertex-table")


@router.get("", operation_id="get_vertex_table", summary="The mapping of Vertex AI's names")
def get_vertex_table(caller: Reader, context: AppContextDep) -> VertexTableView:
    """Entries for Google's machine types, accelerators, images, locations, projects and buckets that differ from the
    built-in ones.
    """
    with context.read() as work:
        return service.get(work, context.settings, caller)


@router.put("", operation_id="set_vertex_table", summary="Store a table for Vertex AI's clients")
def set_vertex_table(body: VertexTableUpdate, caller: PlatformAdmin, context: AppContextDep) -> VertexTableView:
    """Replaces the stored table; applies from the next request. 409 if the stored table has changed since `generation`;
    `warnings` lists probable mistakes.
    """
    with context.write() as work:
        return service.store(work, context.settings, caller, body)


@router.get("/machine", operation_id="try_vertex_machine", summary="The resources of a machine type")
def try_vertex_machine(
    _caller: Reader,
    context: AppContextDep,
    machine_type: Annotated[str, Query(max_length=200)],
    accelerator: Annotated[str, Query(max_length=100)] = "",
    count: Annotated[int, Query(ge=1, le=MAX_GPUS)] = 1,
    location: Annotated[str, Query(max_length=64)] = "",
) -> VertexMachineView:
    """The resources of one replica with `count` accelerators in the location. Submits nothing."""
    with context.read() as work:
        return service.resolve_machine(work, context.settings, MachineQuery(machine_type, accelerator, count, location))
