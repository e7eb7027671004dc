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
    summary="Try another policy or other nodes on the jobs of the last days",
)
def begin_simulation(body: SimulationRequest, caller: PlatformAdmin, context: AppContextDep) -> SimulationStatusView:
    """The jobs that have ended lately are run again through the planner, in time that is only thought of: as things are, and
    as they would be. It takes seconds to minutes: ask for the result by its id. Nothing is changed.
    """
    with context.write() as work:
        return service.begin(work, caller, body)


@router.get(
    "/simulations/{simulation}", operation_id="get_simulation", summary="How a simulation stands, and its result"
)
def get_simulation(
    simulation: Annotated[str, Path(max_length=100)], caller: PlatformAdmin, context: AppContextDep
) -> SimulationStatusView:
    """The result stays for an hour."""
    with context.write() as work:
        return service.get(work, caller, simulation)
