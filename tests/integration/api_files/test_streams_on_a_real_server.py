"""Streams over real sockets: clients that leave, a server that goes down, many at once."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from trainmaster.spec import parse_spec

from core.db.bootstrap import bootstrap
from core.db.engine import make_engine, make_sessions, unit_of_work
from core.db.tables import Base, Job, Project
from core.domain.sharing.resources import gang_of
from core.settings import Settings

DEADLINE_S = 120.0
STREAMS = 12


@dataclass
class Server:
    process: subprocess.Popen[bytes]
    url: str
    token: str
    output: Path
    sessions: Any

    def stream(self, **query: Any) -> Any:
        return httpx.stream(
            "GET",
            f"{self.url}/api/v1/jobs/job-1/logs/stream",
            params=query,
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=DEADLINE_S,
        )

    def log(self, text: str, name: str = "worker-0") -> None:
        path = self.output / "default/job-1/.trainmaster/logs/job-1/1" / f"{name}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(text)

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def until(condition: Any) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(0.02)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    now = datetime.now(UTC)
    settings = Settings(home=tmp_path, executor="fake", test_fake_executor=True)
    engine = make_engine(settings.resolved_database_url)
    Base.metadata.create_all(engine)
    sessions = make_sessions(engine)
    (tmp_path / "output").mkdir()
    with unit_of_work(sessions) as session:
        made = bootstrap(session, settings, now)
        assert made.admin_token is not None
        spec = parse_spec({"name": "digits", "command": "true", "workers": 1})
        gang = gang_of(spec)
        project = session.query(Project).one()
        session.add(
            Job(
                id="job-1",
                project_id=project.id,
                user_id=made.user_id,
                name="digits",
                spec=spec.model_dump(mode="json"),
                gang=gang.to_json(),
                shape=gang.shape(),
                state="running",
                priority=50,
                output_volume="output",
                output_path="default/job-1",
                created_at=now,
                queued_at=now,
                updated_at=now,
            )
        )
    port = free_port()
    environment = {
        **os.environ,
        "TRAINMASTER_HOME": str(tmp_path),
        "TRAINMASTER_PORT": str(port),
        "TRAINMASTER_EXECUTOR": "fake",
        "TRAINMASTER_TEST_FAKE_EXECUTOR": "1",
        "TRAINMASTER_LOG_LEVEL": "WARNING",
        "TRAINMASTER_STREAMS_PER_USER": str(STREAMS),
        "TRAINMASTER_CONNECTIONS_PER_ADDRESS": "3",
    }
    process = subprocess.Popen([sys.executable, "-m", "api"], env=environment)
    try:
        found = Server(process, f"http://127.0.0.1:{port}", made.admin_token, tmp_path / "output", sessions)
        until(lambda: _answers(found.url))
        yield found
    finally:
        process.kill()
        process.wait()
        engine.dispose()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/api/v1/health", timeout=2).status_code == 200
    except httpx.TransportError:
        return False


def lines(response: Any) -> Iterator[str]:
    for line in response.iter_lines():
        if line.startswith("data: ") and '"text":' in line:
            yield line.split('"text":"', 1)[1].rstrip('"}')


def test_a_line_is_seen_soon_after_it_was_written(server: Server) -> None:
    server.log("first\n")
    with server.stream(follow=True) as response:
        reported = lines(response)
        assert next(reported) == "first"
        delays = []
        for number in range(5):
            written = time.monotonic()
            server.log(f"line {number}\n")
            assert next(reported) == f"line {number}"
            delays.append(time.monotonic() - written)
    assert sorted(delays)[2] < 1.0, delays  # 0.2 s of polling, and a loaded machine


def test_the_server_going_down_ends_its_streams_at_once(server: Server) -> None:
    server.log("first\n")
    with ExitStack() as stack:
        reported = []
        for _ in range(10):
            response = stack.enter_context(server.stream(follow=True))
            reported.append(lines(response))
            assert next(reported[-1]) == "first"
        server.process.send_signal(signal.SIGTERM)
        # An end, and no cut in the middle: the server cuts what is left after a while, which would raise here.
        assert [list(rest) for rest in reported] == [[]] * 10
        assert server.process.wait(DEADLINE_S) is not None


def test_clients_that_leave_cost_nothing_afterwards(server: Server) -> None:
    server.log("first\n")
    with server.stream(follow=False) as response:
        assert list(lines(response)) == ["first"]
    before = server.descriptors()
    for _ in range(20):
        with server.stream(follow=True) as response:
            assert next(lines(response)) == "first"
    until(lambda: server.descriptors() <= before + 1)


def test_the_end_of_the_job_ends_the_stream(server: Server) -> None:
    server.log("first\n")
    with server.stream(follow=True) as response:
        reported = lines(response)
        assert next(reported) == "first"
        server.log("last")
        with unit_of_work(server.sessions) as session:
            job = session.get(Job, "job-1")
            assert job is not None
            job.state = "succeeded"
        assert list(reported) == ["last"]


def test_a_user_has_so_many_streams_at_once_and_a_closed_one_makes_room(server: Server) -> None:
    server.log("first\n")
    with ExitStack() as stack:
        reported = []  # an iterator that is thrown away closes its stream
        for _ in range(STREAMS):
            reported.append(lines(stack.enter_context(server.stream(follow=True))))
            assert next(reported[-1]) == "first"
        with server.stream(follow=True) as refused:
            refused.read()
            assert (refused.status_code, refused.json()["code"]) == (429, "too_many_requests")
            assert "TRAINMASTER_STREAMS_PER_USER" in refused.json()["detail"]
        token = {"Authorization": f"Bearer {server.token}"}
        assert httpx.get(f"{server.url}/api/v1/me", headers=token, timeout=DEADLINE_S).status_code == 200

    def is_open() -> bool:
        with server.stream(follow=True) as response:
            return bool(response.status_code == 200)

    until(is_open)


def test_an_address_has_so_many_connections_and_this_machine_any(server: Server) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    request = b"GET /api/v1/live HTTP/1.1\r\nHost: x\r\n\r\n"

    def is_served(stack: ExitStack, source: str) -> bool:
        connection = stack.enter_context(socket.create_connection((host, int(port)), 30, source_address=(source, 0)))
        try:
            connection.sendall(request)
            return bool(connection.recv(100))
        except ConnectionError:
            return False

    with ExitStack() as stack:
        assert [is_served(stack, "127.0.0.9") for _ in range(5)] == [True, True, True, False, False]
        assert all(is_served(stack, "127.0.0.1") for _ in range(5))
    with ExitStack() as stack:
        until(lambda: is_served(stack, "127.0.0.9"))


def _process_of_streams(server: Server) -> int:
    """It is the child of the child of the API that restarts it."""
    pid = server.process.pid
    for _ in range(2):
        (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        pid = int(child)
    return pid


def test_streams_have_a_process_of_their_own_that_is_started_again(server: Server) -> None:
    server.log("first\n")
    first = _process_of_streams(server)
    with server.stream(follow=True) as response:
        reported = lines(response)
        assert next(reported) == "first"
        os.kill(first, signal.SIGKILL)
        with pytest.raises(httpx.TransportError):  # the client resumes with its last id
            next(reported)
    with server.stream(follow=True) as response:
        assert next(lines(response)) == "first"
    assert _process_of_streams(server) != first
    scrape = httpx.get(f"{server.url}/metrics", headers={"Authorization": f"Bearer {server.token}"}, timeout=DEADLINE_S)
    streams = [line for line in scrape.text.splitlines() if line.startswith("trainmaster_requests_total{")]
    assert any('operation="stream_logs"' in line and f':{_process_of_streams(server)}"' in line for line in streams)


def test_a_caller_that_opens_streams_without_end_is_refused_before_they_cost_anything(server: Server) -> None:
    with httpx.Client(headers={"Authorization": f"Bearer {server.token}"}, timeout=DEADLINE_S) as client:
        url = f"{server.url}/api/v1/jobs/none/logs/stream"  # else they would count as open ones
        refused = [answer for _ in range(6 * STREAMS) if (answer := client.get(url)).status_code == 429]
    assert 0 < len(refused) < 4 * STREAMS
    assert refused[0].headers["retry-after"] == "1"
    assert refused[0].json()["code"] == "too_many_requests"
