"""TensorBoards: experiments, runs, time series and their data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response

from api.app.unit_of_work import AppContextDep
from api.auth import Role
from api.protocols.kit.json_values import answer
from api.protocols.vertex.names import PARENT, ParentDep, RawBody
from api.protocols.vertex.proto import Message
from api.protocols.vertex.records.principals import PrincipalDep, RecordTransaction
from api.protocols.vertex.records.routes import ResourceRoutes, add_resource_routes, record_path
from api.protocols.vertex.tensorboards import boards, points
from api.protocols.vertex.tensorboards.kinds import BOARD, EXPERIMENT, RUN, SERIES
from api.protocols.vertex.vertex_route import VertexRoute

router = APIRouter(route_class=VertexRoute, include_in_schema=False)

BOARDS: Final = ResourceRoutes(
    BOARD, "tensorboards", show=boards.show_boards, make=boards.create_board, change=boards.change_board
)
EXPERIMENTS: Final = ResourceRoutes(EXPERIMENT, "tensorboards/{board}/experiments", BOARD)
RUNS: Final = ResourceRoutes(RUN, "tensorboards/{board}/experiments/{experiment}/runs", EXPERIMENT)
TIME_SERIES: Final = ResourceRoutes(
    SERIES,
    "tensorboards/{board}/experiments/{experiment}/runs/{run}/timeSeries",
    RUN,
    show=points.show,
    make=boards.create_series,
)


def _post(
    path: str, action: str, verb: str, apply: Callable[[RecordTransaction, str, Message], dict[str, Any]]
) -> None:
    """``path``: template of the resource that has the action."""
    role: Role = "viewer" if action.startswith("export") else "member"

    def post(
        request: Request, body: RawBody, parent: ParentDep, principal: PrincipalDep, context: AppContextDep
    ) -> Response:
        with context.read() if role == "viewer" else context.write() as work:
            tx = principal.open(work, parent, role, verb=verb)
            return answer(apply(tx, record_path(request, path), Message(body, action)))

    on = f"{path}/runs" if apply is boards.batch_create_runs else path
    router.add_api_route(f"{PARENT}/{on}:{action}", post, methods=["POST"], name=f"vertex_{verb}")


# Before the routes that refuse all other verbs.
_post(EXPERIMENTS.template, "batchCreate", "tensorboardTimeSeries.batchCreate", boards.batch_create_series)
_post(EXPERIMENTS.template, "batchCreate", "tensorboardRuns.batchCreate", boards.batch_create_runs)
_post(EXPERIMENTS.template, "write", "tensorboardExperiments.write", boards.write_experiment)
_post(RUNS.template, "write", "tensorboardRuns.write", boards.write_run)
_post(TIME_SERIES.template, "exportTensorboardTimeSeries", "tensorboardTimeSeries.read", boards.export_series)


@router.get(f"{PARENT}/{BOARDS.template}:batchRead")
def batch_read(
    request: Request,
    parent: ParentDep,
    principal: PrincipalDep,
    context: AppContextDep,
    timeSeries: Annotated[list[str] | None, Query()] = None,  # noqa: N803
) -> Response:
    with context.read() as work:
        tx = principal.open(work, parent, "viewer", verb="tensorboardTimeSeries.batchRead")
        return answer(boards.batch_read(tx, record_path(request, BOARDS.template), timeSeries or []))


@router.get(f"{PARENT}/{TIME_SERIES.template}:read")
def read_series(
    request: Request,
    parent: ParentDep,
    principal: PrincipalDep,
    context: AppContextDep,
    maxDataPoints: Annotated[int, Query(ge=-1, le=10**9)] = 0,  # noqa: N803
) -> Response:
    with context.read() as work:
        tx = principal.open(work, parent, "viewer", verb="tensorboardTimeSeries.read")
        return answer(boards.read_series(tx, record_path(request, TIME_SERIES.template), maxDataPoints))


for _routes in (BOARDS, EXPERIMENTS, RUNS, TIME_SERIES):
    add_resource_routes(router, _routes)
