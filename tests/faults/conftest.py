"""What every fault schedule needs: a database whose transactions are steps."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import StaticPool

from core.db import engine as database
from core.db.tables import Base
from tests.databases import empty
from tests.faults.simulated import SteppedSession


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


@pytest.fixture
def postgres_sessions(request: pytest.FixtureRequest) -> Iterator[sessionmaker[SteppedSession]]:
    engine = database.make_engine(request.getfixturevalue("postgres_database"))
    empty(engine)
    yield sessionmaker(engine, class_=SteppedSession, expire_on_commit=False)
    engine.dispose()
