"""An empty PostgreSQL database of one's own, and the furnished house of the unit tests on it."""

from __future__ import annotations

import importlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import Engine, create_engine, make_url, text
from starlette.testclient import TestClient

from api.app.factory import create_app
from core.db.engine import make_engine, make_sessions
from core.db.tables import Base
from core.settings import Settings
from core.wakeups import NoWakeup
from tests.databases import empty


@pytest.fixture(scope="session")
def postgres_engine() -> Iterator[Engine]:
    url = os.environ.get("TRAINMASTER_TEST_DATABASE_URL", "")
    if not url.startswith("postgresql"):
        pytest.skip("TRAINMASTER_TEST_DATABASE_URL names no PostgreSQL")
    name = f"trainmaster_{secrets.token_hex(4)}"
    admin = create_engine(make_url(url).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine = make_engine(make_url(url).set(database=name).render_as_string(hide_password=False))
    Base.metadata.create_all(engine)
    try:
        yield engine
    finally:
        engine.dispose()
        with admin.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
        admin.dispose()


@pytest.fixture
def house(tmp_path: Path, postgres_engine: Engine) -> Iterator[Any]:
    unit = importlib.import_module("tests.unit.api_files.conftest")
    empty(postgres_engine)
    (tmp_path / "home").mkdir()
    settings = Settings(
        home=tmp_path / "home",
        secret_key=SecretStr("k" * 40),
        executor="fake",
        test_fake_executor=True,
        archive_limit_bytes=2**20,
    )
    app = create_app(settings, sessions=make_sessions(postgres_engine), wakeup=NoWakeup(), clock=lambda: made.now)
    with TestClient(app, raise_server_exceptions=False) as client:
        made = unit.House(app, client, settings, app.state.context.sessions, tmp_path / "output")
        unit.furnish(made)
        yield made
