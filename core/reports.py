"""Ingestion of the replicas' reports, from the network or from their spools, into the database: exactly once and in
order, despite losses and retransmissions.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import orjson
from pydantic import ValidationError
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session
from trainmaster.wire.metrics import NewMetrics, NewObject, NewPoints, Report, ReportItem

from core import telemetry
from core.db.engine import insert_into
from core.db.repositories.events import append_event
from core.db.repositories.job_speeds import add_measurement
from core.db.repositories.metrics import writes
from core.db.repositories.metrics.writes import NewMetricObject, StreamKey, add_metrics
from core.db.tables import Attempt, Checkpoint, Event, Job, Replica
from core.domain.errors import AttemptEnded, InvalidRequest, NotFound
from core.domain.ids import AttemptId
from core.domain.jobs import progress_rate, speed_meter
from core.domain.jobs.states import ReplicaState
from core.domain.metrics import BINS_LIMIT, OBJECT_BYTES, STEP_LIMIT, TEXT_LIMIT, TIME_LIMIT_MS, Points
from core.domain.studies import metric_sources
from core.ids import new_id
from core.telemetry import SpanPlace

# Each start of a replica numbers its items from 1. The column holds the start's number in the upper bits, the item's in
# the lower: 2^40 items of one start, a hundred a second, are 350 years.
_SEQ_BITS: Final = 40
_SEQ_MASK: Final = 2**_SEQ_BITS - 1
_GENERATION_MAX: Final = 2**22
_INDEX_MAX: Final = 2**31 - 1

# What the runtime measures of a replica's start.
_SPANS: Final = frozenset({"prepare", "first line", "command"})
_NO_NUMBERS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_METRIC_LIMIT: Final = 256  # values of one report item
_NAME_LIMIT: Final = 200
_PATH_LIMIT: Final = 4096
_TEXT_LIMIT: Final = 4000
_BIG: Final = 2**63 - 1
# Prefix of a job's own events; the platform never uses this noun, so they cannot be confused.
_KIND: Final = re.compile(r"^train\.[a-z][a-z0-9_]{0,60}$")
_NOTE: Final = "train.note"
_DROPPED: Final = "train.events_dropped"
# Events that all replicas of one attempt may add to the history, which is stored for good.
EVENT_LIMIT: Final = 10_000
# Grace for spooled reports after the attempt's end.
_LATE: Final = timedelta(seconds=60)
_PLACE: Final = ["job_id", "path"]  # a checkpoint's key: job and path
_IMAGES: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


class _Refused(ValueError):
    """One unusable item; the sentence says why."""


def ingest_report(
    session: Session, attempt_id: AttemptId, report: Report, *, now: datetime, is_spooled: bool = False
) -> int:
    """Write the new items of ``report`` and return the largest sequence number that the sender may discard.

    All items are acknowledged: an unusable one is noted in the job's history, not sent again.

    Args:
        is_spooled: it was read from the replica's spool, not sent by the replica itself. It proves no liveness, and may
            be as old as the attempt.

    Raises:
        InvalidRequest: sequence numbers out of range.
        NotFound: there is no such attempt or replica; retrying is of no use.
        AttemptEnded: ended a minute ago or longer, or the job was deleted, or the gang goes on without the replica: it
            should end.
    """
    newest = max((item.seq for item in report.items), default=0)
    if newest > _SEQ_MASK or report.generation > _GENERATION_MAX or report.index > _INDEX_MAX:
        raise InvalidRequest("The report's numbers are out of range: seq, generation or index.", field="items")
    replica, job, number, world = _lock_replica(session, attempt_id, report, now, is_spooled=is_spooled)
    generation, last_seq = replica.report_seq >> _SEQ_BITS, replica.report_seq & _SEQ_MASK
    if generation < report.generation:
        last_seq = 0
    is_late = generation > report.generation or replica.generation > report.generation
    items = sorted((item for item in report.items if is_late or item.seq > last_seq), key=lambda item: item.seq)

    taker = _ReportIngest(session, replica, job, now, world=world, is_late=is_late)
    for item in items:
        taker.take(item)
    # Items of a late report cannot be distinguished from earlier ones, so its metrics have a batch number of their own.
    taker.add_metrics(number, writer=f"runtime-{report.generation}", batch=newest)
    taker.tell_refusals()
    if is_late:
        return newest
    acked = max(last_seq, newest)
    changes: dict[str, Any] = {"report_seq": (report.generation << _SEQ_BITS) | acked}
    if not is_spooled:
        changes["heartbeat_at"] = now
    if taker.progress is not None:
        changes["progress"] = taker.progress
    session.execute(
        update(Replica).where(Replica.id == replica.id).values(**changes).execution_options(synchronize_session=False)
    )
    return acked


def _lock_replica(
    session: Session, attempt_id: AttemptId, report: Report, now: datetime, *, is_spooled: bool
) -> tuple[Replica, Job, int, int]:
    """The replica, its job, and the number and world of its attempt."""
    row = session.execute(
        select(Replica, Job, Attempt.number, Attempt.ended_at, Attempt.world)
        .join(Attempt, Attempt.id == Replica.attempt_id)
        .join(Job, Job.id == Attempt.job_id)
        .where(Replica.attempt_id == attempt_id, Replica.role == report.role, Replica.index == report.index)
        .with_for_update(of=Replica)  # two requests of one replica must not both ingest an item
    ).one_or_none()
    if row is None:
        raise NotFound(f"There is no replica {report.role}-{report.index} in attempt {attempt_id}.")
    replica, job, number, ended_at, world = row
    if job.deleted_at is not None:
        raise AttemptEnded("The job of this token was deleted; its replicas report no more.")
    if ended_at is not None and now - ended_at > _LATE:
        raise AttemptEnded("The attempt of this token has ended; its replicas report no more.")
    # Spooled reports of an attempt with a single world cannot come from a removed replica.
    if not is_spooled or world > 1:
        _check_wanted(replica, report.generation, now, _LATE)
    return replica, job, number, world


class _ReportIngest:
    """Ingests the items of one report. ``progress``: the new value, ``None`` if unchanged."""

    def __init__(
        self, session: Session, replica: Replica, job: Job, now: datetime, *, world: int, is_late: bool
    ) -> None:
        self.session = session
        self.now = now
        self.replica = replica
        self.job = job
        self.world = world
        self.is_late = is_late  # of an earlier start of this replica: its files count, its progress does not
        self.progress: dict[str, Any] | None = None
        self.refusals: list[str] = []
        self._points: dict[str, Points] = {}
        self._printed: dict[str, Points] = {}
        self._objects: list[NewMetricObject] = []
        self._event_count: int | None = None  # events of this attempt so far; counted lazily

    def take(self, item: ReportItem) -> None:
        try:
            match item.kind:
                case "heartbeat":
                    pass  # any report proves liveness
                case "progress":
                    if not self.is_late:
                        self._take_progress(item)
                case "checkpoint":
                    self._take_checkpoint(item)
                case "event":
                    if not self.is_late:
                        self._take_event(item)
                case "metrics":
                    self._take_metrics(item)
        except _Refused as refusal:
            self.refusals.append(f"{item.kind}: {refusal}")

    def _take_progress(self, item: ReportItem) -> None:
        before = self.replica.progress if self.progress is None else self.progress
        if "metric_sources" in item.data:  # its metric sources; reported at the end, separately from progress
            counts = metric_sources.parse_sources(item.data["metric_sources"])
            self.progress = before if counts is None else {**before, metric_sources.KEY: counts}
            return
        if "spans" in item.data:  # likewise
            self._record_spans(item.data["spans"])
            return
        if "metric_suggestions" in item.data:  # likewise
            suggestions = metric_sources.parse_suggestions(item.data["metric_suggestions"])
            self.progress = {**before, metric_sources.SUGGESTIONS_KEY: suggestions}
            return
        known: dict[str, Any] = {
            name: _number(item.data, name) for name in ("step", "steps", "epoch", "epochs") if name in item.data
        }
        metrics = {**before.get("metrics", {}), **_metrics(item.data)}
        if len(metrics) > _METRIC_LIMIT:
            raise _Refused(f"more than {_METRIC_LIMIT} metrics")
        self.progress = {**before, **known, "metrics": metrics, "at": _utc(item.at).isoformat()}
        self.progress[progress_rate.KEY] = progress_rate.with_sample(self.progress, _utc(item.at).timestamp())
        self._measure_speed(_utc(item.at).timestamp())
        self._note_points(item, self.progress.get("step"))

    def _record_spans(self, spans: object) -> None:
        """Spans of the runtime: ``{name: [begin, end]}``, seconds since 1970."""
        replica = f"{self.replica.role}-{self.replica.index}"
        parent = SpanPlace(self.job.id, self.replica.attempt_id, replica)
        for name, times in spans.items() if isinstance(spans, dict) else ():
            if name not in _SPANS or not isinstance(times, list) or len(times) != len(("begin", "end")):
                raise _Refused("spans are not those of the runtime")
            began_at, ended_at = (_time(seconds) for seconds in times)
            telemetry.record(
                name, began_at, ended_at, place=replace(parent, replica=f"{replica}/{name}"), parent=parent
            )

    def _measure_speed(self, at_s: float) -> None:
        """Attribute the steps of an elastic job to the number of replicas with which it ran them."""
        progress, replica = self.progress, self.replica
        role = next((role[0] for role in self.job.gang["roles"] if len(role) > 6 and role[6] is not None), None)
        if role is None or replica.rank != 0 or progress is None or progress.get("step") is None:
            return
        world, meter = (self.world, replica.generation), speed_meter.meter_of(progress)
        if meter is None or not speed_meter.is_current(meter, world):
            layout = self.session.scalar(select(Attempt.layout).where(Attempt.id == replica.attempt_id)) or []
            replicas = sum(member["role"] == role for member in layout)
            progress[speed_meter.KEY] = speed_meter.new_meter(world, replicas, at_s)
            return
        progress[speed_meter.KEY], measured = speed_meter.advance_meter(meter, progress["step"], at_s)
        if measured is not None and measured.replicas:
            add_measurement(
                self.session, self.job.id, measured.replicas,
                steps=measured.steps, seconds=measured.seconds, now=self.now,
            )  # fmt: skip

    def _note_points(self, item: ReportItem, step: float | None) -> None:
        """Store a progress item's metrics as points of its step, non-finite ones included."""
        at = int(max(0.0, _utc(item.at).timestamp()) * 1000)
        for name, value in (item.data.get("metrics") or {}).items():
            if value is not None and abs(step or 0) <= STEP_LIMIT:
                number = _NO_NUMBERS[value] if isinstance(value, str) else float(value)
                self._points.setdefault(name[:_NAME_LIMIT], Points()).extend(Points([int(step or 0)], [at], [number]))

    def _take_metrics(self, item: ReportItem) -> None:
        try:
            new = NewMetrics.model_validate(item.data)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise _Refused(f"{place}: {first['msg']}") from None
        for name, points in columns_of(new.series, _utc(item.at), self.refusals).items():
            among = self._printed if new.is_printed else self._points
            known = among.get(name)
            if known is None:
                among[name] = points
            else:
                known.extend(points)
        self._objects += objects_of(new.objects, _utc(item.at), self.refusals)

    def add_metrics(self, attempt: int, *, writer: str, batch: int) -> None:
        """Write the points and objects of all items."""
        if self._points or self._printed or self._objects:
            key = StreamKey(self.job.id, attempt, self.replica.role, self.replica.index)
            added = add_metrics(
                self.session,
                key,
                self._points,
                self._objects,
                printed=self._printed,
                now=self.now,
                writer=writer,
                batch=batch,
            )
            self.refusals += added.faults

    def _take_checkpoint(self, item: ReportItem) -> None:
        path = _relative_path(item.data.get("path"))
        step = _number(item.data, "step")
        values: dict[str, Any] = {
            "job_id": self.job.id,
            "attempt_id": self.replica.attempt_id,
            "path": path,
            "step": None if step is None else int(step),
            "metrics": _metrics(item.data),
            "size_bytes": _size(item.data.get("size_bytes")),
            "created_at": min(_utc(item.at), self.now),
        }
        # A path reported again is the same checkpoint rewritten: the newest report wins.
        again = {name: values[name] for name in ("attempt_id", "step", "metrics", "size_bytes", "created_at")}
        new = insert_into(self.session, Checkpoint).values(id=new_id("checkpoint"), **values)
        self.session.execute(new.on_conflict_do_update(index_elements=_PLACE, set_=again))
        at_step = "" if step is None else f" at step {int(step)}"
        self._tell("checkpoint.saved", f"{path}{at_step}", {"path": path, "step": values["step"]})

    def _take_event(self, item: ReportItem) -> None:
        kind = item.data.get("kind")
        reason = str(item.data.get("reason", ""))[:_TEXT_LIMIT]
        if isinstance(kind, str) and _KIND.match(kind):
            self._tell(kind, reason, {})
        else:
            self._tell(_NOTE, reason, {"kind": str(kind)[:_NAME_LIMIT]} if kind else {})

    def tell_refusals(self) -> None:
        """One event for all refused items, so that a script that reports nonsense does not flood the history."""
        if self.refusals:
            count = len(self.refusals)
            reason = (
                f"{count} reported {'item was' if count == 1 else 'items were'} not usable; first {self.refusals[0]}"
            )
            if not self._is_recorded("replica.report_refused", reason):
                self._tell("replica.report_refused", reason, {"count": count})

    def _is_recorded(self, kind: str, reason: str) -> bool:
        """Whether this replica's history has the same event already; repeated refusals need no second one."""
        query = select(Event.id).where(
            Event.job_id == self.job.id,
            Event.attempt_id == self.replica.attempt_id,
            Event.kind == kind,
            Event.actor == f"runtime:{self.replica.role}-{self.replica.index}",
            Event.reason == reason,
        )
        return self.session.execute(query.limit(1)).first() is not None

    def _tell(self, kind: str, reason: str, data: Mapping[str, Any]) -> None:
        if self._event_count is None:
            self._event_count = self._count_events()
        self._event_count += 1
        if self._event_count > EVENT_LIMIT + 1:
            return
        if self._event_count > EVENT_LIMIT:
            kind, reason, data = _DROPPED, f"This attempt has reported {EVENT_LIMIT:,} events; the rest is dropped.", {}
        append_event(
            self.session,
            at=self.now,
            kind=kind,
            actor=f"runtime:{self.replica.role}-{self.replica.index}",
            project_id=self.job.project_id,
            job_id=self.job.id,
            attempt_id=self.replica.attempt_id,
            reason=reason,
            data=data,
        )

    def _count_events(self) -> int:
        """At most one more than the limit and its notice, so that a flood is not counted whole each time."""
        query = select(Event.id).where(
            Event.job_id == self.job.id,
            Event.attempt_id == self.replica.attempt_id,
            Event.actor.startswith("runtime:", autoescape=True),
        )
        counted = select(func.count()).select_from(query.limit(EVENT_LIMIT + 1).subquery())
        return self.session.execute(counted).scalar_one()


def _utc(at: datetime) -> datetime:
    try:
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except OverflowError:  # such as the year 1, east of Greenwich
        raise _Refused(f"at is not a time: {at.isoformat()}") from None


def _number(data: Mapping[str, Any], name: str) -> float | int | None:
    value = data.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > _BIG or not math.isfinite(value):
        raise _Refused(f"{name} is not a number")
    return value


def _metrics(data: Mapping[str, Any]) -> dict[str, float | int]:
    metrics = data.get("metrics") or {}
    if not isinstance(metrics, dict) or len(metrics) > _METRIC_LIMIT:
        raise _Refused(f"metrics is not an object of at most {_METRIC_LIMIT} numbers")
    found: dict[str, float | int] = {}
    for name, value in metrics.items():
        # A loss that became NaN arrives as null, or as the training library's text for it: the last finite value stays.
        number = None if isinstance(value, str) and value in _NO_NUMBERS else _number(metrics, name)
        if number is not None:
            found[name[:_NAME_LIMIT]] = number
    return found


def _size(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _BIG:
        raise _Refused("size_bytes is not a size")
    return value


def _relative_path(value: Any) -> str:
    if not isinstance(value, str) or not value or len(value) > _PATH_LIMIT:
        raise _Refused("path is missing")
    if value.startswith("/") or ".." in value.split("/") or "\0" in value:
        raise _Refused(f"path {value[:100]!r} is not relative to the output")
    return "/".join(part for part in value.split("/") if part not in ("", "."))


def _check_wanted(replica: Replica, generation: int, now: datetime, late: timedelta) -> None:
    """Raise :class:`AttemptEnded` when the gang goes on without the start that reports: it is to end.

    It may have been cut off with its node, and have trained on in a world that its peers have left.

    Args:
        generation: of the start that reports.
        late: what a start that has just ended still had to say may come in for this long.
    """
    has_ended = replica.ended_at is not None and now - replica.ended_at > late
    if replica.generation == generation:
        is_left = replica.state == ReplicaState.LOST.value or (replica.state == ReplicaState.FAILED.value and has_ended)
    else:
        # Another one runs in its place.
        is_left = replica.generation > generation and (
            replica.started_at is not None and now - replica.started_at > late
        )
    if is_left:
        raise AttemptEnded("The gang of this replica goes on without it; it is to end, and reports no more.")


class MetricRejected(ValueError):
    """One unusable series or object; the sentence says why."""


def columns_of(series: Iterable[NewPoints], now: datetime, faults: list[str]) -> dict[str, Points]:
    """Points by name; unusable series are reported in ``faults``."""
    found: dict[str, Points] = {}
    for entry in series:
        try:
            points = _points(entry, now)
        except MetricRejected as refusal:
            faults.append(f"metric {entry.name[:60]!r}: {refusal}")
            continue
        known = found.get(entry.name)
        if known is None:
            found[entry.name] = points
        else:
            known.extend(points)
    return found


def objects_of(objects: Iterable[NewObject], now: datetime, faults: list[str]) -> list[writes.NewMetricObject]:
    """Objects in storage form; unusable ones are reported in ``faults``."""
    found = []
    for entry in objects:
        try:
            media_type, data = _content(entry)
            step, time = _step(entry.step), _milliseconds(entry.time_s, now)
        except MetricRejected as refusal:
            faults.append(f"{entry.kind} {entry.name[:60]!r}: {refusal}")
            continue
        found.append(writes.NewMetricObject(entry.name, entry.kind, step, time, media_type, data))
    return found


def _points(entry: NewPoints, now: datetime) -> Points:
    count = len(entry.values)
    if len(entry.steps) != count or (entry.times_s is not None and len(entry.times_s) != count):
        raise MetricRejected("steps, values and times_s differ in length")
    if not count:
        return Points()
    if not -STEP_LIMIT <= min(entry.steps) <= max(entry.steps) <= STEP_LIMIT:
        raise MetricRejected("a step is beyond 2^53")
    if entry.times_s is None:
        times: Sequence[int] = [_milliseconds(None, now)] * count
    else:
        # NaN compares false with everything, so it would pass a range check.
        if not (min(entry.times_s) >= 0 and max(entry.times_s) * 1000 < TIME_LIMIT_MS) or any(
            map(math.isnan, entry.times_s)
        ):
            raise MetricRejected("times_s are seconds since 1970")
        times = [int(time * 1000) for time in entry.times_s]
    return Points(entry.steps, times, entry.values)


def _step(step: int) -> int:
    if not -STEP_LIMIT <= step <= STEP_LIMIT:
        raise MetricRejected("its step is beyond 2^53")
    return step


def _milliseconds(time_s: float | None, now: datetime) -> int:
    if time_s is None:
        return int(now.timestamp() * 1000)
    if not 0 <= time_s * 1000 < TIME_LIMIT_MS:
        raise MetricRejected("time_s is seconds since 1970")
    return int(time_s * 1000)


def _content(entry: NewObject) -> tuple[str, bytes]:
    """The stored media type and bytes."""
    match entry.kind:
        case "histogram":
            return "application/json", orjson.dumps(_histogram(entry.data))
        case "text":
            if not isinstance(entry.data, str):
                raise MetricRejected("data is the text")
            data = entry.data.encode("utf-8", "replace")
            if len(data) > TEXT_LIMIT:
                data = data[:TEXT_LIMIT].decode("utf-8", "ignore").encode() + " … (cut)".encode()
            return "text/plain", data
        case "image":
            return _image(entry.data)


def _image(data: Any) -> tuple[str, bytes]:
    try:
        content = base64.b64decode(data, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise MetricRejected("data is not base64") from None
    if len(content) > OBJECT_BYTES:
        raise MetricRejected(f"images have at most {OBJECT_BYTES // 1024} KiB; make it smaller")
    for start, media_type in _IMAGES:
        if content.startswith(start):
            return media_type, content
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp", content
    raise MetricRejected("it is no PNG, JPEG, GIF or WebP")


def _histogram(data: Any) -> dict[str, list[float]]:
    edges, counts = (data.get("edges"), data.get("counts")) if isinstance(data, dict) else (None, None)
    if not isinstance(edges, list) or not isinstance(counts, list) or len(edges) != len(counts) + 1:
        raise MetricRejected('data is {"edges": [n + 1 numbers], "counts": [n numbers]}')
    if not 1 <= len(counts) <= BINS_LIMIT:
        raise MetricRejected(f"it has {len(counts)} bins, and 1 to {BINS_LIMIT} are kept")
    for number in (*edges, *counts):
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise MetricRejected("edges and counts are finite numbers")
    if any(low > high for low, high in itertools.pairwise(edges)) or min(counts) < 0:
        raise MetricRejected("edges grow, and no count is below zero")
    return {"edges": [float(edge) for edge in edges], "counts": [float(count) for count in counts]}


def _time(seconds: object) -> datetime:
    """Raises ``_Refused``."""
    if not isinstance(seconds, int | float) or not 0 <= seconds < TIME_LIMIT_MS / 1000:
        raise _Refused("a time of a span is no number of seconds since 1970")
    return datetime.fromtimestamp(seconds, UTC)
