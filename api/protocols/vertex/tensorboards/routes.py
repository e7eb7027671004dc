"""TensorBoards: experiments, runs, time series and their data."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response

from api.app.unit_of_work import AppContextDep
from api.protocols.kit.json_values import answer
from api.protocols.vertex.names import PARENT, ParentDep
from api.protocols.vertex.records.principals import PrincipalDep
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


# Before the routes that refuse all other verbs.
for _template, _action, _apply, _permission in (
    (EXPERIMENTS.template, "batchCreate", boards.batch_create_series, "tensorboardTimeSeries.batchCreate"),
    (EXPERIMENTS.template, "write", boards.write_experiment, "tensorboardExperiments.write"),
    (RUNS.template, "write", boards.write_run, "tensorboardRuns.write"),
):
    add_action(router, _template, _action, _apply, permission=_permission)
add_action(
    router,
    EXPERIMENTS.template,
    "batchCreate",
    boards.batch_create_runs,
    permission="tensorboardRuns.batchCreate",
    below="/runs",
)
add_action(
    router,
    TIME_SERIES.template,
    "exportTensorboardTimeSeries",
    boards.export_series,
    permission="tensorboardTimeSeries.read",
    reads=True,
)


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
