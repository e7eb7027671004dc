from __future__ import annotations

from typing import Annotated

from fastapi import Query
from trainmaster.spec.fields import MAX_GPUS
from trainmaster.wire.vertex_table import VertexMachineView, VertexTableUpdate, VertexTableView

from api.app.unit_of_work import AppContextDep
from api.auth import PlatformAdmin, Reader
from api.http.routing import new_router
from api.vertex_table import service
from api.vertex_table.service import Wish

router = new_router("vertex-table", "/vertex-table")


@router.get("", operation_id="get_vertex_table", summary="What Vertex AI's names are here")
def get_vertex_table(caller: Reader, context: AppContextDep) -> VertexTableView:
    """Machine types, accelerators, images, locations, projects and buckets of Google's, as far as they are not as built in."""
    with context.read() as work:
        return service.get(work, context.settings, caller)


@router.put("", operation_id="set_vertex_table", summary="Store a table for Vertex AI's clients")
def set_vertex_table(body: VertexTableUpdate, caller: PlatformAdmin, context: AppContextDep) -> VertexTableView:
    """It takes the place of the stored one, and counts from the next request of any client on. 409 where somebody else has
    stored another since `generation`; `warnings` say what is probably not meant.
    """
    with context.write() as work:
        return service.store(work, context.settings, caller, body)


@router.get("/machine", operation_id="try_vertex_machine", summary="What a machine type asks for here")
def try_vertex_machine(
    _caller: Reader,
    context: AppContextDep,
    machine_type: Annotated[str, Query(max_length=200)],
    accelerator: Annotated[str, Query(max_length=100)] = "",
    count: Annotated[int, Query(ge=1, le=MAX_GPUS)] = 1,
    location: Annotated[str, Query(max_length=64)] = "",
) -> VertexMachineView:
    """Of one replica with `count` of the accelerator in the location. Submits nothing."""
    with context.read() as work:
        return service.look(work, context.settings, Wish(machine_type, accelerator, count, location))
