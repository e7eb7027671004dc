"""Worker and beat as in production: processes of their own, with a Redis broker between them and the bells."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest
import redis
from sqlalchemy import select
from trainmaster.spec import parse_spec

from core.db.bootstrap import prepare_home
from core.db.engine import SessionFactory, make_engine, make_sessions, unit_of_work
from core.db.tables import Attempt, Event, Job, Project, User
from core.domain.sharing.resources import gang_of
from core.settings import Settings
from core.wakeups import QUEUE_OF_TOPIC, TOPIC_RECONCILE, TOPIC_TICK, CeleryWakeup
from migrations import upgrade
from tests.brokers import empty_broker

ROOT: Final = Path(__file__).resolve().parents[3]
REDIS_URL: Final = os.environ.get("TRAINMASTER_TEST_REDIS_URL", "")
DEADLINE_S: Final = 60.0
# Longer than any test: what happens then, a bell has brought about, not beat.
NEVER_S: Final = 3600.0

pytestmark = [
    pytest.mark.redis,
    pytest.mark.skipif(not REDIS_URL, reason="needs TRAINMASTER_TEST_REDIS_URL, such as redis://127.0.0.1:6379/0"),
]


@pytest.fixture
def broker() -> Iterator[str]:
    with empty_broker(REDIS_URL) as url:
        yield url


class TakesNoReports(BaseHTTPRequestHandler):
    """In the API's place. Where nobody answers at all, a replica that has ended is kept for a minute for its
    reports.
    """

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(404)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


class Plant:
    """A platform without its API: database, worker, beat and a bell."""

    def __init__(self, home: Path, broker: str) -> None:
        self.home = home
        self.broker = broker
        first = free_port_range()
        self.settings = Settings(home=home, broker_url=broker, process_port_range=f"{first}-{first + 99}")
        upgrade(self.settings.resolved_database_url)
        self.engine = make_engine(self.settings.resolved_database_url)
        self.sessions: SessionFactory = make_sessions(self.engine)
        prepare_home(self.sessions, self.settings, datetime.now(UTC))
        self.queues = redis.Redis.from_url(broker)
        self.wakeup = CeleryWakeup(broker)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), TakesNoReports)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def start(self, part: str, *, every_s: float = NEVER_S) -> subprocess.Popen[bytes]:
        """``worker`` or ``beat``; ``every_s``: how often beat rings."""
        env = os.environ | {
            "TRAINMASTER_HOME": str(self.home),
            "TRAINMASTER_BROKER_URL": self.broker,
            "TRAINMASTER_EXECUTOR": "process",
            "TRAINMASTER_API_URL": f"http://127.0.0.1:{self.server.server_port}",
            "TRAINMASTER_PROCESS_PORT_RANGE": self.settings.process_port_range,
            "TRAINMASTER_TICK_INTERVAL_S": str(every_s),
            "TRAINMASTER_RECONCILE_INTERVAL_S": str(every_s),
            "TRAINMASTER_LEASE_TTL_S": "3",
            "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("", "sdk", "worker_images/runtime")),
        }
        with (self.home / f"{part}.log").open("ab") as log:
            process = subprocess.Popen([sys.executable, "-m", "scheduler", part], env=env, stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def start_worker(self) -> subprocess.Popen[bytes]:
        """A worker that takes messages already."""
        before = self._log("worker").count('"scheduler.started"')
        worker = self.start("worker")
        self.wait(lambda: self._log("worker").count('"scheduler.started"') > before, "the worker's start")
        return worker

    def submit(self, name: str, command: str) -> str:
        """The row that the API writes; no bell."""
        spec = parse_spec({"name": name, "command": command, "workers": 1, "cpu": "100m"})
        gang = gang_of(spec)
        now = datetime.now(UTC)
        with unit_of_work(self.sessions) as session:
            project, user = session.scalars(select(Project.id)).first(), session.scalars(select(User.id)).first()
            assert project is not None
            assert user is not None
            session.add(
                Job(
                    id=f"job-{name}", project_id=project, user_id=user, name=name, spec=spec.model_dump(mode="json"),
                    gang=gang.to_json(), shape=gang.shape(), state="queued", priority=spec.priority,
                    output_volume="output", output_path=f"default/{name}", created_at=now, queued_at=now,
                    updated_at=now,
                )
            )  # fmt: skip
        return f"job-{name}"

    def state(self, job: str) -> str:
        with unit_of_work(self.sessions, read_only=True) as session:
            return session.execute(select(Job.state).where(Job.id == job)).scalar_one()

    def wait_for(self, job: str, state: str) -> None:
        self.wait(lambda: self.state(job) == state, f"{job} to be {state}")

    def wait(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not holds():
            if time.monotonic() > deadline:
                pytest.fail(f"waited in vain for {what}\n{self.reported()}")
            time.sleep(0.05)

    def attempts(self, job: str) -> list[str]:
        with unit_of_work(self.sessions, read_only=True) as session:
            return list(session.scalars(select(Attempt.id).where(Attempt.job_id == job)))

    def story(self, job: str) -> list[str]:
        with unit_of_work(self.sessions, read_only=True) as session:
            return list(session.scalars(select(Event.kind).where(Event.job_id == job).order_by(Event.id)))

    def output(self, job: str) -> Path:
        return self.home / "output" / "default" / job.removeprefix("job-")

    def reported(self) -> str:
        with unit_of_work(self.sessions, read_only=True) as session:
            events: Any = session.execute(select(Event.at, Event.kind, Event.reason).order_by(Event.id)).all()
        return "\n".join([*map(str, events), self._log("worker")[-4000:], self._log("beat")[-2000:]])

    def errors(self) -> list[str]:
        lines = (self._log("worker") + self._log("beat")).splitlines()
        return [line for line in lines if line.startswith("{") and json.loads(line).get("level") == "error"]

    def _log(self, part: str) -> str:
        path = self.home / f"{part}.log"
        return path.read_text() if path.exists() else ""

    def close(self) -> None:
        for process in self.processes:
            with suppress(ProcessLookupError):
                process.terminate()
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.server.shutdown()
        self.server.server_close()
        self.queues.close()
        self.engine.dispose()


def free_port_range() -> int:
    """The first of a hundred ports that are probably free: above one that the kernel just gave."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return min(port, 65_000)


@pytest.fixture
def plant(tmp_path: Path, broker: str) -> Iterator[Plant]:
    home = tmp_path / "home"
    home.mkdir()
    plant = Plant(home, broker)
    yield plant
    plant.close()


# Leaves a line for each time it was started.
COUNTED: Final = 'echo started >> "$TRAINMASTER_OUTPUT_DIR/starts"'


def test_bells_alone_bring_a_job_from_queued_to_succeeded_even_when_doubled(plant: Plant) -> None:
    plant.start_worker()
    job = plant.submit("rung", f"{COUNTED}; sleep 1")
    for _ in range(10):
        plant.wakeup.notify(TOPIC_TICK)
    plant.wait(lambda: bool(plant.attempts(job)), "an attempt")
    (attempt,) = plant.attempts(job)
    for _ in range(10):
        plant.wakeup.notify(TOPIC_RECONCILE, attempt)
        plant.wakeup.notify(TOPIC_TICK)
    plant.wait_for(job, "succeeded")
    for _ in range(5):
        plant.wakeup.notify(TOPIC_RECONCILE, attempt)  # late ones, too
    plant.wait(lambda: not any(plant.queues.llen(queue) for queue in QUEUE_OF_TOPIC.values()), "empty queues")
    assert plant.attempts(job) == [attempt]
    assert (plant.output(job) / "starts").read_text() == "started\n"
    story = plant.story(job)
    assert {kind: story.count(kind) for kind in ("job.placed", "job.running", "job.succeeded")} == {
        "job.placed": 1,
        "job.running": 1,
        "job.succeeded": 1,
    }
    assert not plant.errors()


def test_beat_repairs_what_lost_bells_left_undone(plant: Plant) -> None:
    job = plant.submit("lost", f"{COUNTED}; sleep 1")
    plant.wakeup.notify(TOPIC_TICK)
    queue = QUEUE_OF_TOPIC[TOPIC_TICK]
    plant.wait(lambda: plant.queues.llen(queue) > 0, "the ring in the queue")
    plant.queues.delete(*QUEUE_OF_TOPIC.values())  # purged before anybody heard it
    plant.start_worker()
    assert plant.state(job) == "queued"
    plant.start("beat", every_s=0.5)
    plant.wait(lambda: bool(plant.attempts(job)), "an attempt")
    plant.queues.delete(*QUEUE_OF_TOPIC.values())  # and once more in the middle
    plant.wait_for(job, "succeeded")
    assert (plant.output(job) / "starts").read_text() == "started\n"
    assert not plant.errors()


def test_a_job_goes_on_over_the_death_of_its_worker_and_ends_once(plant: Plant) -> None:
    worker = plant.start_worker()
    plant.start("beat", every_s=0.5)
    job = plant.submit("orphan", COUNTED + '; while [ ! -e "$TRAINMASTER_OUTPUT_DIR/go" ]; do sleep 0.1; done')
    plant.wakeup.notify(TOPIC_TICK)
    plant.wait_for(job, "running")
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    (plant.output(job) / "go").touch()  # it ends while nobody looks
    plant.start_worker()
    plant.wait_for(job, "succeeded")
    assert len(plant.attempts(job)) == 1
    assert (plant.output(job) / "starts").read_text() == "started\n"
    assert plant.story(job).count("job.succeeded") == 1


def test_a_worker_that_is_queried_to_end_while_it_begins_does_so(plant: Plant) -> None:
    worker = plant.start_worker()  # it has said so, and does not yet hear signals as a worker does
    worker.terminate()
    assert worker.wait(DEADLINE_S) == 0
    assert '"scheduler.stopped"' in plant.reported()
    assert not plant.errors()
