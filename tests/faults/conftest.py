"""What every fault schedule needs: a database whose transactions are steps, and the same ids in every run of a seed."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import StaticPool

from core.db import engine as database
from core.db.tables import Base
from scheduler.control.attempts.launching import commands
from scheduler.control.attempts.storage import transaction_batcher
from scheduler.control.planning import placing
from scheduler.control.studies import trial_starts
from tests.databases import empty
from tests.faults.simulated import SteppedSession, TurnByTurn


@pytest.fixture(scope="session")
def template() -> sqlite3.Connection:
    """An empty database with all tables, in memory, to copy from."""
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    engine = create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool)
    Base.metadata.create_all(engine)
    return connection


@pytest.fixture
def sessions(template: sqlite3.Connection) -> Iterator[sessionmaker[SteppedSession]]:
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    template.backup(connection)
    engine = create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool)
    event.listen(engine, "connect", database._on_sqlite_connect)
    event.listen(engine, "begin", database._on_sqlite_begin)
    yield sessionmaker(engine, class_=SteppedSession, expire_on_commit=False)
    engine.dispose()
    connection.close()


@pytest.fixture(autouse=True)
def turn_by_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks and creations side by side, and yet the same in every run of a seed."""
    for module in (transaction_batcher, commands):
        monkeypatch.setattr(module, "ThreadPoolExecutor", TurnByTurn)


@pytest.fixture(autouse=True)
def ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids in the order of their making, and the same in every run of a seed."""
    numbers = itertools.count(1)
    for module in (placing, trial_starts):
        monkeypatch.setattr(module, "new_id", lambda prefix: f"{prefix}-{next(numbers):06}")


@pytest.fixture
def postgres_sessions(request: pytest.FixtureRequest) -> Iterator[sessionmaker[SteppedSession]]:
    engine = database.make_engine(request.getfixturevalue("postgres_database"))
    empty(engine)
    yield sessionmaker(engine, class_=SteppedSession, expire_on_commit=False)
    engine.dispose()
