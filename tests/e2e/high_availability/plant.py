"""A platform as in production, on this machine: PostgreSQL, Redis, two APIs, two schedulers, two beats, real jobs."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from sqlalchemy import Engine, create_engine, make_url, text
from trainmaster import Client
from trainmaster.client import RetryPolicy

from core.db.bootstrap import prepare_home, read_token
from core.db.engine import make_engine, make_sessions
from core.settings import Settings
from migrations import upgrade
from tests.brokers import empty_broker
from tests.wire import Wire

ROOT: Final = Path(__file__).resolve().parents[3]
DATABASE_URL: Final = os.environ.get("TRAINMASTER_TEST_DATABASE_URL", "")
REDIS_URL: Final = os.environ.get("TRAINMASTER_TEST_REDIS_URL", "")
LEASE_S: Final = 5.0
DRAIN_S: Final = 1.0
# Six interpreters begin at once; on an idle machine of two cores that takes eight seconds.
START_S: Final = 150.0

marks: Final = [
    pytest.mark.e2e,
    pytest.mark.postgres,
    pytest.mark.redis,
    pytest.mark.xdist_group("e2e"),
    pytest.mark.skipif(
        not (DATABASE_URL and REDIS_URL),
        reason="needs TRAINMASTER_TEST_DATABASE_URL and TRAINMASTER_TEST_REDIS_URL: servers where it may make "
        "databases",
    ),
    # Limits of seconds with six processes: they want a machine that does nothing else, and minutes of it.
    pytest.mark.skipif(
        os.environ.get("TRAINMASTER_TEST_HIGH_AVAILABILITY") != "1",
        reason="TRAINMASTER_TEST_HIGH_AVAILABILITY=1 asks for it: minutes of an idle machine",
    ),
]


class Plant:
    """Starts, kills and asks. Everything goes over wires that a test may cut or freeze."""

    def __init__(self, home: Path, database_url: str, broker_url: str) -> None:
        self.home = home
        self.database = Wire(database_url, default_port=5432)
        self.broker = Wire(broker_url, default_port=6379)
        self.direct: Engine = make_engine(database_url, pool_size=2)  # past the wire: what is true
        ports = free_ports(6)
        self.apis = dict(zip(("api-1", "api-2"), ports[:2], strict=True))
        self.probes = dict(zip(("scheduler-1", "scheduler-2", "beat-1", "beat-2"), ports[2:], strict=True))
        self.front = Wire("http://127.0.0.1", targets=[("127.0.0.1", port) for port in ports[:2]])
        first = min(ports[0], 65_000)
        self.env = {
            "TRAINMASTER_HOME": str(home),
            "TRAINMASTER_DATABASE_URL": self.database.url,
            "TRAINMASTER_BROKER_URL": self.broker.url,
            "TRAINMASTER_EXECUTOR": "process",
            "TRAINMASTER_API_URL": self.front.url,
            "TRAINMASTER_PROCESS_PORT_RANGE": f"{first}-{first + 499}",
            "TRAINMASTER_LEASE_TTL_S": str(LEASE_S),
            "TRAINMASTER_DRAIN_S": str(DRAIN_S),
            "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("", "sdk", "worker_images/runtime")),
        }
        upgrade(make_url(database_url).set(drivername="postgresql+psycopg").render_as_string(hide_password=False))
        settings = Settings(home=home, database_url=database_url)
        prepare_home(make_sessions(self.direct), settings, datetime.now(UTC))
        self.token = read_token(settings) or ""
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        # A connection for each request, as from a client that comes and goes.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self.http = httpx.Client(headers={"Connection": "close"}, limits=limits, trust_env=False)

    def start(self, name: str) -> None:
        """``api-1``, ``scheduler-2``, ``beat-1``: started again after its end, too."""
        part = name.partition("-")[0]
        env = os.environ | self.env
        if part == "api":
            command, env = ["-m", "api"], env | {"TRAINMASTER_PORT": str(self.apis[name])}
        else:
            command = ["-m", "scheduler", "worker" if part == "scheduler" else "beat"]
            env |= {"TRAINMASTER_PROBE_PORT": str(self.probes[name])}
        with (self.home / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", *command], env=env, stdout=log, stderr=log
            )

    def start_all(self) -> None:
        for name in (*self.apis, *self.probes):
            self.start(name)
        self.wait(lambda: all(self.status(name, "ready") == 200 for name in self.processes), "all are ready", START_S)

    def kill(self, name: str) -> None:
        """As the kernel does when there is no memory left."""
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait(10)

    def end(self, name: str, *, within_s: float = 30) -> int:
        """SIGTERM; the exit code."""
        self.processes[name].terminate()
        return self.wait_for_end(name, within_s=within_s)

    def wait_for_end(self, name: str, *, within_s: float = 30) -> int:
        """The exit code; where each thread stands, if the process does not end."""
        process = self.processes[name]
        try:
            return process.wait(within_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)
            process.wait(10)
            pytest.fail(f"{name} did not end within {within_s:.0f} s\n{self.reported(at_most=20_000)}")

    def status(self, name: str, what: str) -> int:
        """Of ``live`` or ``ready``; 0: nobody answers within the time that a kubelet is told to wait."""
        port = self.apis.get(name) or self.probes[name]
        path = f"/api/v1/{what}" if name in self.apis else f"/{what}"
        try:
            return self.http.get(f"http://127.0.0.1:{port}{path}", timeout=5).status_code
        except httpx.TransportError:
            return 0

    def metrics(self, name: str) -> dict[str, float]:
        port = self.apis.get(name) or self.probes[name]
        headers = {"Authorization": f"Bearer {self.token}"}
        reported = self.http.get(f"http://127.0.0.1:{port}/metrics", headers=headers, timeout=10).text
        lines = (line.rpartition(" ") for line in reported.splitlines() if line and not line.startswith("#"))
        return {key: float(value) for key, _, value in lines}

    def client(self, **policy: Any) -> Client:
        return Client(self.front.url, token=self.token, retry=RetryPolicy(**policy) if policy else None)

    def ask(self, method: str, path: str, *, port: int | None = None, **options: Any) -> httpx.Response:
        """One request, without a second try."""
        url = f"http://127.0.0.1:{port or self.front.port}/api/v1{path}"
        headers = {"Authorization": f"Bearer {self.token}"}
        return self.http.request(method, url, headers=headers, **{"timeout": 15, **options})

    def rows(self, query: str, **values: Any) -> list[Any]:
        with self.direct.connect() as connection:
            return list(connection.execute(text(query), values))

    def states(self) -> dict[str, str]:
        return {row.name: row.state for row in self.rows("select name, state from jobs")}

    def attempts(self) -> dict[str, int]:
        return {
            row.name: row.n
            for row in self.rows(
                "select j.name, count(*) n from jobs j join attempts a on a.job_id = j.id group by j.name"
            )
        }

    def output(self, name: str) -> Path:
        (row,) = self.rows("select output_path from jobs where name = :name", name=name)
        return self.home / "output" / row.output_path

    def wait(self, holds: Callable[[], Any], what: str, within_s: float = 60.0) -> float:
        """Seconds until it holds."""
        began = time.monotonic()
        while not holds():
            if time.monotonic() - began > within_s:
                pytest.fail(f"waited {within_s:.0f} s in vain until {what}\n{self.states()}\n{self.reported()}")
            time.sleep(0.05)
        return time.monotonic() - began

    def alive(self) -> set[str]:
        return {name for name, process in self.processes.items() if process.poll() is None}

    def errors(self) -> list[str]:
        """Lines that a person would have to look at."""
        return [
            line
            for path in sorted(self.home.glob("*.log"))
            for line in path.read_text(errors="replace").splitlines()
            if '"level": "error"' in line or '"level":"error"' in line or "Traceback" in line
        ]

    def reported(self, *, at_most: int = 2500) -> str:
        logs = self.home.glob("*.log")
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-at_most:]}" for path in logs)

    def close(self) -> None:
        for wire in (self.database, self.broker):
            wire.mend()
        with suppress(Exception, pytest.fail.Exception):
            for row in self.rows("select id from jobs where state in ('queued', 'starting', 'running')"):
                self.ask("POST", f"/jobs/{row.id}/cancel", json={})
            self.wait(lambda: not set(self.states().values()) & {"running", "starting", "cancelling"}, "the end", 20)
        for process in self.processes.values():
            with suppress(ProcessLookupError):
                process.terminate()
        for process in self.processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for wire in (self.front, self.database, self.broker):
            wire.close()
        self.http.close()
        self.direct.dispose()


@contextmanager
def new_plant(home: Path) -> Iterator[Plant]:
    """With a database and a Redis number of its own."""
    home.mkdir(parents=True)
    with _database() as database_url, empty_broker(REDIS_URL, claim_s=600) as broker_url:
        plant = Plant(home, database_url, broker_url)
        try:
            yield plant
        finally:
            plant.close()


@contextmanager
def _database() -> Iterator[str]:
    server = make_url(DATABASE_URL).set(drivername="postgresql+psycopg")
    name = f"trainmaster_ha_{os.getpid()}_{random.SystemRandom().randrange(10**6)}"
    admin = create_engine(server, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"create database {name}"))
    yield make_url(DATABASE_URL).set(drivername="postgresql", database=name).render_as_string(hide_password=False)
    with admin.connect() as connection:
        connection.execute(text(f"drop database if exists {name} with (force)"))
    admin.dispose()


def free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


class Load(threading.Thread):
    """Calls ``work(number)`` again and again, until ``stop``; what it raises is kept."""

    def __init__(self, work: Callable[[int], None], *, pause_s: float = 0.02) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._pause_s = pause_s
        self._stopping = threading.Event()
        self.failures: list[str] = []
        self.count = 0

    def run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._work(self.count)
            except Exception as error:  # noqa: BLE001 - a failure of whatever kind is what the test asks for
                self.failures.append(f"{time.monotonic():.2f} {type(error).__name__}: {error}")
            self.count += 1
            self._stopping.wait(self._pause_s)

    def stop(self) -> None:
        self._stopping.set()
        self.join(60)
