"""What only a real PostgreSQL shows: its locks, its order of commits, its connections that go away."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, func, make_url, select, text, update
from starlette.testclient import TestClient

from core.db.engine import SessionFactory, make_engine, make_sessions, unit_of_work
from core.db.repositories.events import append_event, events_of_job
from core.db.tables import Attempt, Event, Job, Node
from core.domain.errors import InsufficientStorage, RowsLocked, TrainmasterError, Unavailable
from migrations import upgrade
from scheduler.control.attempts.storage.statement_batch import lock_attempts
from tests.databases import empty
from tests.integration.control.conftest import Plane

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.skipif(
        not os.environ.get("TRAINMASTER_TEST_DATABASE_URL"), reason="TRAINMASTER_TEST_DATABASE_URL names no server"
    ),
]


@pytest.fixture
def database_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue("postgres_database")
    engine = create_engine(url)
    empty(engine)
    engine.dispose()
    return url


def post(client: TestClient, key: str) -> Any:
    spec = {"name": "a", "command": "true"}
    return client.post("/api/v1/jobs", json={"spec": spec}, headers={"Idempotency-Key": key})


def test_a_second_request_waits_for_the_first_ones_end(client: TestClient, sessions: SessionFactory) -> None:
    """The first has claimed the key and not committed: whether there is a job is not known yet."""
    with ThreadPoolExecutor(1) as pool:
        with unit_of_work(sessions) as session:
            user = session.execute(text("select id from users")).scalar_one()
            session.execute(
                text("insert into idempotency_keys values (:user, 'k', 'other', 'job-x', now())"), {"user": user}
            )
            waiting = pool.submit(post, client, "k")
            assert not waiting.done()
        assert waiting.result(timeout=10).json()["code"] == "idempotency_mismatch"


def test_by_statement_each_is_committed_at_once_and_the_next_block_is_a_transaction_again(
    sessions: SessionFactory,
) -> None:
    marks = select(func.count()).select_from(Event)

    def write(*, by_statement: bool) -> None:
        with unit_of_work(sessions, by_statement=by_statement) as session:
            append_event(session, at=datetime(2026, 11, 21, tzinfo=UTC), kind="x", actor="test")
            session.flush()
            raise RuntimeError

    counts = []
    for by_statement in (True, False):
        with pytest.raises(RuntimeError):
            write(by_statement=by_statement)
        with unit_of_work(sessions, read_only=True) as session:
            counts.append(session.execute(marks).scalar_one())
    assert counts == [1, 1]


def test_a_first_request_that_failed_leaves_the_key_to_the_second(client: TestClient, sessions: SessionFactory) -> None:
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(RuntimeError), unit_of_work(sessions) as session:
            user = session.execute(text("select id from users")).scalar_one()
            session.execute(
                text("insert into idempotency_keys values (:user, 'k', 'other', 'job-x', now())"), {"user": user}
            )
            waiting = pool.submit(post, client, "k")
            raise RuntimeError
        assert waiting.result(timeout=10).status_code == 201


def test_connections_that_the_server_ended_are_replaced(client: TestClient, sessions: SessionFactory) -> None:
    assert client.get("/api/v1/jobs").status_code == 200
    with unit_of_work(sessions) as session:
        session.execute(
            text(
                "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and datname = "
                "current_database()"
            )
        )
    answers = [client.get("/api/v1/jobs").status_code for _ in range(10)]
    assert set(answers) <= {200, 503}
    assert answers[-1] == 200


def test_a_lock_that_is_not_given_in_time_is_unavailable(sessions: SessionFactory, client: TestClient) -> None:
    post(client, "k")
    with unit_of_work(sessions) as session:
        session.execute(text("select * from jobs for update"))
        with pytest.raises(Unavailable), unit_of_work(sessions) as other:
            other.execute(text("set local lock_timeout = '50ms'"))
            other.execute(text("update jobs set priority = 1"))


def test_events_that_commit_out_of_order_are_all_reported(
    client: TestClient, sessions: SessionFactory, clock: Any
) -> None:
    """The one with the smaller id commits later: whoever only asks for larger ids never sees it."""
    from api.events.service import EventBatch, EventStream

    job_id = post(client, "k").json()["id"]

    def add(session: Any, reason: str) -> None:
        append_event(session, at=clock.now, kind="replica.note", actor="x", job_id=job_id, reason=reason)

    follower = EventStream(None, None, None, 0)  # type: ignore[arg-type]
    reported: list[str] = []

    def look() -> None:
        with unit_of_work(sessions, read_only=True) as session:
            rows = events_of_job(session, job_id, after=follower._low, limit=500)
        reported.extend(row.reason for row in rows if row.id not in follower._sent)
        follower._advance_low_mark(EventBatch(rows, clock.now, state="queued", is_over=False))

    with unit_of_work(sessions) as late:
        add(late, "late")
        with unit_of_work(sessions) as early:
            add(early, "early")
        look()
    look()
    look()
    assert reported == ["", "early", "late"]
    clock.advance(60)
    look()
    assert follower._sent == {}


def test_many_clients_at_once_lose_no_job(client: TestClient, sessions: SessionFactory) -> None:
    with ThreadPoolExecutor(16) as pool:
        codes = [answer.status_code for answer in pool.map(lambda number: post(client, f"k{number}"), range(100))]
    assert set(codes) == {201}
    with unit_of_work(sessions, read_only=True) as session:
        assert session.execute(select(func.count()).select_from(Job)).scalar_one() == 100


@pytest.mark.parametrize(
    ("raised", "reported"),
    [
        (psycopg.errors.DiskFull, InsufficientStorage),
        (psycopg.errors.TooManyConnections, Unavailable),
        (psycopg.errors.LockNotAvailable, RowsLocked),
        (psycopg.errors.DeadlockDetected, RowsLocked),
    ],
)
def test_what_the_server_cannot_help_is_reported_in_words(sessions: SessionFactory, raised: Any, reported: Any) -> None:
    with pytest.raises(TrainmasterError) as refused, unit_of_work(sessions) as session:
        session.execute(text(f"do $$ begin raise exception 'x' using errcode = '{raised.sqlstate}'; end $$"))
    assert type(refused.value) is reported


def test_attempts_are_locked_in_one_order_whoever_does(sessions: SessionFactory, tmp_path: Path) -> None:
    plane = Plane(sessions, tmp_path)
    for name in ("a", "b"):
        plane.submit(name)
    plane.ticker.tick()
    first, last = sorted(attempt.id for attempt in plane.all(Attempt))

    def lock(names: list[str]) -> None:
        with unit_of_work(sessions) as session:
            lock_attempts(session, names)

    with ThreadPoolExecutor(1) as pool:
        with unit_of_work(sessions) as session:
            lock_attempts(session, [first])
            waiting = pool.submit(lock, [last, first])
            assert not wait([waiting], timeout=0.3).done
            lock([last])  # it has taken none that comes later
        waiting.result(timeout=30)


@pytest.fixture
def ascii_database() -> Iterator[str]:
    """An empty database that says nothing of its encoding, as a server makes whose locale was C."""
    server = make_url(os.environ["TRAINMASTER_TEST_DATABASE_URL"]).set(drivername="postgresql+psycopg")
    name = f"trainmaster_ascii_{os.getpid()}"
    admin = create_engine(server, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"drop database if exists {name} with (force)"))
        connection.execute(
            text(f"create database {name} template template0 encoding 'SQL_ASCII' lc_collate 'C' lc_ctype 'C'")
        )
    yield server.set(database=name).render_as_string(hide_password=False)
    with admin.connect() as connection:
        connection.execute(text(f"drop database if exists {name} with (force)"))
    admin.dispose()


def test_a_database_that_says_nothing_of_its_encoding_holds_utf8(ascii_database: str) -> None:
    upgrade(ascii_database)
    engine = make_engine(ascii_database)
    sessions = make_sessions(engine)
    with unit_of_work(sessions) as session:
        assert session.execute(text("show server_encoding")).scalar_one() == "SQL_ASCII"
        append_event(session, at=datetime.now(UTC), kind="test", actor="test", reason="Zürich ✓", data={"wer": "Jörg"})
    with unit_of_work(sessions, read_only=True) as session:
        event = session.scalars(select(Event)).one()
        assert (event.reason, event.data) == ("Zürich ✓", {"wer": "Jörg"})
    engine.dispose()


def test_a_node_that_is_released_while_it_is_quarantined_is_open(
    client: TestClient, sessions: SessionFactory, clock: Any
) -> None:
    """The quarantine is decided and not committed when the administrator lets the node go for what it was suspected
    of.
    """
    with unit_of_work(sessions) as session:
        session.add(
            Node(
                name="node-1", executor="fake", labels={}, admin_labels={}, allocatable={}, gpus=[], is_ready=True,
                condition="", seen_at=clock.now, suspicion=SUSPICION,
            )
        )  # fmt: skip
    with ThreadPoolExecutor(1) as pool:
        with unit_of_work(sessions) as session:
            closed = {"quarantine": {"error": "", "causes": []}, "quarantined_at": clock.now, "suspicion": None}
            session.execute(update(Node).values(**closed, quarantine_count=2))
            released = pool.submit(client.post, "/api/v1/nodes/node-1/release")
            _wait_for_a_lock(sessions)
        answer = released.result(timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.json()["quarantine"] is None
    with unit_of_work(sessions, read_only=True) as session:
        row = session.execute(select(Node.quarantined_at, Node.quarantine_count, Node.trusted_since)).one()
    assert tuple(row) == (None, 0, clock.now)


SUSPICION = {
    "sentence": "", "why_not": "it is the last one", "is_let_out": False, "causes": [],
    "until": datetime(2027, 1, 1, tzinfo=UTC).isoformat(),
}  # fmt: skip


def _wait_for_a_lock(sessions: SessionFactory) -> None:
    """Until somebody waits for a row of this database."""
    waiting = text(
        "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    )
    until_s = time.monotonic() + 60
    while time.monotonic() < until_s:
        with unit_of_work(sessions, read_only=True) as session:
            if session.execute(waiting).scalar_one():
                return
        time.sleep(0.02)
    raise AssertionError("nobody waits")
