"""Reports that an attempt's replicas kept because nobody took them: read before its end is written."""

from __future__ import annotations

import json
from datetime import timedelta
from uuid import uuid4

import pytest
from trainmaster_runtime.reports.spool import SpoolFile

from core.db.engine import unit_of_work
from core.db.repositories.metrics.reads import SeriesFilter, find_series, read_points
from core.db.tables import Attempt, Checkpoint, Job, Lease, Replica
from core.storage.spooled_reports import read_spool
from core.tokens import attempt_token
from executors.fake import Script
from scheduler.control.attempts import spool_drain as ingesting
from scheduler.control.attempts.storage.attempt_writer import AttemptWriter
from tests.integration.control.conftest import KEY
from tests.integration.control.studies.study_lab import Lab


def keep(plane, attempt, *items, first=1, key=KEY, index=0, generation=1):
    """As the runtime of a replica does that cannot report; ``items``: kind and data of each, or its line."""
    output = plane.folder / plane.one(Job, id=attempt.job_id).output_path
    folder = output / f".trainmaster/reports/{attempt.job_id}/{attempt.number}"
    remaining = SpoolFile(str(folder / f"worker-{index}.{generation}"), attempt_token(key, attempt.id))
    at = plane.engine.now.isoformat()
    lines = [
        item if isinstance(item, bytes) else json.dumps({"at": at, "kind": item[0], "data": item[1]}).encode() + b"\n"
        for item in items
    ]
    remaining.write({"role": "worker", "index": index, "generation": generation, "first_seq": first}, lines)
    return folder / f"worker-{index}.{generation}"


def progress(step, **metrics):
    return "progress", {"step": step, "metrics": metrics}


def points(plane, job, name):
    with unit_of_work(plane.sessions, read_only=True) as session:
        found = find_series(session, [job], SeriesFilter(names=(name,)), limit=10)
        return [
            point
            for series in found
            for read in [read_points(session, series, 0, 1000)]
            for point in zip(read.steps, read.values, strict=True)
        ]


@pytest.fixture
def running(plane):
    job = plane.submit()
    plane.settle()
    return plane.one(Attempt, job_id=job)


def test_spooled_reports_are_ingested_and_deleted_when_the_job_has_ended(plane, running):
    path = keep(
        plane,
        running,
        progress(1, loss=0.5),
        progress(2, loss=0.25),
        ("checkpoint", {"path": "checkpoints/2", "step": 2}),
    )
    plane.advance(11)
    assert plane.state(running.job_id) == "succeeded"
    assert points(plane, running.job_id, "loss") == [(1, 0.5), (2, 0.25)]
    assert plane.one(Checkpoint).path == "checkpoints/2"
    worker = plane.one(Replica, job_id=running.job_id)
    assert worker.progress["metrics"] == {"loss": 0.25}
    assert worker.heartbeat_at is None  # it lived when it wrote them, and not when they were read
    assert list(path.parents[2].iterdir()) == []  # nor an empty folder of the job's


def test_what_is_no_number_and_what_no_report_is_takes_nothing_else_along(plane, running):
    series = [{"name": "loss", "steps": [1, 2, 3], "values": [0.5, float("nan"), 0.25]}]
    keep(plane, running, ("metrics", {"series": series}), ("nonsense", {}), progress("x"), progress(4, acc=1.0))
    plane.advance(11)
    assert plane.state(running.job_id) == "succeeded"
    assert [(step, value == value) for step, value in points(plane, running.job_id, "loss")] == [  # noqa: PLR0124 - NaN
        (1, True),
        (2, False),
        (3, True),
    ]
    assert points(plane, running.job_id, "acc") == [(4, 1.0)]
    assert plane.story(running.job_id)[-2:] == ["replica.report_refused", "job.succeeded"]


def line(kind, data, at="2026-01-01T00:00:00Z"):
    """``data``: in JSON that json.dumps would not write."""
    return f'{{"at": "{at}", "kind": "{kind}", "data": {data}}}\n'.encode()


@pytest.mark.parametrize(
    "odd",
    [
        line("event", r'{"reason": "\ud800"}'),
        line("event", r'{"reason": "\u0000"}'),
        line("progress", r'{"step": 1, "metrics": {"a\u0000": 1}}'),
        line("progress", r'{"step": 1, "metrics": {"a\ud800": 1}}'),
        line("checkpoint", r'{"path": "a\ud800"}'),
        line("checkpoint", r'{"path": "a", "metrics": {"\u0000": 1}}'),
        line("progress", f'{{"step": 1{"0" * 400}}}'),
        line("progress", f'{{"step": 1, "metrics": {{"a": 1{"0" * 400}}}}}'),
        line("progress", '{"step": 1, "metrics": {"a": 1}}', at="0001-01-01T00:00:00+14:00"),
        line("checkpoint", '{"path": "a"}', at="9999-12-31T23:59:59-14:00"),
        line("progress", '{"step": 1, "metrics": {"a": 1}}', at="99999999999"),
    ],
)
def test_what_no_database_keeps_holds_up_no_end_and_takes_nothing_along(plane, running, odd):
    keep(plane, running, odd, progress(2, loss=0.5))
    plane.advance(11)
    assert plane.state(running.job_id) == "succeeded"
    assert points(plane, running.job_id, "loss") == [(2, 0.5)]


def test_an_error_in_taking_what_a_job_wrote_holds_up_no_end(plane, running, monkeypatch):
    keep(plane, running, progress(1, loss=0.5))

    def fail(*_, **__):
        raise ValueError("of what nobody thought of")

    monkeypatch.setattr(ingesting, "ingest_report", fail)
    plane.advance(11)
    assert plane.state(running.job_id) == "succeeded"


def test_the_lease_is_renewed_while_lines_without_items_are_read(plane, running, monkeypatch):
    keep(plane, running, *[b"{}\n"] * 5_000, progress(1, loss=0.5))
    left = []

    def slowly(*args):
        for lines in read_spool(*args):
            plane.engine.advance(timedelta(seconds=4))
            left.append(plane.one(Lease, name=f"attempt:{running.id}").expires_at - plane.engine.now)
            yield lines

    monkeypatch.setattr(ingesting, "read_spool", slowly)
    plane.advance(11)
    assert len(left) == 11
    assert min(left) > timedelta(0)
    assert plane.state(running.job_id) == "succeeded"
    assert points(plane, running.job_id, "loss") == [(1, 0.5)]


@pytest.mark.parametrize(("bound", "value"), [("ATTEMPT_LINES", 3), ("ATTEMPT_BYTES", 800)])
def test_the_spool_of_an_attempt_is_read_up_to_a_limit(plane, bound, value, monkeypatch):
    monkeypatch.setattr(ingesting, bound, value)
    job = plane.submit(workers=3)
    plane.settle()
    attempt = plane.one(Attempt, job_id=job)
    for index in range(3):
        path = keep(plane, attempt, progress(1, loss=0.5), progress(2, loss=0.25), index=index)
    plane.advance(11)
    assert plane.state(job) == "succeeded"
    steps = [worker.progress.get("step") for worker in plane.all(Replica, job_id=job)]
    assert (steps[0], steps[2]) == (2, None)
    assert not path.parent.parent.exists()


def test_an_hour_after_a_failure_it_still_counts(plane):
    plane.engine.script("worker", Script(run_for=timedelta(seconds=5), exit_code=1))
    job = plane.submit(max_restarts=0)
    plane.settle()
    attempt = plane.one(Attempt, job_id=job)
    keep(plane, attempt, progress(3, loss=0.5))
    plane.engine.advance(timedelta(hours=1))  # the whole platform is away
    plane.start()
    plane.settle()
    assert plane.state(job) == "failed"
    assert points(plane, job, "loss") == [(3, 0.5)]
    # What it came to counts when it is asked whether the job comes anywhere at all.
    assert plane.one(Attempt, job_id=job).end["last_step"] == 3


def test_a_kill_between_the_reports_and_the_end_takes_none_of_them_twice(plane, running, monkeypatch):
    keep(plane, running, progress(1, loss=0.5), ("metrics", {"series": [{"name": "x", "steps": [1], "values": [2.0]}]}))

    def die(*_):
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(AttemptWriter, "end", die)
        plane.engine.advance(timedelta(seconds=11))
        with pytest.raises(RuntimeError):
            plane.settle()
    assert points(plane, running.job_id, "loss") == [(1, 0.5)]
    plane.start()
    plane.engine.advance(plane.control.lease_ttl * 2)
    plane.settle()
    assert plane.state(running.job_id) == "succeeded"
    assert (points(plane, running.job_id, "loss"), points(plane, running.job_id, "x")) == ([(1, 0.5)], [(1, 2.0)])


def test_unsigned_files_are_no_reports_and_delay_nothing(plane, running):
    keep(plane, running, progress(1, loss=0.5), key=b"x" * 32)
    keep(plane, running, progress(1, loss=0.5), index=7)
    keep(plane, running, progress(1, loss=0.5), generation=2)  # never started
    plane.advance(11)
    assert plane.state(running.job_id) == "succeeded"
    assert points(plane, running.job_id, "loss") == []


def test_the_end_waits_a_minute_for_the_outputs_volume(plane, running):
    keep(plane, running, progress(1, loss=0.5))
    away = plane.folder.with_name(f"away-{uuid4().hex}")
    plane.folder.rename(away)
    plane.advance(11)
    plane.advance(30)
    assert plane.state(running.job_id) == "running"
    away.rename(plane.folder)
    plane.advance(6)
    assert plane.state(running.job_id) == "succeeded"
    assert points(plane, running.job_id, "loss") == [(1, 0.5)]


def test_a_volume_that_stays_away_holds_up_no_end_for_longer(plane, running):
    plane.folder.rename(plane.folder.with_name(f"away-{uuid4().hex}"))
    plane.advance(11)
    for _ in range(13):
        plane.advance(5)
    assert plane.state(running.job_id) == "succeeded"


def test_a_trial_that_ended_while_the_api_was_away_has_its_result(plane):
    lab = Lab(plane)
    lab.curve = lambda _point: []
    lab.create(budget={"trials": 1})
    lab.study_loop.reconcile("study-1")
    plane.settle()
    attempt = plane.one(Attempt)
    keep(plane, attempt, ("metrics", {"series": [{"name": "score", "steps": [1, 2], "values": [0.25, 0.75]}]}))
    ended = lab.run()
    assert ended.state == "succeeded"
    assert [trial.result for trial in lab.trials] == [{"score": 0.75}]
