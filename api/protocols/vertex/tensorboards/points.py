"""Data of time series, stored with all other metrics: one stream per run, series named by their ids.

https://cloud.google.com/vertex-ai/docs/reference/rest/v1/TimeSeriesData
"""

from __future__ import annotations

import base64
import binascii
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import orjson
from sqlalchemy.orm import Session

from api.protocols.kit.json_values import (
    from_milliseconds,
    json_double,
    milliseconds,
    parse_timestamp,
    read_double,
    timestamp,
)
from api.protocols.vertex.metadata.runs import copy_metrics
from api.protocols.vertex.proto import Message
from api.protocols.vertex.records import service
from api.protocols.vertex.records.kinds import SHOWN, RecordKind, enum, flag, text
from api.protocols.vertex.records.principals import RecordTransaction
from core.db.repositories import vertex_records
from core.db.repositories.metrics.reads import SeriesFilter, StoredSeries, find_series, list_objects, read_points
from core.db.repositories.metrics.writes import NewMetricObject, StreamKey, add_metrics
from core.db.tables import VertexRecord
from core.domain.errors import InvalidRequest, NotFound
from core.domain.metrics import OBJECT_BYTES, SERIES_OF_REPLICA, STEP_LIMIT, TIME_LIMIT_MS, Points

SCALAR: Final = "SCALAR"
TENSOR: Final = "TENSOR"
BLOBS: Final = "BLOB_SEQUENCE"
VALUE_TYPES: Final = {0: "VALUE_TYPE_UNSPECIFIED", 1: SCALAR, 2: TENSOR, 3: BLOBS}

BOARD: Final = RecordKind(
    "tensorboards",
    "tensorboard",
    {**SHOWN, "isDefault": flag},
    limit=1_000,
    output=frozenset({"blobStoragePathPrefix", "runCount"}),
    message="Tensorboard",
    is_slow=True,
)
EXPERIMENT: Final = RecordKind(
    "experiments",
    "tensorboard_experiment",
    {**SHOWN, "source": text(1_000)},
    limit=10_000,
)
RUN: Final = RecordKind("runs", "tensorboard_run", SHOWN, limit=10_000)
SERIES: Final = RecordKind(
    "timeSeries",
    "tensorboard_time_series",
    {
        "displayName": text(250),
        "description": text(10_000),
        "valueType": enum(VALUE_TYPES),
        "pluginName": text(100),
        "pluginData": text(64 * 1024),  # bytes in base64
    },
    limit=SERIES_OF_REPLICA,
    fixed=frozenset({"valueType", "pluginName", "pluginData"}),
    output=frozenset({"metadata"}),
)


_TENSORS: Final = "histogram"  # metric object kind of tensors and blob sequences
_MEDIA_TYPE: Final = "application/x-tensorboard-tensor; version="
_BLOBS_TYPE: Final = "application/x-tensorboard-blobs"  # JSON list of blob ids; the blobs are in a bucket
_WINDOW: Final = 65_536  # points of a series that are in memory at once


@dataclass(slots=True)
class TensorBudget:
    """Byte limit for the tensors of one response: ``total``, shared by ``series`` time series."""

    total: int
    series: int
    used: int = 0

    def newest(self, rows: Sequence[Any]) -> list[Any]:
        """The newest of ``rows`` (oldest first) that fit into one series' share; at least one.

        Raises ``InvalidRequest`` if the total is exceeded.
        """
        chosen: list[Any] = []
        size, share = 0, self.total // max(1, self.series)
        for row in reversed(rows):
            if chosen and size + len(row.data) > share:
                break
            chosen.append(row)
            size += len(row.data)
        self.used += size
        if self.used > self.total:
            raise InvalidRequest(
                f"time_series: the tensors take more than {self.total // 2**20:,} MiB; ask for fewer time series at "
                "once.",
                field="time_series",
            )
        return chosen[::-1]


def write(tx: RecordTransaction, run_path: str, data: Sequence[tuple[str, Any]]) -> None:
    """Add values to the time series of a run. ``data``: (where in the request, one of its time series' data).

    Raises ``NotFound``, ``InvalidRequest``, or ``NotServed`` for blobs; then nothing is stored.
    """
    run = service.find(tx, RUN, run_path)
    messages = [Message(item, at) for at, item in data]
    names = {message.text("tensorboardTimeSeriesId", 128) for message in messages}
    known = vertex_records.find_records(
        tx.session, tx.scope, [f"{run_path}/{SERIES.noun}/{name}" for name in sorted(names)]
    )
    series = {record.name: record for record in known.values()}
    columns: defaultdict[str, Points] = defaultdict(Points)
    objects: list[NewMetricObject] = []
    for message in messages:
        message.refuse_unknown_fields({"tensorboardTimeSeriesId", "valueType", "values"})
        name = message.text("tensorboardTimeSeriesId", 128)
        if name not in series:
            path = f"{run_path}/{SERIES.noun}/{name}"
            raise NotFound(f"{message.path}: The tensorboard time series {tx.name_of(path)} is not found.")
        kind = series[name].body.get("valueType", VALUE_TYPES[0])
        if message.has("valueType") and message.enum("valueType", VALUE_TYPES) != kind:
            raise message.fault("valueType", f"the time series {name} is of type {kind}.")
        for at, item in message.items("values"):
            point = Message(item, at)
            point.refuse_unknown_fields({"wallTime", "step", "scalar", "tensor", "blobs"})
            if kind == SCALAR:
                _add_scalar(point, columns[name], tx.work.now)
            elif kind == TENSOR:
                objects.append(_tensor(point, name, tx.work.now))
            else:
                objects.append(_blobs(point, name, tx.work.now))
    added = add_metrics(tx.session, _key(run), columns, objects, now=tx.work.now)
    if added.faults:
        raise InvalidRequest(f"{added.faults[0]}.", field="time_series_data")
    # The SDK's name for the context of such a run, which has the run's summary metrics.
    context = f"{run_path.split('/')[-3]}-{run.name}"
    copy_metrics(tx, context, {_shown(series[name]): points for name, points in columns.items() if points})


def read(
    session: Session, run: VertexRecord, series: Sequence[VertexRecord], limit: int, budget: TensorBudget
) -> dict[str, dict[str, Any]]:
    """The data of these time series of one run, by their ids, in order of their steps.

    ``limit``: values of each, spread evenly with the last one among them. ``budget``: for the tensors. Raises
    ``InvalidRequest``.
    """
    stored = _stored_series(session, run, [record.name for record in series])
    data = {}
    for record in series:
        kind = record.body.get("valueType", VALUE_TYPES[0])
        own = stored.get((record.name, "scalar" if kind == SCALAR else _TENSORS))
        values: list[dict[str, Any]] = []
        if own is not None and kind == SCALAR:
            values = _scalars(thinned(session, own, limit))
        elif own is not None:
            values = _tensors(session, own, limit, budget)
        data[record.name] = {
            "tensorboardTimeSeriesId": record.name,
            "valueType": kind,
            **({"values": values} if values else {}),
        }
    return data


def show(tx: RecordTransaction, records: list[VertexRecord]) -> list[dict[str, Any]]:
    """Time series of one run with their last step and time."""
    if not records:
        return []
    run = service.find(tx, RUN, records[0].collection.rpartition("/")[0])
    stored = _stored_series(tx.session, run, [record.name for record in records])
    shown = []
    for record in records:
        own = stored.get((record.name, "scalar")) or stored.get((record.name, _TENSORS))
        reach: dict[str, Any] = {}
        if own is not None and own.last_time is not None:
            reach = {"metadata": {"maxStep": str(own.last_step), "maxWallTime": _time(own.last_time)}}
        shown.append({**service.view(tx, record), **reach})
    return shown


def export(
    session: Session, run: VertexRecord, record: VertexRecord, start: int, limit: int
) -> tuple[list[dict[str, Any]], int | None]:
    """At most ``limit`` values from index ``start``, in order of arrival, and the index of the rest."""
    stored = _stored_series(session, run, [record.name]).get((record.name, "scalar"))
    if stored is None:
        return [], None
    values = _scalars(read_points(session, stored, start, limit))
    end = start + len(values)
    return values, end if values and end < stored.count else None


def thinned(session: Session, series: StoredSeries, limit: int) -> Points:
    """Points ordered by step, thinned to ``limit``: evenly spread by arrival, with the last one."""
    if series.count <= limit:
        points = read_points(session, series, 0, series.count)
    else:
        places = sorted(
            {series.count - 1 - (number * (series.count - 1)) // max(1, limit - 1) for number in range(limit)}
        )
        points = Points()
        for start in range(0, series.count, _WINDOW):
            here = [place - start for place in places if start <= place < start + _WINDOW]
            if here:
                points.extend(read_points(session, series, start, _WINDOW).chosen(here))
    order = sorted(range(len(points)), key=lambda place: (points.steps[place], points.times[place]))
    return points.chosen(order)


def _stored_series(session: Session, run: VertexRecord, names: Sequence[str]) -> dict[tuple[str, str], StoredSeries]:
    stored: dict[tuple[str, str], StoredSeries] = {}
    for start in range(0, len(names), 500):
        part = list(names[start : start + 500])
        for series in find_series(session, [run.id], SeriesFilter(names=part), limit=2 * len(part)):
            stored[series.name, series.kind] = series
    return stored


def _key(run: VertexRecord) -> StreamKey:
    return StreamKey(run.id, 0, "run", 0)


def _shown(series: VertexRecord) -> str:
    return series.display_name or series.name


def _add_scalar(point: Message, points: Points, now: datetime) -> None:
    # proto3 omits zero, so the message of a zero scalar is empty.
    value = _double(point.part("scalar", {"value"}), "value")
    if "scalar" not in point or point.has("tensor") or point.has("blobs"):
        raise InvalidRequest(f"{point.path}: the time series is of type SCALAR, and has a scalar in each value.")
    points.steps.append(_step(point))
    points.times.append(_ms(point, now))
    points.values.append(value)


def _double(message: Message, name: str) -> float:
    """A double in proto3 JSON: NaN and infinities are text."""
    value = read_double(message.raw(name))
    return value if isinstance(value, float) and not math.isfinite(value) else message.number(name)


def _tensor(point: Message, name: str, now: datetime) -> NewMetricObject:
    if not point.has("tensor"):
        raise InvalidRequest(f"{point.path}: the time series is of type TENSOR, and has a tensor in each value.")
    tensor = point.part("tensor", {"value", "versionNumber"})
    try:
        data = base64.b64decode(tensor.text("value", 4 * OBJECT_BYTES), altchars=None, validate=False)
    except binascii.Error as error:
        raise tensor.fault("value", "is no base64.") from error
    if len(data) > OBJECT_BYTES:
        raise tensor.fault("value", f"takes {len(data):,} bytes, and {OBJECT_BYTES:,} at most are kept.")
    version = tensor.whole("versionNumber")
    return NewMetricObject(name, _TENSORS, _step(point), _ms(point, now), f"{_MEDIA_TYPE}{version}", data)


def _blobs(point: Message, name: str, now: datetime) -> NewMetricObject:
    if "blobs" not in point or point.has("scalar") or point.has("tensor"):
        raise InvalidRequest(f"{point.path}: the time series is of type BLOB_SEQUENCE, and has blobs in each value.")
    ids: list[str] = []
    absent = {"data": "data of blobs are; put them in the TensorBoard's bucket (blob_storage_path_prefix)"}
    for at, item in point.part("blobs", {"values"}).items("values"):
        blob = Message(item, at)
        blob.refuse_unknown_fields({"id"}, absent=absent)
        ids.append(blob.text("id", 128))
    data = orjson.dumps(ids)
    if len(data) > OBJECT_BYTES:
        raise point.fault("blobs", f"{len(ids):,} blobs are too many.")
    return NewMetricObject(name, _TENSORS, _step(point), _ms(point, now), _BLOBS_TYPE, data)


def _step(point: Message) -> int:
    step = point.whole("step")
    if abs(step) > STEP_LIMIT:
        raise point.fault("step", "is at most 2**53.")
    return step


def _ms(point: Message, now: datetime) -> int:
    text = point.text("wallTime", 60)
    if not text:
        return milliseconds(now)
    at = parse_timestamp(text)
    if at is None:
        raise point.fault("wallTime", f"{text[:60]!r} is no time; write it like 2026-01-31T12:00:00Z.")
    ms = math.floor(at.timestamp() * 1000)
    if not 0 <= ms < TIME_LIMIT_MS:
        raise point.fault("wallTime", f"{text[:60]!r} is out of range; a time is from 1970 to 9999, in UTC.")
    return ms


def _time(ms: int) -> str:
    return timestamp(from_milliseconds(ms))


def _scalars(points: Points) -> list[dict[str, Any]]:
    return [
        {"wallTime": _time(time), "step": str(step), "scalar": {"value": json_double(value)}}
        for step, time, value in zip(points.steps, points.times, points.values, strict=True)
    ]


def _tensors(session: Session, series: StoredSeries, limit: int, budget: TensorBudget) -> list[dict[str, Any]]:
    rows = budget.newest(list_objects(session, series, after=0, limit=10_000)[-limit:])
    return [
        {"wallTime": _time(row.time), "step": str(row.step), **_written_object(row.media_type, row.data)}
        for row in sorted(rows, key=lambda row: (row.step, row.time))
    ]


def _written_object(media_type: str, data: bytes) -> dict[str, Any]:
    if media_type == _BLOBS_TYPE:
        return {"blobs": {"values": [{"id": blob_id} for blob_id in orjson.loads(data)]}}
    version = int(media_type.removeprefix(_MEDIA_TYPE))
    return {"tensor": {"value": base64.b64encode(data).decode(), "versionNumber": version}}
