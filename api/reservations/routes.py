from __future__ import annotations

from trainmaster.wire.base import Page
from trainmaster.wire.reservations import ReservationCreate, ReservationView

from api.app.unit_of_work import AppContextDep
from api.auth import PlatformAdmin, Reader
from api.http.paging import PageParams
from api.http.routing import new_router
from api.reservations import service

router = new_router("reservations", "/reservations")


@router.get("", operation_id="list_reservations", summary="Reservations of nodes for projects")
def list_reservations(caller: Reader, context: AppContextDep, page: PageParams) -> Page[ReservationView]:
    """Current and future reservations, in order of their beginning. Only those of your own projects have names."""
    with context.read() as work:
        return service.list_page(work, caller, page)


@router.post("", operation_id="create_reservation", summary="Reserve nodes for a project", status_code=201)
def create_reservation(body: ReservationCreate, caller: PlatformAdmin, context: AppContextDep) -> ReservationView:
    """From `begins_at` to `ends_at` only this project's jobs may use the nodes; jobs of other projects that run there
    at the beginning are preempted. Until then, jobs that surely end before may start there.
    """
    with context.write() as work:
        return service.create(work, caller, body)


@router.delete("/{reservation}", operation_id="delete_reservation", summary="Delete a reservation", status_code=204)
def delete_reservation(reservation: str, caller: PlatformAdmin, context: AppContextDep) -> None:
    with context.write() as work:
        service.remove(work, caller, reservation)
