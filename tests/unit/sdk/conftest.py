"""A server of a few lines for the client and the command line to speak with."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import typer.main
from trainmaster import Client
from trainmaster.cli.main import app
from trainmaster.cli.terminal import session
from trainmaster.client import RetryPolicy
from typer.testing import CliRunner, Result

NOW = datetime(2026, 11, 21, 7, 0, tzinfo=UTC)
URL = "http://server.test:8765"
# Made once: typer makes all commands anew for each call, which takes longer than most of them.
COMMAND = typer.main.get_command(app)


def make_job_json(**changes: Any) -> dict[str, Any]:
    """A job as the server tells it."""
    name = changes.get("name", "mnist")
    return {
        "id": "job_1",
        "name": name,
        "project": "default",
        "user": "ann",
        "state": "running",
        "wanted": "run",
        "priority": 50,
        "roles": {"worker": 2},
        "created_at": NOW.isoformat(),
        "queued_at": NOW.isoformat(),
        "output": "output/default/job_1",
        "spec": {"name": name, "command": ["python", "train.py"], "roles": {"worker": {"replicas": 2}}},
        **changes,
    }


def make_sse(*events: tuple[str, Any], ids: bool = True) -> bytes:
    """A stream of ``(kind, data)``; each event's id is its place, counted from 1."""
    chunks = [b": trainmaster\nretry: 2000\n\n"]
    for number, (kind, data) in enumerate(events, 1):
        head = f"id: {number}\n" if ids else ""
        chunks.append(f"{head}event: {kind}\ndata: {json.dumps(data)}\n\n".encode())
    return b"".join(chunks)


def make_line_json(text: str, *, offset: int, index: int = 0, attempt: int = 1) -> dict[str, Any]:
    return {"attempt": attempt, "role": "worker", "index": index, "offset": offset, "text": text}


def make_problem(status: int, code: str, detail: str, **more: Any) -> httpx.Response:
    body = {"type": "about:blank", "title": "Problem", "status": status, "code": code, "detail": detail, **more}
    return httpx.Response(status, json=body, headers={"Content-Type": "application/problem+json"})


Handler = Callable[[httpx.Request], httpx.Response]


@dataclass
class FakeServer:
    """Answers by method and path; a list of answers is given out one by one, the last one for ever."""

    routes: dict[tuple[str, str], list[Any]] = field(default_factory=dict)
    requests: list[httpx.Request] = field(default_factory=list)

    def on(self, method: str, path: str, *answers: Any) -> FakeServer:
        """Answers: a response, an exception to raise, a function of the request, or anything else as JSON."""
        self.routes[method, path] = list(answers)
        return self

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answers = self.routes.get((request.method, request.url.path.removeprefix("/api/v1")))
        if answers is None:
            return make_problem(404, "not_found", f"There is no {request.url.path}.")
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        if callable(answer):
            answer = answer(request)
        if isinstance(answer, httpx.Response):
            # The same object may be given out again.
            return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)
        return httpx.Response(200, json=answer)

    def bodies(self, method: str, path: str) -> list[Any]:
        """What was sent there, as JSON."""
        return [
            json.loads(request.content)
            for request in self.requests
            if request.method == method and request.url.path == f"/api/v1{path}"
        ]

    def count(self, method: str, path: str) -> int:
        return sum(r.method == method and r.url.path == f"/api/v1{path}" for r in self.requests)


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that the client made, none of them in real time."""
    made: list[float] = []
    # Of that module alone: threads of others sleep, too.
    monkeypatch.setattr("trainmaster.client.transport.time", SimpleNamespace(sleep=made.append))
    return made


@pytest.fixture
def client(server: FakeServer, pauses: list[float]) -> Client:
    retry = RetryPolicy(tries=4, first_delay_s=1.0, max_delay_s=8.0, stream_patience_s=30.0, chance=lambda: 1.0)
    return Client(URL, "tm_secret", retry=retry, transport=httpx.MockTransport(server))


@pytest.fixture
def no_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine that knows no server: an empty home."""
    for name in ("API_URL", "URL", "TOKEN", "PROJECT", "CONTEXT", "DEBUG"):
        monkeypatch.delenv(f"TRAINMASTER_{name}", raising=False)
    home = tmp_path / "trainmaster-home"
    home.mkdir()
    monkeypatch.setenv("TRAINMASTER_HOME", str(home))
    monkeypatch.setenv("TRAINMASTER_CONFIG", str(tmp_path / "contexts.json"))
    return home


@pytest.fixture
def cli(
    server: FakeServer, no_config: Path, monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> Callable[..., Result]:
    """``cli("list", "--json")`` against the fake server."""
    monkeypatch.setenv("TRAINMASTER_API_URL", URL)
    monkeypatch.setenv("TRAINMASTER_TOKEN", "tm_secret")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(session, "http_transport", httpx.MockTransport(server))
    monkeypatch.setattr("typer.testing._get_command", lambda _app: COMMAND)

    def invoke(*arguments: str, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(app, list(arguments), input=stdin, prog_name="trainmaster")

    return invoke


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of code, and the current one."""
    folder = tmp_path / "My Digits"
    folder.mkdir()
    (folder / "train.py").write_text("print('hello')\n")
    monkeypatch.chdir(folder)
    return folder


def make_page(*items: Any) -> dict[str, Any]:
    return {"items": list(items), "next_cursor": None}


def submit_routes(server: FakeServer, job: dict[str, Any]) -> None:
    """The server takes code archives and a job, which it then tells as ``job``."""

    def started(request: httpx.Request) -> httpx.Response:
        query = request.url.params
        view = {"digest": query["digest"], "size_bytes": int(query["size"]), "received_bytes": 0, "is_complete": True}
        return httpx.Response(200, json=view)

    def answer(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        return httpx.Response(200, json=job["spec"]) if body["dry_run"] else httpx.Response(201, json=job)

    server.on("POST", "/archives", started)
    server.on("POST", "/jobs", answer)


# Test modules cannot import from here; they take these as fixtures.
@pytest.fixture
def page() -> Callable[..., dict[str, Any]]:
    return make_page


@pytest.fixture
def takes_jobs() -> Callable[..., None]:
    return submit_routes


@pytest.fixture
def job_json() -> Callable[..., dict[str, Any]]:
    return make_job_json


@pytest.fixture
def sse() -> Callable[..., bytes]:
    return make_sse


@pytest.fixture
def line_json() -> Callable[..., dict[str, Any]]:
    return make_line_json


@pytest.fixture
def problem() -> Callable[..., httpx.Response]:
    return make_problem
