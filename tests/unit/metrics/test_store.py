"""What is added is read again: once, whole, in order, and down-sampled without losing a peak."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from sqlalchemy import func, select

from core.db.engine import SessionFactory, unit_of_work
from core.db.repositories.metrics.reads import (
    ChartData,
    ChartWindow,
    SeriesFilter,
    StoredSeries,
    find_names,
    find_series,
    list_objects,
    read_chart,
    read_points,
    values_since,
)
from core.db.repositories.metrics.writes import IngestResult, NewMetricObject, StreamKey, add_metrics, delete_metrics
from core.db.tables import MetricChunk, MetricObject, MetricSegment, MetricSeries, MetricStream
from core.domain.errors import NotFound
from core.domain.metrics import STEP_LIMIT, TIME_LIMIT_MS, Points
from tests.databases import recorded_statements

NOW = datetime(2026, 11, 21, 7, 0, tzinfo=UTC)
KEY = StreamKey("job-a", 1, "worker", 0)

Add = Callable[..., IngestResult]


@pytest.fixture
def add(sessions: SessionFactory) -> Add:
    def write(
        series: dict[str, Points] | None = None, *objects: NewMetricObject, key: StreamKey = KEY, **more: object
    ) -> IngestResult:
        with unit_of_work(sessions) as session:
            return add_metrics(session, key, series or {}, objects, now=NOW, **more)  # type: ignore[arg-type]

    return write


def find(sessions: SessionFactory, only: SeriesFilter | None = None, owner: str = "job-a") -> list[StoredSeries]:
    with unit_of_work(sessions, read_only=True) as session:
        return find_series(session, [owner], only or SeriesFilter(), limit=10_000)


def chart(sessions: SessionFactory, window: ChartWindow | None = None, buckets: int = 500) -> ChartData:
    with unit_of_work(sessions, read_only=True) as session:
        (series,) = find_series(session, ["job-a"], SeriesFilter(names=["loss"]), limit=10)
        return read_chart(session, series, window or ChartWindow(), buckets)


def points(first: int, count: int) -> Points:
    steps = range(first, first + count)
    return Points(steps, (1000 * step for step in steps), (step / 2 for step in steps))


def count(sessions: SessionFactory, table: type) -> int:
    with unit_of_work(sessions, read_only=True) as session:
        return session.execute(select(func.count()).select_from(table)).scalar_one()


def test_claims_are_preserved_in_order_of_arrival_and_never_lost(sessions: SessionFactory, add: Add) -> None:
    def claimed() -> object:
        with unit_of_work(sessions, read_only=True) as session:
            writers = session.execute(select(MetricStream.writers)).scalar_one()
        return next(value for name, value in writers.items() if name.startswith("claimed"))

    add({"loss": points(1, 3)})
    add({}, printed={"zz": points(1, 2)})  # before its first log: stays
    add({"zz": points(1, 1)}, is_claim=True)
    add({f"a{number}": points(1, 1) for number in range(1_200)}, is_claim=True)
    first = claimed()
    assert first == ["zz", *(f"a{number}" for number in range(999))]
    add({"b": points(1, 1)}, is_claim=True)  # one too many
    assert claimed() == first
    add({}, printed={"zz": points(2, 1), "a998": points(2, 1), "loss": points(4, 1)})
    counts = {item.name: item.count for item in find(sessions)}
    assert (counts["zz"], counts["a998"], counts["loss"]) == (3, 1, 4)


def test_a_series_of_many_batches_comes_back_point_by_point(sessions: SessionFactory, add: Add) -> None:
    chance = random.Random(3)
    first = 0
    while first < 70_000:  # more than what waits in segments
        size = chance.choice((1, 7, 300, 2500))
        added = add({"loss": points(first, size), "lr": Points([first], [0], [0.1])})
        assert (added.points, added.faults) == (size + 1, [])
        first += size
    assert count(sessions, MetricSegment) < 64  # most have moved on
    with unit_of_work(sessions, read_only=True) as session:
        loss, _ = find_series(session, ["job-a"], limit=10)
        assert (loss.count, loss.last_step, loss.last_value) == (first, first - 1, (first - 1) / 2)
        assert (loss.low, loss.high) == (0.0, (first - 1) / 2)
        read = read_points(session, loss, 0, first + 5)
        assert list(read.steps) == list(range(first))
        assert read.values[-1] == (first - 1) / 2
        # Any part of it, over the edges of chunks and of what is still in segments.
        for start in (0, 4095, 4096, 12_000, loss.chunked - 1, loss.chunked, first - 1, first):
            part = read_points(session, loss, start, 5000)
            assert list(part.steps) == list(range(start, min(first, start + 5000)))


def test_a_batch_that_is_sent_again_counts_once(sessions: SessionFactory, add: Add) -> None:
    assert not add({"loss": points(0, 3)}, writer="r1", batch=1).is_repeated
    assert add({"loss": points(0, 3)}, writer="r1", batch=1).is_repeated
    assert not add({"loss": points(3, 3)}, writer="r1", batch=2).is_repeated
    assert add({"loss": points(0, 3)}, writer="r1", batch=1).is_repeated
    assert not add({"loss": points(6, 3)}, writer="r2", batch=1).is_repeated  # another sender counts for itself
    assert [series.count for series in find(sessions)] == [9]


def test_nan_infinities_and_clocks_that_run_backwards_are_preserved(sessions: SessionFactory, add: Add) -> None:
    add({"loss": Points([5, 3, 4], [50, 40, 60], [math.inf, -math.inf, math.nan]), "ok": points(0, 1)})
    for _ in range(70):  # until they are compacted
        add({"ok": points(0, 1)})
    loss = next(series for series in find(sessions) if series.name == "loss")
    assert loss.chunked == 3
    assert loss.last_value is not None
    assert math.isnan(loss.last_value)
    assert (loss.low, loss.high) == (None, None)
    shown = chart(sessions).points
    assert shown is not None
    assert list(shown.steps) == [3, 4, 5]
    assert [str(value) for value in shown.values] == ["-inf", "nan", "inf"]


def test_series_are_distinguished_by_job_attempt_replica_name_and_kind(sessions: SessionFactory, add: Add) -> None:
    add({"loss": points(0, 1)})
    add({"loss": points(0, 2)}, key=StreamKey("job-a", 2, "worker", 0))
    add({"loss": points(0, 3)}, key=StreamKey("job-a", 1, "worker", 1))
    add({"loss": points(0, 4)}, key=StreamKey("job-b", 1, "worker", 0))
    add({"system/cpu": points(0, 5)}, NewMetricObject("loss", "text", 1, 1, "text/plain", b"well"))
    reported = sorted((item.attempt, item.index, item.name, item.kind, item.count) for item in find(sessions))
    assert reported == [
        (1, 0, "loss", "scalar", 1),
        (1, 0, "loss", "text", 1),
        (1, 0, "system/cpu", "scalar", 5),
        (1, 1, "loss", "scalar", 3),
        (2, 0, "loss", "scalar", 2),
    ]
    assert len(find(sessions, SeriesFilter(attempt=2))) == 1
    assert len(find(sessions, SeriesFilter(index=1))) == 1
    assert len(find(sessions, SeriesFilter(kind="text"))) == 1
    assert [item.name for item in find(sessions, SeriesFilter(prefix="system/"))] == ["system/cpu"]
    assert len(find(sessions, SeriesFilter(without_prefix="system/"))) == 4


def test_lists_go_on_where_a_page_ended_and_names_come_once(sessions: SessionFactory, add: Add) -> None:
    for place in [(2, "worker", 0), (1, "worker", 1), (1, "worker", 0), (1, "chief", 0)]:
        add({name: points(0, 1) for name in ("b", "a", "system/x")}, key=StreamKey("job-a", *place))
    add({}, NewMetricObject("a", "text", 1, 1, "text/plain", b"well"))
    add({"of another": points(0, 1)}, key=StreamKey("job-b", 1, "worker", 0))
    every = find(sessions)
    assert [(item.attempt, item.role, item.index, item.name, item.kind) for item in every] == sorted(
        (item.attempt, item.role, item.index, item.name, item.kind) for item in every
    )
    with unit_of_work(sessions, read_only=True) as session:
        pages, after = [], None
        while page := find_series(session, ["job-a"], limit=4, after=after):
            pages += page
            after = page[-1].id
        assert [item.id for item in pages] == [item.id for item in every]
        assert len(pages) == 13
        only = SeriesFilter(without_prefix="system/")
        names = find_names(session, "job-a", only, limit=2)
        names = [*names, *find_names(session, "job-a", only, limit=2, after=names[-1].id)]
        assert [(row.name, row.kind) for row in names] == [("a", "scalar"), ("a", "text"), ("b", "scalar")]
        with pytest.raises(NotFound):
            find_series(session, ["job-b"], limit=4, after=after)  # another job's


def test_a_chart_of_a_long_series_keeps_every_peak(sessions: SessionFactory, add: Add) -> None:
    for start in range(0, 100_000, 10_000):
        part = points(start, 10_000)
        part.values[1234] = 1e9 + start
        add({"loss": part})
    made = chart(sessions, buckets=200).digests
    assert made is not None
    assert len(made) <= 200
    assert sum(made.count) == 100_000
    assert {value for value in made.high if value >= 1e9} == {1e9 + start for start in range(0, 100_000, 10_000)}
    assert made.step_min[0] == 0
    assert made.step_max[-1] == 99_999


@pytest.mark.parametrize(
    ("low", "high"), [(4000, 70_321), (None, 12), (99_990, None), (50_000, 50_000), (300_000, None)]
)
@pytest.mark.parametrize("by", ["step", "time"])
def test_a_window_holds_what_is_in_it_and_nothing_else(
    sessions: SessionFactory, add: Add, by: str, low: int | None, high: int | None
) -> None:
    for start in range(0, 100_000, 20_000):
        add({"loss": points(start, 20_000)})
    scale = 1 if by == "step" else 1000
    begin, end = (None if edge is None else edge * scale for edge in (low, high))
    window = ChartWindow(by, begin, end)  # type: ignore[arg-type]
    found = chart(sessions, window, buckets=100)
    first, last = low or 0, min(99_999, 99_999 if high is None else high)
    expected = max(0, last - first + 1)
    if found.points is not None:
        assert list(found.points.steps) == list(range(first, last + 1))
    else:
        digests = found.digests
        assert digests is not None
        assert (sum(digests.count), min(digests.step_min), max(digests.step_max)) == (expected, first, last)
        assert (min(digests.low), max(digests.high)) == (first / 2, last / 2)


def test_too_many_series_and_bad_names_are_reported_and_the_rest_is_taken(
    sessions: SessionFactory, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.db.repositories.metrics.writes.SERIES_OF_REPLICA", 3)
    added = add({f"m{number}": points(0, 1) for number in range(5)} | {"bad\nname": points(0, 1)})
    assert added.points == 3
    assert len(added.faults) == 2
    assert any("cannot be shown" in fault for fault in added.faults)
    again = add({"m0": points(1, 1), "another": points(0, 1)})
    assert again.points == 1
    assert "'another' is dropped" in again.faults[0]


def test_a_job_that_reports_too_much_gets_a_message(
    sessions: SessionFactory, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.db.repositories.metrics.writes.COUNTED_FROM", 5)
    monkeypatch.setattr("core.db.repositories.metrics.writes.POINTS_OF_JOB", 10)
    assert add({"loss": points(0, 11)}).faults == []
    refused = add({"loss": points(11, 1)})
    assert refused.points == 0
    assert "report less often" in refused.faults[0]


def test_objects_are_thinned_and_the_first_and_newest_stay(
    sessions: SessionFactory, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.db.repositories.metrics.writes.OBJECTS_OF_SERIES", 8)
    for step in range(40):
        add({}, NewMetricObject("weights", "histogram", step, step, "application/json", b"{}"))
    (series,) = find(sessions)
    assert (series.count, series.last_step) == (40, 39)
    with unit_of_work(sessions, read_only=True) as session:
        steps = [row.step for row in list_objects(session, series, after=0, limit=100)]
        preserved = session.execute(select(MetricStream.object_bytes)).scalar_one()
    assert 4 <= len(steps) <= 8
    assert (steps[0], steps[-1]) == (0, 39)
    assert preserved == 2 * len(steps)


def test_objects_beyond_the_jobs_room_are_dropped_with_a_sentence(
    add: Add, sessions: SessionFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.db.repositories.metrics.writes.OBJECT_BYTES_OF_JOB", 10)
    assert add({}, NewMetricObject("a", "text", 1, 1, "text/plain", b"123456")).faults == []
    added = add({}, NewMetricObject("a", "text", 2, 1, "text/plain", b"123456"))
    assert added.objects == 0
    assert "step 2 is dropped" in added.faults[0]
    assert count(sessions, MetricObject) == 1


def test_forgetting_a_job_leaves_nothing_of_it(sessions: SessionFactory, add: Add) -> None:
    for _ in range(70):
        add({"loss": points(0, 100)}, NewMetricObject("a", "text", 1, 1, "text/plain", b"x"))
    add({"loss": points(0, 1)}, key=StreamKey("job-b", 1, "worker", 0))
    with unit_of_work(sessions) as session:
        assert delete_metrics(session, ["job-a"]) == 1
    assert find(sessions) == []
    assert [count(sessions, table) for table in (MetricStream, MetricSeries, MetricChunk, MetricObject)] == [1, 1, 0, 0]
    assert len(find(sessions, owner="job-b")) == 1


def test_limits_leave_room_for_differences_in_64_bits() -> None:
    assert 2 * STEP_LIMIT < 2**63
    assert TIME_LIMIT_MS < 2**53


def test_the_newest_values_of_many_series_take_a_few_statements(sessions: SessionFactory, add: Add) -> None:
    names = [f"system/gpu.{number}/power_w" for number in range(40)]
    for start in range(0, 700, 10):  # some are in chunks by then, and some wait
        add(dict.fromkeys(names, points(start, 10)))
    add({names[0]: Points([700], [699_000], [math.nan])})
    with unit_of_work(sessions, read_only=True) as session:
        found = find_series(session, ["job-a"], limit=100)
        assert 0 < found[0].chunked < 700
        with recorded_statements(session.get_bind()) as statements:
            values = values_since(session, found, {item.id: 500_000 for item in found[1:]} | {found[0].id: 699_000})
    assert len(statements) == 1
    assert values[found[0].id] == [349.5]
    assert [values[item.id] for item in found[1:]] == [[step / 2 for step in range(500, 700)]] * 39
