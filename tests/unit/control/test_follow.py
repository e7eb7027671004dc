"""Following the curves of trials that run: each look reads what is new, and none of it is missed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from trainmaster.studies import Goal

from core.db.repositories.metrics.reads import StoredSeries, StreamMark, marks_of, read_points
from core.db.repositories.metrics.writes import StreamKey, add_metrics, compact
from core.db.tables import MetricStream
from core.domain.metrics import Points
from core.domain.studies.curves import Trace
from scheduler.control.studies.follow import TraceFollower

FOLLOW = "scheduler.control.studies.follow"
NOW = datetime(2026, 11, 1, tzinfo=UTC)


@pytest.fixture
def session() -> Iterator[Session]:
    engine = create_engine("sqlite://")
    MetricStream.metadata.create_all(engine)
    with Session(engine) as opened:
        yield opened
    engine.dispose()


def report(
    session: Session,
    steps: range | list[int],
    value: float = 1.0,
    *,
    job: str = "job-1",
    attempt: int = 1,
    index: int = 0,
) -> None:
    points = Points(steps, [0] * len(steps), [value] * len(steps))
    add_metrics(session, StreamKey(job, attempt, "worker", index), {"loss": points, "lr": points}, now=NOW)


def read_new(session: Session, followers: TraceFollower, jobs: dict[int, str] | None = None) -> Trace:
    """The first trial's, after all was read."""
    for _ in range(100):
        traces, is_all = followers.read_new(session, jobs or {1: "job-1"}, "loss", Goal.MINIMIZE)
        if is_all:
            return traces[1]
    raise AssertionError("it never came to the end")


def traces(trace: Trace) -> dict[int, float]:
    return dict(zip(trace.steps, trace.values, strict=True))


def test_a_look_reads_only_what_is_new(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[int, int]] = []

    def counted(session: Session, series: StoredSeries, start: int, limit: int) -> Points:
        read.append((start, limit))
        return read_points(session, series, start, limit)

    monkeypatch.setattr(f"{FOLLOW}.read_points", counted)
    followers = TraceFollower()
    report(session, range(9_000))
    assert len(read_new(session, followers).steps) == 9_000
    read.clear()
    assert len(read_new(session, followers).steps) == 9_000
    assert read == [], "nothing has come"
    report(session, range(9_000, 9_010))
    report(session, [9_005], 3.0)
    assert traces(read_new(session, followers))[9_005] == 3.0
    assert read == [], "what waits in segments is known from the last one on"
    report(session, range(9_010, 50_000))  # so many that they move into chunks
    trace = read_new(session, followers)
    assert read == [(9_011, 40_990)]
    assert (trace.steps[-1], trace.counts[-1]) == (49_999, 50_000)


def test_a_burst_that_one_look_does_not_finish_is_gone_on_with(session: Session) -> None:
    followers = TraceFollower(most_points=1_500)
    report(session, range(1_000))
    read_new(session, followers)
    for begin in range(1_000, 6_000, 1_000):
        report(session, range(begin, begin + 1_000), job="job-2")
    report(session, range(1_000, 4_000))
    jobs = {1: "job-1", 2: "job-2"}
    trace = read_new(session, followers, jobs)
    assert trace.counts[-1] == 4_000
    assert len(followers.read_new(session, jobs, "loss", Goal.MINIMIZE)[0][2].steps) == 5_000


def test_segments_that_move_into_chunks_between_two_statements_are_read_by_their_count(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    followers = TraceFollower()
    report(session, range(10))
    read_new(session, followers)
    report(session, range(10, 20))

    def marks_then_compaction(session: Session, owner_ids: Sequence[str]) -> dict[str, tuple[StreamMark, ...]]:
        found = marks_of(session, owner_ids)
        compact(session, 1)
        return found

    monkeypatch.setattr(f"{FOLLOW}.marks_of", marks_then_compaction)
    assert len(read_new(session, followers).steps) == 20
    monkeypatch.undo()
    assert len(read_new(session, followers).steps) == 20


def test_a_new_process_reads_all_in_parts_and_knows_the_same(session: Session) -> None:
    for begin in range(0, 8_000, 2_000):
        report(session, range(begin, begin + 2_000), begin)
    report(session, range(2_000), 7.0, job="job-2")
    jobs = {1: "job-1", 2: "job-2"}
    long, again = TraceFollower(), TraceFollower(most_points=1_000)
    assert traces(read_new(session, again, jobs)) == traces(read_new(session, long, jobs))
    assert len(again.read_new(session, jobs, "loss", Goal.MINIMIZE)[0][2].steps) == 2_000


def test_what_comes_late_and_steps_that_go_back_are_learnt(session: Session) -> None:
    followers = TraceFollower()
    report(session, range(10))
    read_new(session, followers)
    report(session, [4, 3, 20], 2.0)
    assert traces(read_new(session, followers)) == {**dict.fromkeys(range(10), 1.0), 3: 2.0, 4: 2.0, 20: 2.0}
    report(session, range(5, 8), 3.0, attempt=2)  # it went on from a checkpoint of step 5
    known = traces(read_new(session, followers))
    assert [known[step] for step in (4, 5, 7, 8)] == [2.0, 3.0, 3.0, 1.0]


def test_a_late_word_of_an_earlier_attempt_is_not_the_last_one(session: Session) -> None:
    followers = TraceFollower()
    report(session, range(5))
    report(session, range(3), 2.0, attempt=2)
    read_new(session, followers)
    report(session, [1, 9], 8.0)  # of the first attempt, which had kept them while the API was away
    assert traces(read_new(session, followers)) == {0: 2.0, 1: 2.0, 2: 2.0, 3: 1.0, 4: 1.0, 9: 8.0}


def test_the_first_replica_is_believed_also_when_it_is_heard_later(session: Session) -> None:
    followers = TraceFollower()
    report(session, range(5), 5.0, index=1)
    assert traces(read_new(session, followers))[0] == 5.0
    report(session, range(3), 1.0, index=0)
    assert traces(read_new(session, followers)) == dict.fromkeys(range(3), 1.0)


def test_a_trial_that_runs_no_more_is_forgotten(session: Session) -> None:
    followers = TraceFollower()
    report(session, range(5))
    read_new(session, followers)
    assert set(followers.read_new(session, {2: "job-2"}, "loss", Goal.MINIMIZE)[0]) == {2}
    assert len(read_new(session, followers).steps) == 5
