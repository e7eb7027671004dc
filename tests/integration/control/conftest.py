"""One control plane over a real database and the fake engine, which a test moves step by step."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select, update
from trainmaster.spec import parse_spec

from core.db.engine import unit_of_work
from core.db.tables import (
    Attempt,
    Event,
    Job,
    Membership,
    Project,
    Replica,
    User,
    Volume,
)
from core.domain.ids import AttemptId
from core.domain.sharing.resources import Amounts, gang_of
from executors.base import Gpu, NodeInfo
from executors.fake import FakeEngine, FakeExecutor
from scheduler.control.attempts.reconciler import Reconciler
from scheduler.control.context import ControlContext
from scheduler.control.maintenance.nodes import sync_nodes
from scheduler.control.planning.tick import Ticker

GPUS = tuple(Gpu(str(number), "a100", 2**30) for number in range(2))
KEY = b"k" * 32


class Plane:
    """One control plane on an empty platform."""

    def __init__(self, sessions, folder: Path) -> None:
        self.sessions = sessions
        self.engine = FakeEngine((NodeInfo("node-0", {}, Amounts(8_000, 64 * 2**30, {"a100": 2}), GPUS),))
        self.wakeups: list[tuple[str, str]] = []
        self.folder = folder
        with unit_of_work(sessions) as session:
            now = self.engine.now
            session.add_all(
                [
                    Project(id="project-1", name="default", created_at=now, quota={}),
                    User(id="user-1", name="ann", is_admin=False, created_at=now),
                    Volume(id="volume-1", name="output", kind="local", root=str(folder), created_at=now),
                ]
            )
            session.flush()
            session.add(Membership(project_id="project-1", user_id="user-1", role="member"))
        self.start()

    def start(self, faults=None) -> None:
        """Begin again with an empty memory, as after a kill."""
        self.start_without_nodes(faults)
        sync_nodes(self.control)

    def start_without_nodes(self, faults=None) -> None:
        """The same without asking the engine for its nodes: they stay as they are written down."""
        executor = FakeExecutor(self.engine, *([faults] if faults else []))
        self.control = ControlContext(
            self.sessions, executor, self, lambda: self.engine.now, "test", KEY, "http://api", self.folder
        )
        self.ticker, self.reconciler = Ticker(self.control), Reconciler(self.control)

    def notify(self, topic: str, key: str = "") -> None:
        self.wakeups.append((topic, key))

    def submit(self, name: str = "job", **spec) -> str:
        whole = parse_spec({"name": name, "command": "train", "workers": 1, **spec})
        gang = gang_of(whole)
        now = self.engine.now
        with unit_of_work(self.sessions) as session:
            session.add(
                Job(
                    id=f"job-{name}", project_id="project-1", user_id="user-1", name=name,
                    spec=whole.model_dump(mode="json"), gang=gang.to_json(), shape=gang.shape(), state="queued",
                    priority=whole.priority, max_run_time_s=whole.max_run_time, output_volume="output",
                    output_path=f"default/{name}", created_at=now, queued_at=now, updated_at=now,
                )
            )  # fmt: skip
        return f"job-{name}"

    def settle(self) -> None:
        """Tick and reconcile until nothing moves any more."""
        for _ in range(10):
            self.ticker.tick()
            self.wakeups.clear()
            with unit_of_work(self.sessions) as session:
                live = list(session.scalars(select(Attempt.id).where(Attempt.ended_at.is_(None))))
            for attempt_id in live:
                self.reconciler.reconcile(AttemptId(attempt_id))
            if not self.wakeups:
                return

    def advance(self, seconds: float) -> None:
        self.engine.advance(timedelta(seconds=seconds))
        self.settle()

    def one(self, table, **where):
        with unit_of_work(self.sessions) as session:
            return session.scalars(select(table).filter_by(**where)).one()

    def all(self, table, **where):
        """In the order in which they were written: ids sort by time, and an attempt's replicas by rank."""
        order = (table.attempt_id, table.rank) if table is Replica else table.__table__.primary_key
        with unit_of_work(self.sessions) as session:
            return list(session.scalars(select(table).filter_by(**where).order_by(*order)))

    def state(self, job_id: str) -> str:
        return self.one(Job, id=job_id).state

    def story(self, job_id: str) -> list[str]:
        with unit_of_work(self.sessions) as session:
            return list(session.scalars(select(Event.kind).where(Event.job_id == job_id).order_by(Event.id)))

    def want(self, job_id: str, wanted: str) -> None:
        with unit_of_work(self.sessions) as session:
            session.execute(
                update(Job).where(Job.id == job_id).values(desired_state=wanted, generation=Job.generation + 1)
            )


@pytest.fixture
def plane(sessions, tmp_path):
    return Plane(sessions, tmp_path)
