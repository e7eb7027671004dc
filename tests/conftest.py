"""Fixtures that every test of the server may use.

``database_url`` is SQLite, and PostgreSQL too where ``TRAINMASTER_TEST_DATABASE_URL`` names a server on which we may
create databases. The schema is made by the real migration, once per run, and copied (SQLite) or emptied (PostgreSQL)
for each test.
"""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import hypothesis
import pytest
from fastapi import FastAPI
from sqlalchemy import create_engine, make_url, text
from starlette.routing import BaseRoute

from api.app import factory
from api.app.factory import create_app
from core.db.bootstrap import prepare_home, read_token
from core.db.engine import SessionFactory, make_engine, make_sessions
from core.settings import Settings
from core.wakeups import NoWakeup
from migrations import upgrade
from tests.databases import POSTGRES, copied_database, empty

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # starlette wants another client library; httpx is what the SDK uses too
    from starlette.testclient import TestClient

# The machine's load decides how long an example takes, not the code.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")

# Tests with several users are about their rights, not about whom their processes run as on this machine.
os.environ.setdefault("TRAINMASTER_SHARED_TRUST", "1")

# An engine keeps the SQL that it compiled, and to compile a test's statements takes longer than to run them.
engine_of = cache(make_engine)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "database_kind" in metafunc.fixturenames:
        postgres = pytest.param("postgres", marks=pytest.mark.postgres)
        # What an API answers and the control loop does is held against the stricter database where there is one. What
        # reads and writes (stores, repositories) is tested with both, and end to end tests run on SQLite.
        folder, subject = metafunc.definition.path.relative_to(Path(__file__).parent).parts[:2]
        is_above_stores = folder == "faults" or subject == "control" or subject.startswith("api_")
        kinds = ["sqlite"] if not POSTGRES else [postgres] if is_above_stores else ["sqlite", postgres]
        metafunc.parametrize("database_kind", kinds, scope="session")


def pytest_collection_finish() -> None:
    """Take all that lives until the end, some millions of objects, out of the garbage collections of each test."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


# Folders of tests that only compute.
_COMPUTING = ("architecture", "faults", "properties", "simulation", "unit")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """In tests side by side, those that only compute give way to those that wait, with a deadline, for other processes:
    platforms, engines, browsers. Only the superuser may take such a step back.
    """
    if "PYTEST_XDIST_WORKER" in os.environ and os.geteuid() == 0:
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        os.setpriority(os.PRIO_PROCESS, 0, 10 if folder in _COMPUTING else 0)


class FakeClock:
    """Time that moves when a test says so."""

    def __init__(self) -> None:
        self.now = datetime(2026, 11, 21, 7, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


class RecordingBell(NoWakeup):
    """Remembers who rang for what."""

    def __init__(self) -> None:
        self.rings: list[tuple[str, str]] = []

    def notify(self, topic: str, key: str = "") -> None:
        self.rings.append((topic, key))


@pytest.fixture(scope="session", autouse=True)
def _routes_are_built_once() -> Iterator[None]:
    """FastAPI works out parameters and models of all routes when an application is first asked, which takes 0.2 s of
    CPU.

    Ours are the same in every application, so those of this process share what the first one worked out. What differs
    between them (state, middleware, error pages) is not in it.
    """
    include_all, included = factory.include_all, list[BaseRoute]()

    def include(app: FastAPI) -> None:
        if not included:
            own = len(app.router.routes)
            include_all(app)
            included.extend(app.router.routes[own:])
        else:
            app.router.routes.extend(included)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(factory, "include_all", include)
        yield


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated, empty database to copy."""
    path = tmp_path_factory.mktemp("template") / "template.sqlite3"
    upgrade(f"sqlite:///{path}")  # closes its connection, which writes the log back into the one file
    return path


@pytest.fixture(scope="session")
def postgres_database() -> Iterator[str]:
    """A migrated database of this process's own on the server that the environment names."""
    server = make_url(POSTGRES).set(drivername="postgresql+psycopg")
    name = f"trainmaster_test_{os.getpid()}"
    admin = create_engine(server, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"drop database if exists {name} with (force)"))
        connection.execute(text(f"create database {name}"))
    url = server.set(database=name).render_as_string(hide_password=False)
    upgrade(url)
    yield url
    with admin.connect() as connection:
        connection.execute(text(f"drop database if exists {name} with (force)"))
    admin.dispose()


@pytest.fixture
def database_url(database_kind: str, request: pytest.FixtureRequest) -> str:
    """An empty, migrated database, at the same address for all tests of this process."""
    if database_kind == "sqlite":
        return copied_database(request.getfixturevalue("sqlite_template"))
    url: str = request.getfixturevalue("postgres_database")
    engine = create_engine(url)
    empty(engine)
    engine.dispose()
    return url


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Settings:
    home = tmp_path / "home"
    home.mkdir()
    return Settings(home=home, database_url=database_url, secret_key="a key for tests alone", database_pool_size=5)


@pytest.fixture
def sessions(settings: Settings) -> Iterator[SessionFactory]:
    engine = engine_of(settings.resolved_database_url, pool_size=settings.database_pool_size)
    yield make_sessions(engine)
    engine.dispose()  # its connections


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def wakeup() -> RecordingBell:
    return RecordingBell()


@pytest.fixture
def app(settings: Settings, sessions: SessionFactory, clock: FakeClock, wakeup: RecordingBell) -> FastAPI:
    """The application after its first start: user admin, project default, volumes output and data."""
    prepare_home(sessions, settings, clock.now)
    return create_app(settings, sessions=sessions, wakeup=wakeup, clock=clock)


@pytest.fixture
def admin_token(app: FastAPI, settings: Settings) -> str:
    token = read_token(settings)
    assert token is not None
    return token


@pytest.fixture
def client(app: FastAPI, admin_token: str) -> Iterator[TestClient]:
    """Speaks as the platform's admin."""
    with TestClient(app, headers={"Authorization": f"Bearer {admin_token}"}) as client:
        yield client


@pytest.fixture
def stranger(app: FastAPI, client: TestClient) -> TestClient:
    """Speaks without a token. Its application is started by ``client``."""
    return TestClient(app)


@pytest.fixture
def as_user(app: FastAPI, sessions: SessionFactory, client: TestClient, clock: FakeClock) -> Callable[..., TestClient]:
    """``as_user("ann", role="member", scopes=("read", "write"))``: a client of a user of that role in project
    default.
    """
    from sqlalchemy import select

    from core.db.bootstrap import add_token
    from core.db.engine import unit_of_work
    from core.db.tables import Membership, Project, User
    from core.ids import new_id

    def make(
        name: str,
        *,
        role: str | None = "member",
        project: str = "default",
        scopes: tuple[str, ...] = ("read", "write"),
        ttl: timedelta | None = None,
    ) -> TestClient:
        with unit_of_work(sessions) as session:
            user = session.execute(select(User).where(User.name == name)).scalar_one_or_none()
            if user is None:
                user = User(id=new_id("user"), name=name, is_admin=False, created_at=clock.now)
                session.add(user)
                session.flush()
            if role is not None:
                project_id = session.execute(select(Project.id).where(Project.name == project)).scalar_one()
                session.merge(Membership(project_id=project_id, user_id=user.id, role=role))
            token = add_token(session, user_id=user.id, name="test", scopes=scopes, now=clock.now, ttl=ttl)
        return TestClient(app, headers={"Authorization": f"Bearer {token}"})

    return make
