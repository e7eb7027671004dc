from __future__ import annotations

from typing import Annotated

from fastapi import Path
from trainmaster.wire.forecasts import SimulationRequest, SimulationStatusView

from api.app.unit_of_work import AppContextDep
from api.auth import PlatformAdmin
from api.http.routing import new_router
from api.simulations import service

router = new_router("simulations")


@router.post(
    "/simulations",
    status_code=202,
    operation_id="begin_simulation",
    summary="Simulate another policy or other nodes with recent jobs",
)
def begin_simulation(body: SimulationRequest, caller: PlatformAdmin, context: AppContextDep) -> SimulationStatusView:
    """What-if simulation: replays recently ended jobs through the planner in simulated time, with the current and with
    the changed settings. It takes seconds to minutes; get the result by its id. The cluster is not affected.
    """
    with context.write() as work:
        return service.begin(work, caller, body)


@router.get(
    "/simulations/{simulation}", operation_id="get_simulation", summary="The state of a simulation, and its result"
)
def get_simulation(
    simulation: Annotated[str, Path(max_length=100)], caller: PlatformAdmin, context: AppContextDep
) -> SimulationStatusView:
    """The result is stored for an hour."""
    with context.write() as work:
        return service.get(work, caller, simulation)
