from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select, update
from starlette.testclient import TestClient

from core.db.engine import SessionFactory, unit_of_work
from core.db.tables import Attempt, Job, Replica
from core.domain.ids import AttemptId
from core.ids import new_id
from core.settings import Settings
from core.tokens import attempt_token
from core.wakeups import NoWakeup
from executors.fake import FakeEngine, FakeExecutor
from scheduler.control.context import ControlContext
from scheduler.control.studies.study_loop import StudyLoop


@pytest.fixture
def submit(client: TestClient, clock: Any) -> Callable[..., str]:
    """``submit(name="a", workers=2, …)`` gives the id of a new job, a second younger than the one before."""

    def make(by: TestClient | None = None, **spec: Any) -> str:
        clock.advance(1)
        answer = (by or client).post("/api/v1/jobs", json={"spec": {"name": "digits", "command": "true", **spec}})
        assert answer.status_code == 201, answer.text
        job_id: str = answer.json()["id"]
        return job_id

    return make


@pytest.fixture
def start(sessions: SessionFactory, clock: Any) -> Callable[..., str]:
    """``start(job_id)`` does what the control loop does, gives the attempt's id; ``set_job`` after it as needed."""

    def make(job_id: str, *, state: str = "running", number: int = 1) -> str:
        attempt_id = new_id("attempt")
        with unit_of_work(sessions) as session:
            gang = session.execute(select(Job.gang).where(Job.id == job_id)).scalar_one()
            layout = []
            session.add(
                Attempt(
                    id=attempt_id,
                    job_id=job_id,
                    number=number,
                    state=state,
                    executor="fake",
                    created_at=clock.now,
                    started_at=clock.now,
                )
            )
            session.flush()
            for role, replicas, *_ in gang["roles"]:
                for index in range(replicas):
                    rank = len(layout)
                    ports = [20000 + rank, 1, 2, 3]
                    layout.append(
                        {
                            "role": role,
                            "index": index,
                            "host": "127.0.0.1",
                            "ports": ports,
                            "node": "n",
                            "gpus": [],
                            "processes": 1,
                        }
                    )
                    session.add(
                        Replica(
                            id=new_id("replica"),
                            attempt_id=attempt_id,
                            job_id=job_id,
                            role=role,
                            index=index,
                            rank=rank,
                            state=state,
                            node="n",
                            gpus=[],
                            cpu_milli=100,
                            memory_bytes=1,
                            facts={},
                            progress={},
                        )
                    )
            session.execute(update(Attempt).where(Attempt.id == attempt_id).values(layout=layout))
            session.execute(
                update(Job)
                .where(Job.id == job_id)
                .values(state=state, attempt_count=number, started_at=clock.now, generation=Job.generation + 1)
            )
        return attempt_id

    return make


@pytest.fixture
def set_job(sessions: SessionFactory) -> Callable[..., None]:
    def change(job_id: str, **values: Any) -> None:
        with unit_of_work(sessions) as session:
            session.execute(update(Job).where(Job.id == job_id).values(**values, generation=Job.generation + 1))

    return change


@pytest.fixture
def end_attempt(sessions: SessionFactory, clock: Any) -> Callable[..., None]:
    def end(attempt_id: str) -> None:
        with unit_of_work(sessions) as session:
            session.execute(update(Attempt).where(Attempt.id == attempt_id).values(state="ended", ended_at=clock.now))

    return end


@pytest.fixture
def reporter(app: Any, settings: Settings) -> Callable[[str], TestClient]:
    """``reporter(attempt_id)`` speaks with that attempt's token."""

    def make(attempt_id: str) -> TestClient:
        key = settings.secret_key.get_secret_value().encode()
        token = attempt_token(key, AttemptId(attempt_id))
        return TestClient(app, headers={"Authorization": f"Bearer {token}"})

    return make


@pytest.fixture
def study_loop(sessions: SessionFactory, clock: Any) -> StudyLoop:
    executor = FakeExecutor(FakeEngine())
    return StudyLoop(ControlContext(sessions, executor, NoWakeup(), clock, "test", b"k" * 32))
