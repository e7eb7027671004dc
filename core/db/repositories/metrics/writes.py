"""Writing metrics: a batch of many series costs one row; from time to time the rows are compacted into chunks.

The simple equivalent is a row for each point. Here the points of a batch are one *segment*, whatever series they belong
to. When a stream (a replica in an attempt) has gathered enough segments, they are *compacted*: each series' points are
appended to its last chunk, and full chunks get digests for charts. A writer holds the lock of the stream's row, so that
neither a batch nor a point is counted twice; readers add what is still in segments.
"""

from __future__ import annotations

import math
import struct
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, Literal, cast

from sqlalchemy import Table, bindparam, delete, func, insert, select, tuple_, update
from sqlalchemy.orm import Session

from core.db.engine import UntypedRow, insert_into
from core.db.tables import MetricChunk, MetricObject, MetricSegment, MetricSeries, MetricStream
from core.domain.metrics import (
    OBJECT_BYTES_OF_JOB,
    OBJECTS_OF_SERIES,
    POINTS_OF_JOB,
    SERIES_OF_JOB,
    SERIES_OF_REPLICA,
    Points,
    count_gpu_samples,
    digest_runs,
    from_bytes,
    name_fault,
    unpack,
)

Kind = Literal["scalar", "histogram", "image", "text"]

CHUNK_POINTS: Final = 4096
FINE_POINTS: Final = 64
COARSE_POINTS: Final = 512
# A reader reads all segments of a stream: at most so many, 0.8 MB or 64 rows. The more segments wait, the more rarely
# an incomplete chunk is repacked.
_PENDING_POINTS: Final = 32_768
_PENDING_SEGMENTS: Final = 64
# A key among a stream's writers for names that a client such as MLflow's reports. No writer can have it: writers have
# at most 100 characters.
_CLAIMED: Final = "claimed".ljust(101, ".")
_CLAIMS: Final = 1_000
_WRITERS: Final = 64  # senders of one replica: its starts, and the libraries in its processes
COUNTED_FROM: Final = 1_000_000  # points of a replica; below, the job's limit is not checked
_LOOK_UP: Final = 500  # names or ids in one statement; SQLite allows 32,766 values
_STREAMS: Final = cast("Table", MetricStream.__table__)
_SERIES: Final = cast("Table", MetricSeries.__table__)
_SEGMENTS: Final = cast("Table", MetricSegment.__table__)
_CHUNKS: Final = cast("Table", MetricChunk.__table__)
_HEAD: Final = struct.Struct("<qq")  # in a segment: series, points

# Built once, over tables instead of classes: building them took half of a batch's time.
_FIND_STREAM: Final = (
    select(_STREAMS)
    .where(
        _STREAMS.c.owner_id == bindparam("owner_id"),
        _STREAMS.c.attempt == bindparam("attempt"),
        _STREAMS.c.role == bindparam("role"),
        _STREAMS.c.replica_index == bindparam("index"),
    )
    .with_for_update()
)
_ADD_SEGMENT: Final = insert(_SEGMENTS).values(stream_id=bindparam("stream"), data=bindparam("points"))
_GROW_STREAM: Final = (
    update(_STREAMS)
    .where(_STREAMS.c.id == bindparam("stream"))
    .values(
        points=bindparam("all_points"),
        pending_points=bindparam("waiting_points"),
        pending_segments=bindparam("waiting_segments"),
        gpu_samples=_STREAMS.c.gpu_samples + bindparam("gpu_count"),
        idle_gpu_samples=_STREAMS.c.idle_gpu_samples + bindparam("idle_count"),
        writers=bindparam("last_batches"),
        updated_at=bindparam("now"),
    )
)
_FIND_ALL_SERIES: Final = select(_SERIES.c.name, _SERIES.c.kind, _SERIES.c.id).where(
    _SERIES.c.stream_id == bindparam("stream")
)


@dataclass(frozen=True, slots=True)
class StreamKey:
    """Identifies a stream. ``owner_id``: the job's id. ``attempt``: its number."""

    owner_id: str
    attempt: int
    role: str
    index: int


@dataclass(frozen=True, slots=True)
class NewMetricObject:
    """A histogram, image or text. ``time``: milliseconds since 1970."""

    name: str
    kind: Kind
    step: int
    time: int
    media_type: str
    data: bytes


@dataclass(slots=True)
class IngestResult:
    """The result of a batch. ``faults``: a sentence for each refused series; the rest was stored."""

    points: int = 0
    objects: int = 0
    is_repeated: bool = False
    faults: list[str] = field(default_factory=list)


def add_metrics(
    session: Session,
    key: StreamKey,
    series: Mapping[str, Points],
    objects: Sequence[NewMetricObject] = (),
    *,
    now: datetime,
    writer: str = "",
    batch: int | None = None,
    printed: Mapping[str, Points] = MappingProxyType({}),
    is_claim: bool = False,
) -> IngestResult:
    """Add points (scalars, by series name) and objects, in order of arrival, in the caller's transaction.

    Args:
        batch: a number that grows with each batch of ``writer``. A batch number that is not larger than the last one
            was stored before: nothing is added, and ``is_repeated`` is set. ``None``: no deduplication.
        printed: points parsed from printed output; those of a claimed name are left out.
        is_claim: from now on ``series`` are reported this way, and printed values of these names do not count (of the
            first thousand names). Earlier printed values stay: they may be a whole curve, and this report only its last
            value.
    """
    added = IngestResult()
    stream = _locked_stream(session, key, now)
    writers = stream.writers
    if batch is not None:
        if batch <= writers.get(writer, -1):
            added.is_repeated = True
            return added
        writers = _with_writer(writers, writer, batch)
    if is_claim or printed:
        stored = writers.get(_CLAIMED, ())
        claimed = frozenset(stored)
        if is_claim and len(stored) < _CLAIMS and not claimed.issuperset(series):
            # First come, first served: printed points of an evicted name would count from then on.
            new = [name for name in series if name not in claimed]
            writers = {**writers, _CLAIMED: [*stored, *new][:_CLAIMS]}
        # Names that the script reports in this batch count, too.
        series = {name: points for name, points in printed.items() if name not in claimed} | dict(series)
    if stream.points > COUNTED_FROM and _sum_of_owner(session, key.owner_id, MetricStream.points) >= POINTS_OF_JOB:
        added.faults.append(
            f"the job has reported {POINTS_OF_JOB:,} points, and more are not stored; report less often"
        )
        series = {}
    wanted = {(name, "scalar") for name, points in series.items() if points}
    wanted.update((item.name, item.kind) for item in objects)
    changes: dict[str, Any] = {}
    ids = _series_ids(session, stream, key, wanted, changes, added)
    segment = _segment(series, ids, added)
    if segment:
        session.execute(_ADD_SEGMENT, {"stream": stream.id, "points": segment})
    if objects:
        _add_objects(session, stream, key, objects, ids, changes, added)
    waiting_points = stream.pending_points + added.points
    waiting_segments = stream.pending_segments + bool(segment)
    gpu_samples, idle_gpu_samples = count_gpu_samples(series)
    session.execute(
        _GROW_STREAM,
        {
            "stream": stream.id,
            "all_points": stream.points + added.points,
            "waiting_points": waiting_points,
            "waiting_segments": waiting_segments,
            "gpu_count": gpu_samples,
            "idle_count": idle_gpu_samples,
            "last_batches": writers,
            "now": now,
        },
    )
    if changes:
        session.execute(update(_STREAMS).where(_STREAMS.c.id == stream.id).values(**changes))
    if segment and (waiting_points >= _PENDING_POINTS or waiting_segments >= _PENDING_SEGMENTS):
        compact(session, stream.id)
    return added


def compact(session: Session, stream_id: int) -> None:
    """Move all segments of a stream into the chunks of their series. The caller holds the stream's lock."""
    rows = session.execute(
        select(MetricSegment.id, MetricSegment.data)
        .where(MetricSegment.stream_id == stream_id)
        .order_by(MetricSegment.id)
    ).all()
    gathered = gather(row.data for row in rows)
    ids = list(gathered)
    for start in range(0, len(ids), _LOOK_UP):
        _append_to_chunks(session, {number: gathered[number] for number in ids[start : start + _LOOK_UP]})
    if rows:
        session.execute(
            delete(MetricSegment).where(MetricSegment.stream_id == stream_id, MetricSegment.id <= rows[-1].id)
        )
    session.execute(
        update(MetricStream)
        .where(MetricStream.id == stream_id)
        .values(pending_points=0, pending_segments=0, compactions=MetricStream.compactions + 1)
        .execution_options(synchronize_session=False)
    )


def gather(segments: Iterable[bytes], only: Container[int] | None = None) -> dict[int, Points]:
    """The points of segments by series, in order of arrival. ``only``: of these series."""
    gathered: defaultdict[int, Points] = defaultdict(Points)
    for data in segments:
        view = memoryview(data)
        position = 0
        while position < len(view):
            number, count = _HEAD.unpack_from(view, position)
            position += _HEAD.size
            end = position + 24 * count
            if only is None or number in only:
                gathered[number].extend(from_bytes(view[position:end]))
            position = end
    return gathered


def delete_metrics(session: Session, owner_ids: Sequence[str]) -> int:
    """Delete all metrics of these jobs; returns the number of streams."""
    streams = session.scalars(select(MetricStream.id).where(MetricStream.owner_id.in_(owner_ids))).all()
    if streams:
        session.execute(delete(MetricStream).where(MetricStream.id.in_(streams)))  # the rest follows by its keys
    return len(streams)


def _locked_stream(session: Session, key: StreamKey, now: datetime) -> UntypedRow:
    place = {"owner_id": key.owner_id, "attempt": key.attempt, "role": key.role, "index": key.index}
    found = session.execute(_FIND_STREAM, place).one_or_none()
    if found is None:
        row = {
            "owner_id": key.owner_id,
            "attempt": key.attempt,
            "role": key.role,
            "replica_index": key.index,
            **dict.fromkeys(
                (
                    *("series_count", "points", "pending_points", "pending_segments", "compactions", "objects"),
                    *("gpu_samples", "idle_gpu_samples"),
                ),
                0,
            ),
            "object_bytes": 0,
            "writers": {},
            "updated_at": now,
        }
        session.execute(insert_into(session, _STREAMS).values(**row).on_conflict_do_nothing())
        found = session.execute(_FIND_STREAM, place).one()
    return found


def _with_writer(writers: Mapping[str, Any], writer: str, batch: int) -> dict[str, Any]:
    stored = {_CLAIMED: writers[_CLAIMED]} if _CLAIMED in writers else {}
    others = {name: last for name, last in writers.items() if name not in (writer, _CLAIMED)}
    while len(others) >= _WRITERS:
        del others[next(iter(others))]
    return {**stored, **others, writer: batch}


def _series_ids(
    session: Session,
    stream: UntypedRow,
    key: StreamKey,
    wanted: set[tuple[str, str]],
    changes: dict[str, Any],
    added: IngestResult,
) -> dict[tuple[str, str], int]:
    if stream.series_count <= _LOOK_UP:
        ids = {(row[0], row[1]): row[2] for row in session.execute(_FIND_ALL_SERIES, {"stream": stream.id})}
    else:
        ids = _known_ids(session, stream.id, wanted)
    missing = sorted(wanted - ids.keys())
    if not missing:
        return ids
    room = SERIES_OF_REPLICA - stream.series_count
    if stream.series_count + len(missing) > 100:  # a job of many replicas with few series each is never near its limit
        room = min(room, SERIES_OF_JOB - _sum_of_owner(session, key.owner_id, MetricStream.series_count))
    made: list[dict[str, Any]] = []
    for name, kind in missing:
        fault = name_fault(name)
        if fault is not None:
            added.faults.append(fault)
        elif len(made) >= room:
            added.faults.append(
                f"{key.role}-{key.index} has {stream.series_count + len(made):,} metrics, and more are not stored: "
                f"{name!r} is dropped; put what varies into the step, not into the name"
            )
            break
        else:
            made.append({"stream_id": stream.id, "name": name, "kind": kind, "count": 0})
    if made:
        session.execute(insert(MetricSeries), made)
        ids.update(_known_ids(session, stream.id, {(row["name"], row["kind"]) for row in made}))
        changes["series_count"] = stream.series_count + len(made)
    return ids


def _known_ids(session: Session, stream_id: int, wanted: set[tuple[str, str]]) -> dict[tuple[str, str], int]:
    names = sorted({name for name, _ in wanted})
    found: dict[tuple[str, str], int] = {}
    for start in range(0, len(names), _LOOK_UP):
        rows = session.execute(
            select(MetricSeries.name, MetricSeries.kind, MetricSeries.id).where(
                MetricSeries.stream_id == stream_id, MetricSeries.name.in_(names[start : start + _LOOK_UP])
            )
        )
        found.update(((row[0], row[1]), row[2]) for row in rows)
    return found


def _sum_of_owner(session: Session, owner_id: str, column: Any) -> int:
    return int(session.execute(select(func.sum(column)).where(MetricStream.owner_id == owner_id)).scalar_one() or 0)


def _segment(series: Mapping[str, Points], ids: Mapping[tuple[str, str], int], added: IngestResult) -> bytes:
    parts: list[bytes] = []
    for name, points in series.items():
        number = ids.get((name, "scalar"))
        if number is not None and points:
            parts += (_HEAD.pack(number, len(points)), points.to_bytes())
            added.points += len(points)
    return b"".join(parts)


def _append_to_chunks(session: Session, gathered: Mapping[int, Points]) -> None:
    rows = session.execute(
        select(_SERIES.c.id, _SERIES.c.count.label("size"), _SERIES.c.low, _SERIES.c.high).where(
            _SERIES.c.id.in_(gathered)
        )
    ).all()
    open_chunks = [(row.id, row.size // CHUNK_POINTS) for row in rows if row.size % CHUNK_POINTS]
    place = tuple_(_CHUNKS.c.series_id, _CHUNKS.c.number)
    tails = (
        {
            row.series_id: unpack(row.data)
            for row in session.execute(select(_CHUNKS.c.series_id, _CHUNKS.c.data).where(place.in_(open_chunks)))
        }
        if open_chunks
        else {}
    )
    chunks: list[dict[str, Any]] = []
    changed: list[dict[str, Any]] = []
    for row in rows:
        new = gathered[row.id]
        points = tails.get(row.id, Points())
        points.extend(new)
        first = row.size // CHUNK_POINTS
        chunks.extend(
            _chunk(row.id, first + number, points[start : start + CHUNK_POINTS])
            for number, start in enumerate(range(0, len(points), CHUNK_POINTS))
        )
        low, high = new.finite_range(row.low, row.high)
        changed.append(
            {
                "id": row.id,
                "count": row.size + len(new),
                "last_step": new.steps[-1],
                "last_time": new.times[-1],
                "last_value": _storable(new.values[-1]),
                "low": low,
                "high": high,
            }
        )
    if open_chunks:
        session.execute(delete(_CHUNKS).where(place.in_(open_chunks)))
    session.execute(insert(_CHUNKS), chunks)
    session.execute(update(MetricSeries), changed)


def _chunk(series_id: int, number: int, points: Points) -> dict[str, Any]:
    is_full = len(points) == CHUNK_POINTS
    fine = digest_runs(points, FINE_POINTS) if is_full else None
    times_finer = COARSE_POINTS // FINE_POINTS
    return {
        "series_id": series_id,
        "number": number,
        "count": len(points),
        "step_min": min(points.steps),
        "step_max": max(points.steps),
        "time_min": min(points.times),
        "time_max": max(points.times),
        "data": points.pack(),
        "fine": fine.pack() if fine else b"",
        "coarse": fine.merge((start, start + times_finer) for start in range(0, len(fine), times_finer)).pack()
        if fine
        else b"",
    }


def _storable(value: float) -> float | None:
    return None if math.isnan(value) else value


def _add_objects(
    session: Session,
    stream: UntypedRow,
    key: StreamKey,
    objects: Sequence[NewMetricObject],
    ids: Mapping[tuple[str, str], int],
    changes: dict[str, Any],
    added: IngestResult,
) -> None:
    room = OBJECT_BYTES_OF_JOB - _sum_of_owner(session, key.owner_id, MetricStream.object_bytes)
    rows: list[dict[str, Any]] = []
    size = 0
    for item in objects:
        number = ids.get((item.name, item.kind))
        if number is None:
            continue
        if size + len(item.data) > room:
            added.faults.append(
                f"the job's histograms, images and texts have reached {OBJECT_BYTES_OF_JOB // 2**20} MiB: "
                f"{item.name!r} at step {item.step} is dropped"
            )
            break
        size += len(item.data)
        rows.append(
            {
                "series_id": number,
                "step": item.step,
                "time": item.time,
                "media_type": item.media_type,
                "data": item.data,
            }
        )
    if not rows:
        return
    session.execute(insert(MetricObject), rows)
    added.objects = len(rows)
    dropped = sum(_thin(session, number) for number in {row["series_id"] for row in rows})
    changes.update(objects=stream.objects + len(rows), object_bytes=max(0, stream.object_bytes + size - dropped))
    newest = {row["series_id"]: row for row in rows}
    counts: defaultdict[int, int] = defaultdict(int)
    for row in rows:
        counts[row["series_id"]] += 1
    for number, row in newest.items():
        session.execute(
            update(MetricSeries)
            .where(MetricSeries.id == number)
            .values(count=MetricSeries.count + counts[number], last_step=row["step"], last_time=row["time"])
            .execution_options(synchronize_session=False)
        )


def _thin(session: Session, series_id: int) -> int:
    """Keep about as many objects of a series as allowed: the first, the newest, and every other one between. Returns
    the bytes removed.
    """
    rows = session.execute(
        select(MetricObject.id, func.length(MetricObject.data))
        .where(MetricObject.series_id == series_id)
        .order_by(MetricObject.id)
    ).all()
    if len(rows) <= OBJECTS_OF_SERIES:
        return 0
    thinned = rows[1:-1:2]
    session.execute(delete(MetricObject).where(MetricObject.id.in_([row[0] for row in thinned])))
    return sum(row[1] for row in thinned)
