"""The whole application, with a project, its people, a stranger, and a job with output on disk."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from httpx import Response
from pydantic import SecretStr
from sqlalchemy import Engine
from sqlalchemy.orm import Session
from starlette.testclient import TestClient
from trainmaster.spec import parse_spec

from api.app.factory import create_app
from core.db.engine import SessionFactory, make_engine, make_sessions, unit_of_work
from core.db.tables import Attempt, Base, Job, Membership, Node, Project, Replica, Token, User, Volume, VolumeGrant
from core.domain.ids import AttemptId
from core.domain.sharing.resources import gang_of
from core.settings import Settings
from core.tokens import attempt_token, platform_key, token_digest
from core.wakeups import NoWakeup
from tests.databases import POSTGRES, empty

START = datetime(2026, 11, 21, 7, 0, tzinfo=UTC)


@dataclass
class House:
    """A platform with people. ``token`` of each is ``tm_<name>``."""

    app: FastAPI
    client: TestClient
    settings: Settings
    sessions: SessionFactory
    output: Path  # the volume of outputs
    now: datetime = START
    users: dict[str, str] = field(default_factory=dict)
    projects: dict[str, str] = field(default_factory=dict)

    def call(self, who: str, method: str, path: str, **more: Any) -> Response:
        """A request as ``who``: a user, ``anonymous``, ``attempt`` (a replica's token), or a token itself."""
        headers = {**self.auth(who), **more.pop("headers", {})}
        answer: Response = self.client.request(
            method,
            path if path in ("/metrics", "/", "/login", "/openapi.json") else f"/api/v1{path}",
            headers=headers,
            **more,
        )
        return answer

    def auth(self, who: str) -> dict[str, str]:
        if who == "anonymous":
            return {}
        if who == "attempt":
            token = attempt_token(platform_key(self.settings), AttemptId("attempt-1"))
        else:
            token = who if who.startswith("tm_") else f"tm_{who}"
        return {"Authorization": f"Bearer {token}"}

    def add_user(
        self, session: Session, name: str, *, is_admin: bool = False, scopes: tuple[str, ...] = ("read", "write")
    ) -> None:
        user_id = f"user-{name}"
        self.users[name] = user_id
        session.add(User(id=user_id, name=name, is_admin=is_admin, created_at=self.now))
        session.flush()
        self.add_token(session, name, f"tm_{name}", scopes)

    def add_token(
        self,
        session: Session,
        user: str,
        text: str,
        scopes: tuple[str, ...],
        *,
        expires_at: datetime | None = None,
        project_ids: list[str] | None = None,
    ) -> None:
        session.add(
            Token(
                id="token-of-" + text.removeprefix("tm_"),
                user_id=self.users[user],
                name="test",
                digest=token_digest(text),
                scopes=list(scopes),
                created_at=self.now,
                expires_at=expires_at,
                project_ids=project_ids,
            )
        )

    def add_project(self, session: Session, name: str, **roles: str) -> None:
        self.projects[name] = f"project-{name}"
        session.add(Project(id=f"project-{name}", name=name, created_at=self.now))
        session.flush()
        for user, role in roles.items():
            session.add(Membership(project_id=f"project-{name}", user_id=self.users[user], role=role))

    def add_job(
        self, session: Session, job_id: str, *, project: str = "vision", state: str = "running", **spec: Any
    ) -> Job:
        parsed = parse_spec({"name": "digits", "project": project, "command": "python train.py", "workers": 2, **spec})
        gang = gang_of(parsed)
        job = Job(
            id=job_id,
            project_id=self.projects[project],
            user_id=self.users["member"],
            name=parsed.name,
            spec=parsed.model_dump(mode="json"),
            gang=gang.to_json(),
            shape=gang.shape(),
            state=state,
            priority=parsed.priority,
            attempt_count=1,
            output_volume="output",
            output_path=f"{project}/{job_id}",
            created_at=self.now,
            queued_at=self.now,
            updated_at=self.now,
        )
        session.add(job)
        session.flush()
        return job

    def set_state(self, job_id: str, state: str) -> None:
        with unit_of_work(self.sessions) as session:
            job = session.get(Job, job_id)
            assert job is not None
            job.state = state

    def log(self, job_id: str, attempt: int, name: str, text: str, *, project: str = "vision") -> Path:
        path = self.output / project / job_id / ".trainmaster/logs" / job_id / str(attempt) / f"{name}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(text)
        return path


def furnish(house: House) -> None:
    """Fill an empty database; folders are made when they are missing."""
    with unit_of_work(house.sessions) as session:
        house.add_user(session, "root", is_admin=True, scopes=("read", "write", "admin"))
        for name in ("owner", "member", "viewer", "stranger", "nobody"):
            house.add_user(session, name)
        house.add_project(session, "vision", owner="admin", member="member", viewer="viewer")
        house.add_project(session, "other", stranger="admin")
        for name, root in (("output", house.output), ("data", house.output.parent / "data")):
            root.mkdir(exist_ok=True)
            session.add(
                Volume(id=f"volume-{name}", name=name, kind="local", root=str(root), config={}, created_at=house.now)
            )
        session.flush()
        session.add(VolumeGrant(id="grant-1", volume_id="volume-data", project_id="project-vision", access="write"))
        house.add_job(session, "job-1")
        session.add(
            Attempt(id="attempt-1", job_id="job-1", number=1, state="running", executor="fake", created_at=house.now)
        )
        session.flush()
        for index in range(2):
            session.add(
                Replica(
                    id=f"replica-{index}",
                    attempt_id="attempt-1",
                    job_id="job-1",
                    role="worker",
                    index=index,
                    rank=index,
                    state="running",
                    node="node-a",
                    gpus=[str(index)],
                    gpu_model="H200",
                    cpu_milli=500,
                    memory_bytes=2**30,
                )
            )
        session.add(
            Node(
                name="node-a",
                executor="fake",
                labels={"zone": "a"},
                allocatable={"cpu_milli": 8000, "memory_bytes": 2**34, "gpus": {"H200": 4}},
                gpus=[{"id": str(n), "model": "H200", "memory_bytes": 2**37} for n in range(4)],
                is_ready=True,
                seen_at=house.now,
            )
        )


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database to copy."""
    path = tmp_path_factory.mktemp("tables") / "db.sqlite3"
    engine = make_engine(f"sqlite:///{path}")
    Base.metadata.create_all(engine)
    engine.dispose()  # the last one out writes the log back into the one file
    return path


@pytest.fixture
def engine(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Empty tables: of PostgreSQL, the stricter database, where there is one."""
    if POSTGRES:
        made = make_engine(request.getfixturevalue("postgres_database"))
        empty(made)
    else:
        shutil.copy(request.getfixturevalue("tables"), tmp_path / "db.sqlite3")
        made = make_engine(f"sqlite:///{tmp_path / 'db.sqlite3'}")
    yield made
    made.dispose()


@pytest.fixture
def house(tmp_path: Path, engine: Engine) -> Iterator[House]:
    home = tmp_path / "home"
    home.mkdir()
    settings = Settings(
        home=home, secret_key=SecretStr("k" * 40), executor="fake", test_fake_executor=True, archive_limit_bytes=2**20
    )
    sessions = make_sessions(engine)
    app = create_app(settings, sessions=sessions, wakeup=NoWakeup(), clock=lambda: made.now)
    with TestClient(app, raise_server_exceptions=False) as client:
        made = House(app, client, settings, sessions, tmp_path / "output")
        furnish(made)
        yield made
    engine.dispose()


def later(house: House, **by: float) -> None:
    house.now += timedelta(**by)
