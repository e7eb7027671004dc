"""Incremental reading of running trials' curves: each pass reads the points that arrived since the last. May be lost.

Points of a series are numbered by arrival, so the count of read points says where to continue, whatever their steps
are. Where new points do not continue what was read, the trial is read again from its first point: another replica's
series counts from now on, or a late report of an attempt before the last arrived.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from sqlalchemy.orm import Session
from trainmaster.spec.enums import role_order
from trainmaster.studies import Goal

from core.db.repositories.metrics.reads import StoredSeries, StreamMark, marks_of, newer_segments, read_points
from core.domain.metrics import Points
from core.domain.studies.curves import Trace
from scheduler.control.studies.reported_metrics import authoritative_series

# Jobs whose new points are in memory at once.
_AT_ONCE: Final = 50
# Points read in one pass: the lease has its time, and after a start of the process all are to be read.
_OF_A_LOOK: Final = 400_000
_OF_A_READ: Final = 65_536
_NO_COMPACTIONS: Final = -1


@dataclass(frozen=True, slots=True)
class _Read:
    """Of the authoritative series of an attempt: how many of its points are read, and the newest segment among them."""

    series_id: int
    count: int
    stream_id: int
    compactions: int
    last_segment: int


@dataclass(slots=True)
class _Followed:
    """``marks``: of the job's streams, when they were last read to their end. ``read``: by attempt."""

    trace: Trace
    marks: tuple[StreamMark, ...] = ()
    read: dict[int, _Read] = field(default_factory=dict)


class TraceFollower:
    """Of one study; for one thread."""

    def __init__(self, most_points: int = _OF_A_LOOK) -> None:
        self._most_points = most_points
        self._followed: dict[int, _Followed] = {}

    def read_new(
        self, session: Session, jobs: Mapping[int, str], metric: str, goal: Goal
    ) -> tuple[dict[int, Trace], bool]:
        """The traces of these trials, by number, and whether they are complete; else call again.

        ``jobs``: the trials' jobs by number. Other trials are forgotten.
        """
        self._followed = {number: self._followed.get(number) or _Followed(Trace(number, goal)) for number in jobs}
        owners = {job_id: self._followed[number] for number, job_id in jobs.items()}
        marks = marks_of(session, list(owners))
        news = {job_id: new for job_id, new in marks.items() if owners[job_id].marks != new}
        room = self._most_points
        done = self._append(session, owners, news)
        left = [job_id for job_id in news if job_id not in done]
        for begin in range(0, len(left), _AT_ONCE):
            page = left[begin : begin + _AT_ONCE]
            found = authoritative_series(session, page, [metric])
            for job_id in page:
                series = [item for (owner, _, _), item in found.items() if owner == job_id]
                room -= _catch_up(session, owners[job_id], series, room)
                if room <= 0:
                    return self._traces(), False
                owners[job_id].marks = news[job_id]
        return self._traces(), True

    def _traces(self) -> dict[int, Trace]:
        return {number: followed.trace for number, followed in self._followed.items()}

    def _append(
        self, session: Session, owners: Mapping[str, _Followed], news: Mapping[str, tuple[StreamMark, ...]]
    ) -> set[str]:
        """Read what arrived in new segments alone, of all jobs together; returns the jobs with nothing else that is
        new.
        """
        reads: dict[int, tuple[str, int, _Read]] = {}
        done: set[str] = set()
        for job_id, marks in news.items():
            grown = _grown(owners[job_id], marks)
            if grown is None:
                continue
            done.add(job_id)
            reads.update({read.stream_id: (job_id, attempt, read) for attempt, read in grown.items()})
        last = {stream_id: read.last_segment for stream_id, (_, _, read) in reads.items()}
        ids = {read.series_id for _, _, read in reads.values()}
        compactions = {stream_id: read.compactions for stream_id, (_, _, read) in reads.items()}
        found = newer_segments(session, last, ids, compactions)
        for stream_id, (job_id, attempt, read) in reads.items():
            if stream_id not in found:
                done.discard(job_id)  # its segments were compacted into chunks meanwhile
                continue
            segment, points = found[stream_id]
            new = points.get(read.series_id, Points())
            own = owners[job_id]
            own.trace.add(zip(new.steps, new.values, strict=True))
            own.read[attempt] = replace(read, count=read.count + len(new), last_segment=segment)
        for job_id in done:
            owners[job_id].marks = news[job_id]
        return done


def _grown(own: _Followed, marks: Sequence[StreamMark]) -> dict[int, _Read] | None:
    """What to read on, where only the last attempt got new segments; ``None``: anything else may have arrived."""
    before = {mark.id: mark for mark in own.marks}
    last = max(own.read, default=0)
    read = own.read.get(last)
    counting = None if read is None else before.get(read.stream_id)
    if read is None or counting is None:
        return None
    weight = (role_order(counting.role), counting.index)
    for mark in marks:
        old = before.get(mark.id)
        is_same = old is not None and old.points == mark.points
        if mark.id == read.stream_id:
            if mark.compactions != read.compactions:
                return None
        elif not is_same and not (mark.attempt == last and (role_order(mark.role), mark.index) > weight):
            return None  # of another attempt, or a replica whose series would count from now on
    return {last: read}


def _catch_up(session: Session, own: _Followed, series: Sequence[StoredSeries], room: int) -> int:
    """Read new points by their number, at most ``room``; returns how many."""
    if not _goes_on({attempt: (read.series_id, read.count) for attempt, read in own.read.items()}, series):
        own.trace, own.read = Trace(own.trace.number, own.trace.goal), {}
    taken = 0
    for item in series:
        known = own.read[item.attempt].count if item.attempt in own.read else 0
        for points in _behind(session, item, known, room - taken):
            own.trace.add(points)
            known += len(points)
            taken += len(points)
        if known:
            # Where points are left to read, the next pass continues by their number, not by the newest segment.
            compactions = item.compactions if known == item.count else _NO_COMPACTIONS
            own.read[item.attempt] = _Read(item.id, known, item.stream_id, compactions, item.last_segment)
    return taken


def _goes_on(read: Mapping[int, tuple[int, int]], series: Sequence[StoredSeries]) -> bool:
    """Whether everything new follows what was read: the series of the last attempt counts, whenever it arrived."""
    last = max(read, default=0)
    known = {item.attempt: item for item in series}
    for attempt, (series_id, count) in read.items():
        now = known.get(attempt)
        if now is None or now.id != series_id or now.count < count or (attempt < last and now.count > count):
            return False
    return all(attempt in read or attempt > last for attempt in known)


def _behind(session: Session, series: StoredSeries, start: int, room: int) -> Iterator[Sequence[tuple[int, float]]]:
    """Its points from number ``start`` on, at most ``room``, in parts."""
    end = min(series.count, start + room)
    while start < end:
        points = read_points(session, series, start, min(_OF_A_READ, end - start))
        start += len(points)
        yield list(zip(points.steps, points.values, strict=True))
