"""TensorBoards: experiments, runs, time series and their data; and batch operations on runs and time series."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy import select

from api.app.unit_of_work import AppContextDep
from api.protocols.kit.errors import AlreadyExists
from api.protocols.kit.json_values import answer
from api.protocols.kit.paging import page_of, page_token, token_offset
from api.protocols.vertex.names import PARENT, ParentDep
from api.protocols.vertex.proto import Message, camel
from api.protocols.vertex.records import service
from api.protocols.vertex.records.kinds import RecordKind, check_id, read_fields
from api.protocols.vertex.records.principals import PrincipalDep, RecordTransaction
from api.protocols.vertex.records.routes import ResourceRoutes, add_resource_routes, add_verb, record_path
from api.protocols.vertex.tensorboards import points
from api.protocols.vertex.tensorboards.points import BOARD, EXPERIMENT, RUN, SCALAR, SERIES
from api.protocols.vertex.vertex_route import VertexRoute
from core.db.repositories import vertex_records
from core.db.tables import Project, VertexRecord
from core.domain.errors import InvalidRequest, NotFound

router = APIRouter(route_class=VertexRoute, include_in_schema=False)

_AT_ONCE: Final = 1_000  # parts of one request
# https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.tensorboards/batchRead
_SCALARS, _OTHERS = 1_000, 100
_EXPORTED: Final = 10_000
VALUE_LIMIT: Final = 10_000  # values of one time series in one answer
SCALAR_LIMIT: Final = 200_000  # scalars in one answer
TENSOR_LIMIT_BYTES: Final = 64 * 2**20  # of tensors in one answer


def _create_board(tx: RecordTransaction, kind: RecordKind, path: str, message: Message) -> VertexRecord:
    """A location has one default TensorBoard: creating another default returns the existing one.

    So two programs that find no default at the same time, and create one, log to the same.
    """
    if message.flag("isDefault"):
        _lock_defaults(tx)
        known = next(iter(_defaults(tx)), None)
        if known is not None:
            return known
    return service.create(tx, kind, path, message)


def _change_board(tx: RecordTransaction, kind: RecordKind, path: str, message: Message, mask: str) -> VertexRecord:
    """Update a board; setting a default clears the previous one."""
    if message.flag("isDefault"):
        _lock_defaults(tx)
    record = service.change(tx, kind, path, message, mask)
    if record.body.get("isDefault") and message.flag("isDefault"):
        for other in _defaults(tx):
            if other.id != record.id:
                other.body = {name: value for name, value in other.body.items() if name != "isDefault"}
                other.generation += 1
                other.updated_at = tx.work.now
        tx.session.flush()
    return record


def _lock_defaults(tx: RecordTransaction) -> None:
    """Lock the choice of the default TensorBoard until the transaction ends."""
    tx.session.execute(select(Project.id).where(Project.id == tx.scope.project_id).with_for_update())


def _defaults(tx: RecordTransaction) -> list[VertexRecord]:
    """Default boards, reloaded and locked, so that no concurrent change is lost."""
    query = vertex_records.records_in(tx.scope, BOARD.noun).order_by(VertexRecord.id).with_for_update()
    boards: Iterable[VertexRecord] = tx.session.scalars(query.execution_options(populate_existing=True))
    return [board for board in boards if board.body.get("isDefault")]


def _show_boards(tx: RecordTransaction, records: list[VertexRecord]) -> list[dict[str, Any]]:
    """Boards with ``blobStoragePathPrefix``, without which the uploader refuses a board.

    It is the project's bucket without a folder: after a folder the client would write two slashes.
    """
    return [{**service.view(tx, record), "blobStoragePathPrefix": tx.parent.own} for record in records]


def _create_series(tx: RecordTransaction, kind: RecordKind, path: str, message: Message) -> VertexRecord:
    """Display names are unique in a run: creating another series of the same type, without an id, returns that series.

    Replicas of a job that log the same metric at the same time all find no series and create it. Otherwise each would
    log to its own series, of which clients read only one.

    Raises:
        InvalidRequest: it has no type.
        AlreadyExists: there is one of this display name with another type, or the client gives the new one an id: it
        would
            write to that.
    """
    if not message.has("valueType"):
        raise message.missing("valueType")
    fields = read_fields(kind, message)
    if fields.get("displayName"):
        collection = path.rpartition("/")[0]
        service.find(tx, RUN, collection.rpartition("/")[0], locks=True)
        known = vertex_records.records_in(tx.scope, collection).where(
            VertexRecord.display_name == fields["displayName"]
        )
        existing: VertexRecord | None = tx.session.scalars(known.order_by(VertexRecord.created_at).limit(1)).first()
        has_id = not path.endswith("/")
        if existing is not None and (has_id or existing.body.get("valueType") != fields.get("valueType")):
            own_type = existing.body.get("valueType")
            raise AlreadyExists(
                f"The run has a time series {existing.display_name!r} of type {own_type} already: "
                f"{tx.name_of_record(existing)}."
            )
        if existing is not None:
            return existing
    return service.add(tx, kind, path, fields)


def _batch_create_runs(tx: RecordTransaction, path: str, message: Message) -> dict[str, Any]:
    """``runs:batchCreate``. ``path``: the experiment's."""
    service.find(tx, EXPERIMENT, path)
    return {"tensorboardRuns": [service.view(tx, record) for record in _batch(tx, RUN, path, message)]}


def _batch_create_series(tx: RecordTransaction, path: str, message: Message) -> dict[str, Any]:
    """``experiments:batchCreate``: time series of any of the experiment's runs."""
    service.find(tx, EXPERIMENT, path)
    records = _batch(tx, SERIES, path, message)
    return {"tensorboardTimeSeries": [service.view(tx, record) for record in records]}


def _write_run(tx: RecordTransaction, path: str, message: Message) -> dict[str, Any]:
    """``runs:write``."""
    message.refuse_unknown_fields({"tensorboardRun", "timeSeriesData"})
    points.write(tx, path, _bounded(message, "timeSeriesData"))
    return {}


def _write_experiment(tx: RecordTransaction, path: str, message: Message) -> dict[str, Any]:
    """``experiments:write``: to several of its runs."""
    message.refuse_unknown_fields({"tensorboardExperiment", "writeRunDataRequests"})
    for at, item in _bounded(message, "writeRunDataRequests"):
        request = Message(item, at)
        request.refuse_unknown_fields({"tensorboardRun", "timeSeriesData"})
        run = _below(tx, request, "tensorboardRun", f"{path}/runs")
        points.write(tx, run, _bounded(request, "timeSeriesData"))
    return {}


def _batch_read(tx: RecordTransaction, path: str, names: Sequence[str]) -> dict[str, Any]:
    """``tensorboards:batchRead``: per time series 1,000 scalars or 100 tensors; fewer if many series are requested.

    Raises ``InvalidRequest`` if even one tensor of each series exceeds the limit.
    """
    service.find(tx, BOARD, path)
    if len(names) > _AT_ONCE:
        raise InvalidRequest(f"time_series: at most {_AT_ONCE:,} names at once.", field="time_series")
    paths = [tx.path_of(name) or "" for name in names]
    records = vertex_records.find_records(tx.session, tx.scope, paths)
    by_run: defaultdict[str, list[VertexRecord]] = defaultdict(list)
    for place, name in zip(paths, names, strict=True):
        if place not in records or not place.startswith(f"{path}/") or place.split("/")[-2] != SERIES.noun:
            raise NotFound(f"The tensorboard time series {name[:500]} is not found in {tx.name_of(path)}.")
        by_run[place.rsplit("/", 2)[0]].append(records[place])
    runs = vertex_records.find_records(tx.session, tx.scope, list(by_run))
    scalars = sum(record.body.get("valueType") == SCALAR for record in records.values())
    share = min(_SCALARS, SCALAR_LIMIT // max(1, scalars))
    budget = points.TensorBudget(TENSOR_LIMIT_BYTES, len(records) - scalars)
    data: dict[str, dict[str, Any]] = {}
    for run, series in by_run.items():
        for is_scalar, limit in ((True, share), (False, _OTHERS)):
            chosen = {record.id: record for record in series if (record.body.get("valueType") == SCALAR) == is_scalar}
            read = points.read(tx.session, runs[run], list(chosen.values()), limit, budget)
            data.update({f"{run}/{SERIES.noun}/{name}": record for name, record in read.items()})
    return {"timeSeriesData": [data[place] for place in dict.fromkeys(paths)]} if data else {}


def _read_series(tx: RecordTransaction, path: str, max_points: int) -> dict[str, Any]:
    """``timeSeries:read``. ``max_points``: 0: the default; negative: the maximum."""
    record = service.find(tx, SERIES, path)
    run = service.find(tx, RUN, path.rsplit("/", 2)[0])
    usual = _SCALARS if record.body.get("valueType") == SCALAR else _OTHERS
    limit = VALUE_LIMIT if max_points < 0 else min(max_points or usual, VALUE_LIMIT)
    budget = points.TensorBudget(TENSOR_LIMIT_BYTES, 1)
    return {"timeSeriesData": points.read(tx.session, run, [record], limit, budget)[record.name]}


def _export_series(tx: RecordTransaction, path: str, message: Message) -> dict[str, Any]:
    """``timeSeries:exportTensorboardTimeSeries``: all scalars, in pages, in order of arrival."""
    message.refuse_unknown_fields(
        {"tensorboardTimeSeries", "pageSize", "pageToken"}, absent={"filter": "filters are", "orderBy": "an order is"}
    )
    record = service.find(tx, SERIES, path)
    run = service.find(tx, RUN, path.rsplit("/", 2)[0])
    start = token_offset(message.text("pageToken", 500))
    limit = min(message.whole("pageSize") or _EXPORTED, _EXPORTED)
    if limit < 0:
        raise InvalidRequest("page_size: is not negative.", field="page_size")
    values, end = points.export(tx.session, run, record, start, limit)
    return page_of("timeSeriesDataPoints", values, "" if end is None else page_token(end))


def _batch(tx: RecordTransaction, kind: RecordKind, path: str, message: Message) -> list[VertexRecord]:
    """Run all requests in ``message``, or none. ``path``: the common ancestor of their parents."""
    message.refuse_unknown_fields({"parent", "requests"})
    places: list[tuple[str, Message]] = []
    for at, item in _bounded(message, "requests"):
        item_message = Message(item, at)
        field = camel(kind.word)
        item_message.refuse_unknown_fields({"parent", field, kind.id_parameter})
        above = path if kind is RUN else _below(tx, item_message, "parent", f"{path}/runs")
        given_id = item_message.text(kind.id_parameter, 200)
        name = check_id(given_id, item_message.at(kind.id_parameter)) if given_id else ""
        places.append((f"{above}/{kind.noun}/{name}", Message(item_message.raw(field) or {}, item_message.at(field))))
    if kind is RUN:
        return [service.create(tx, kind, place, item_message) for place, item_message in places]
    # Locks in a fixed order, so that two requests with the same runs cannot deadlock.
    for run in sorted({place.rsplit("/", 2)[0] for place, _ in places}):
        service.find(tx, RUN, run, locks=True)
    return [_create_series(tx, kind, place, item_message) for place, item_message in places]


def _below(tx: RecordTransaction, message: Message, field: str, collection: str) -> str:
    """The path of the full name in ``field``. Raises ``InvalidRequest`` if it is not in ``collection``."""
    name = message.text(field, 2_000)
    path = tx.path_of(name)
    if path is None or path.rpartition("/")[0] != collection:
        raise message.fault(field, f"'{name[:300]}' is not below {tx.name_of(collection)}.")
    return path


def _bounded(message: Message, field: str) -> list[tuple[str, Any]]:
    items = message.items(field)
    if len(items) > _AT_ONCE:
        raise message.fault(field, f"at most {_AT_ONCE:,} at once.")
    return items


# --- routes ----------------------------------------------------------------------------------------------------------

_BOARDS: Final = ResourceRoutes(BOARD, "tensorboards", show=_show_boards, make=_create_board, change=_change_board)
_EXPERIMENTS: Final = ResourceRoutes(EXPERIMENT, "tensorboards/{board}/experiments", BOARD)
_RUNS: Final = ResourceRoutes(RUN, "tensorboards/{board}/experiments/{experiment}/runs", EXPERIMENT)
_TIME_SERIES: Final = ResourceRoutes(
    SERIES,
    "tensorboards/{board}/experiments/{experiment}/runs/{run}/timeSeries",
    RUN,
    show=points.show,
    make=_create_series,
)


# Before the routes that refuse all other verbs.
for _template, _action, _permission, _apply in (
    (_EXPERIMENTS.template, "batchCreate", "tensorboardTimeSeries.batchCreate", _batch_create_series),
    (_EXPERIMENTS.template, "write", "tensorboardExperiments.write", _write_experiment),
    (_RUNS.template, "write", "tensorboardRuns.write", _write_run),
):
    add_verb(router, _template, _action, _permission, _apply)
add_verb(router, _EXPERIMENTS.template, "batchCreate", "tensorboardRuns.batchCreate", _batch_create_runs, on="/runs")
_EXPORT: Final = "exportTensorboardTimeSeries"
add_verb(router, _TIME_SERIES.template, _EXPORT, "tensorboardTimeSeries.read", _export_series, reads=True)


@router.get(f"{PARENT}/{_BOARDS.template}:batchRead")
def batch_read(
    request: Request,
    parent: ParentDep,
    principal: PrincipalDep,
    context: AppContextDep,
    timeSeries: Annotated[list[str] | None, Query()] = None,  # noqa: N803
) -> Response:
    with context.read() as work:
        tx = principal.open(work, parent, "viewer", verb="tensorboardTimeSeries.batchRead")
        return answer(_batch_read(tx, record_path(request, _BOARDS.template), timeSeries or []))


@router.get(f"{PARENT}/{_TIME_SERIES.template}:read")
def read_series(
    request: Request,
    parent: ParentDep,
    principal: PrincipalDep,
    context: AppContextDep,
    maxDataPoints: Annotated[int, Query(ge=-1, le=10**9)] = 0,  # noqa: N803
) -> Response:
    with context.read() as work:
        tx = principal.open(work, parent, "viewer", verb="tensorboardTimeSeries.read")
        return answer(_read_series(tx, record_path(request, _TIME_SERIES.template), maxDataPoints))


for _routes in (_BOARDS, _EXPERIMENTS, _RUNS, _TIME_SERIES):
    add_resource_routes(router, _routes)
