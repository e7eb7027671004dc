from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import create_engine, func, select, text
from sqlalchemy.exc import IntegrityError

from core.db.bootstrap import bootstrap, prepare_home, read_token
from core.db.engine import SessionFactory, make_engine, make_sessions, unit_of_work
from core.db.tables import Job, Lease, Token, User, Volume
from core.domain.errors import InsufficientStorage, Unavailable
from core.settings import Settings

NOW = datetime(2026, 11, 21, 7, 0, tzinfo=UTC)


def add_lease(sessions: SessionFactory, name: str) -> None:
    with unit_of_work(sessions) as session:
        session.add(Lease(name=name, holder="a", token=1, expires_at=NOW))


def count(sessions: SessionFactory) -> int:
    with unit_of_work(sessions, read_only=True) as session:
        return session.execute(select(func.count()).select_from(Lease)).scalar_one()


def test_the_end_of_the_block_commits(sessions: SessionFactory) -> None:
    add_lease(sessions, "a")
    assert count(sessions) == 1


def test_an_error_rolls_back(sessions: SessionFactory) -> None:
    with pytest.raises(RuntimeError), unit_of_work(sessions) as session:
        session.add(Lease(name="a", holder="a", token=1, expires_at=NOW))
        session.flush()
        raise RuntimeError
    assert count(sessions) == 0


def test_times_come_back_aware_and_in_utc(sessions: SessionFactory) -> None:
    add_lease(sessions, "a")
    with unit_of_work(sessions, read_only=True) as session:
        assert session.execute(select(Lease.expires_at)).scalar_one() == NOW


def test_a_naive_time_is_refused(sessions: SessionFactory) -> None:
    with pytest.raises(Exception, match="naive"), unit_of_work(sessions) as session:
        session.add(Lease(name="a", holder="a", token=1, expires_at=NOW.replace(tzinfo=None)))


def test_writers_take_turns_and_lose_no_update(sessions: SessionFactory) -> None:
    add_lease(sessions, "counter")

    def add_one(_: int) -> None:
        with unit_of_work(sessions) as session:
            token = session.execute(select(Lease.token).where(Lease.name == "counter").with_for_update()).scalar_one()
            session.execute(text("update leases set token = :token"), {"token": token + 1})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add_one, range(40)))
    with unit_of_work(sessions, read_only=True) as session:
        assert session.execute(select(Lease.token)).scalar_one() == 41


def test_readers_do_not_wait_for_a_writer(sessions: SessionFactory) -> None:
    with unit_of_work(sessions) as session:
        session.add(Lease(name="a", holder="a", token=1, expires_at=NOW))
        session.flush()
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(count, sessions).result(timeout=5) == 0


def test_a_broken_constraint_stays_what_it_is(sessions: SessionFactory) -> None:
    add_lease(sessions, "a")
    with pytest.raises(IntegrityError):
        add_lease(sessions, "a")


def test_a_server_that_is_away_is_unavailable() -> None:
    engine = make_engine("postgresql://nobody@127.0.0.1:9/none")
    with pytest.raises(Unavailable) as caught, unit_of_work(make_sessions(engine)) as session:
        session.execute(text("select 1"))
    assert caught.value.retry_after_s == 2.0
    assert "127.0.0.1" not in caught.value.sentence


def test_a_database_without_tables_says_what_to_do(tmp_path: Path) -> None:
    engine = make_engine(f"sqlite:///{tmp_path / 'empty.sqlite3'}")
    with pytest.raises(Unavailable, match="python -m migrations upgrade"):
        count(make_sessions(engine))
    engine.dispose()


def test_a_locked_file_is_unavailable_not_a_bug(
    tmp_path: Path, sqlite_template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.db.engine.SQLITE_WAIT_S", 0)
    path = tmp_path / "locked.sqlite3"
    path.write_bytes(sqlite_template.read_bytes())
    engine = make_engine(f"sqlite:///{path}")
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("begin exclusive")
    with pytest.raises(Unavailable, match="try again"):
        add_lease(make_sessions(engine), "a")
    holder.close()
    engine.dispose()


def test_a_full_disk_is_reported_as_such(tmp_path: Path, sqlite_template: Path) -> None:
    path = tmp_path / "full.sqlite3"
    path.write_bytes(sqlite_template.read_bytes())
    engine = make_engine(f"sqlite:///{path}")
    sessions = make_sessions(engine)
    with pytest.raises(InsufficientStorage), unit_of_work(sessions) as session:
        # What SQLite answers when it may not grow is the same as when it cannot.
        pages = session.execute(text("pragma page_count")).scalar_one()
        session.execute(text(f"pragma max_page_count = {pages}"))
        for number in range(2000):
            session.add(Lease(name=f"{number}", holder="x" * 1000, token=1, expires_at=NOW))
        session.flush()
    engine.dispose()


def test_a_pool_without_a_free_connection_is_unavailable(tmp_path: Path, sqlite_template: Path) -> None:
    path = tmp_path / "busy.sqlite3"
    path.write_bytes(sqlite_template.read_bytes())
    engine = create_engine(f"sqlite:///{path}", pool_size=2, max_overflow=0, pool_timeout=0.01)
    sessions = make_sessions(engine)
    with unit_of_work(sessions, read_only=True), unit_of_work(sessions, read_only=True), pytest.raises(Unavailable):
        count(sessions)
    engine.dispose()


def test_an_errors_text_shows_no_parameters(sessions: SessionFactory) -> None:
    add_lease(sessions, "a-secret")
    with pytest.raises(IntegrityError) as caught:
        add_lease(sessions, "a-secret")
    assert "a-secret" not in str(caught.value.statement)
    assert "[parameters" not in str(caught.value)


def test_null_in_a_json_column_is_null(sessions: SessionFactory) -> None:
    with unit_of_work(sessions, read_only=True) as session:
        compiled = select(Job.id).where(Job.wait_reason.is_(None)).compile(session.get_bind())
    assert "IS NULL" in str(compiled)


def test_the_first_start_makes_what_a_first_job_needs_once(sessions: SessionFactory, settings: Settings) -> None:
    link = prepare_home(sessions, settings, NOW)
    token = read_token(settings)
    again = prepare_home(sessions, settings, NOW)
    assert link.startswith("http://127.0.0.1:8765/login?code=")
    assert link != again
    assert read_token(settings) == token
    assert (settings.home / "token").stat().st_mode & 0o777 == 0o600
    with unit_of_work(sessions, read_only=True) as session:
        assert session.execute(select(User.name)).scalars().all() == ["admin"]
        assert set(session.execute(select(Volume.name)).scalars()) == {"output", "data"}
        assert len(session.execute(select(Token)).scalars().all()) == 1


def test_a_token_file_that_is_lost_or_revoked_is_replaced(sessions: SessionFactory, settings: Settings) -> None:
    prepare_home(sessions, settings, NOW)
    first = read_token(settings)
    (settings.home / "token").unlink()
    prepare_home(sessions, settings, NOW)
    second = read_token(settings)
    with unit_of_work(sessions) as session:
        session.execute(text("update tokens set revoked_at = created_at"))
    prepare_home(sessions, settings, NOW)
    assert len({first, second, read_token(settings)}) == 3


def test_what_an_admin_changed_stays_at_the_next_start(sessions: SessionFactory, settings: Settings) -> None:
    prepare_home(sessions, settings, NOW)
    with unit_of_work(sessions) as session:
        session.execute(text("update volumes set root = '/elsewhere' where name = 'data'"))
        bootstrap(session, settings, NOW)
    with unit_of_work(sessions, read_only=True) as session:
        assert session.execute(select(Volume.root).where(Volume.name == "data")).scalar_one() == "/elsewhere"


def test_the_line_of_writers_is_per_database(tmp_path: Path, sqlite_template: Path) -> None:
    held = []
    for name in ("one", "two"):
        path = tmp_path / f"{name}.sqlite3"
        path.write_bytes(sqlite_template.read_bytes())
        held.append(make_sessions(make_engine(f"sqlite:///{path}")))
    done = threading.Event()
    with unit_of_work(held[0]), ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: (add_lease(held[1], "a"), done.set())).result(timeout=5)
    assert done.is_set()
    for sessions in held:
        sessions.kw["bind"].dispose()
