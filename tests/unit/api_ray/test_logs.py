"""The driver's lines: whole, and as they come over a WebSocket."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect

from core.settings import Settings
from tests.unit.api_ray.conftest import API

STAMP = "2026-11-21T07:00:00.123456Z"


class Stage:
    """A job that has started, whose log the test writes."""

    def __init__(self, client: TestClient, settings: Settings, submission_id: str) -> None:
        self.submission_id = submission_id
        self.job_id = client.get(f"{API}/jobs/{submission_id}").json()["job_id"]
        volume, _, path = client.get(f"/api/v1/jobs/{self.job_id}").json()["output"].partition("/")
        assert volume == "output"
        self.folder = settings.home / "output" / path / ".trainmaster/logs" / self.job_id

    def log(self, *lines: str, attempt: int = 1, name: str = "worker-0") -> None:
        path = Path(self.folder / str(attempt) / f"{name}.log")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.writelines(f"{STAMP} {line}\n" for line in lines)


@pytest.fixture
def stage(client: TestClient, settings: Settings, sent: Callable[..., str], start: Callable[..., str]) -> Stage:
    found = Stage(client, settings, sent())
    start(found.job_id)
    return found


def test_the_whole_log_is_without_times(client: TestClient, stage: Stage) -> None:
    url = f"{API}/jobs/{stage.submission_id}/logs"
    assert client.get(url).json() == {"logs": ""}
    stage.log("old")
    stage.log("first", "", "last \u00e9", attempt=2)
    stage.log("not the driver's", attempt=2, name="ps-0")
    assert client.get(url).json() == {"logs": "first\n\nlast \u00e9\n"}


def test_a_long_log_begins_with_what_was_left_out(
    client: TestClient, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.protocols.ray.routes.TEXT_LIMIT", 100)
    stage.log("a" * 100, "b", "c")
    reply = client.get(f"{API}/jobs/{stage.submission_id}/logs").json()["logs"]
    assert reply.endswith("the rest is at the job's page]\nb\nc\n")
    assert "a" not in reply.partition("\n")[2]


def test_the_tail_ends_with_the_job(client: TestClient, stage: Stage, set_job: Callable[..., None]) -> None:
    stage.log("one", "two")
    with client.websocket_connect(f"{API}/jobs/{stage.submission_id}/logs/tail") as socket:
        assert socket.receive_text() == "one\ntwo\n"
        stage.log("three")
        assert socket.receive_text() == "three\n"
        stage.log("four")
        set_job(stage.job_id, state="succeeded")
        assert socket.receive_text() == "four\n"
        with pytest.raises(WebSocketDisconnect) as ended:
            socket.receive_text()
    assert ended.value.code == 1000


def test_while_a_job_waits_its_tail_says_why(
    client: TestClient, settings: Settings, sent: Callable[..., str], set_job: Callable[..., None]
) -> None:
    job = Stage(client, settings, sent())
    set_job(job.job_id, wait_reason={"code": "capacity", "sentence": "needs 9 GPUs; the largest node has 8"})
    with client.websocket_connect(f"{API}/jobs/{job.submission_id}/logs/tail") as socket:
        reply = socket.receive_text()
        assert reply.startswith("[trainmaster] waiting: ")
        assert "the largest node has 8" in reply
        set_job(job.job_id, state="cancelled")
        with pytest.raises(WebSocketDisconnect):
            socket.receive_text()


def test_a_client_may_leave_at_any_time(app: Any, client: TestClient, stage: Stage) -> None:
    stage.log("one")
    with client.websocket_connect(f"{API}/jobs/{stage.submission_id}/logs/tail") as socket:
        assert socket.receive_text() == "one\n"
    assert app.state.event_watch._task is None  # nobody follows any more


def test_a_server_that_goes_down_says_so(app: Any, client: TestClient, stage: Stage) -> None:
    stage.log("one")
    with client.websocket_connect(f"{API}/jobs/{stage.submission_id}/logs/tail") as socket:
        assert socket.receive_text() == "one\n"
        app.state.shutdown.is_stopping = True
        with pytest.raises(WebSocketDisconnect) as ended:
            socket.receive_text()
    assert ended.value.code == 1001


def test_a_job_that_goes_away_ends_its_tail(
    client: TestClient, stage: Stage, set_job: Callable[..., None], clock: Any
) -> None:
    stage.log("one")
    with client.websocket_connect(f"{API}/jobs/{stage.submission_id}/logs/tail") as socket:
        assert socket.receive_text() == "one\n"
        set_job(stage.job_id, deleted_at=clock.now)
        with pytest.raises(WebSocketDisconnect) as ended:
            socket.receive_text()
    assert (ended.value.code, ended.value.reason) == (1011, f"Job {stage.submission_id} does not exist.")


def test_who_may_not_tail(
    client: TestClient, stranger: TestClient, as_user: Callable[..., TestClient], stage: Stage, admin_token: str
) -> None:
    url = f"{API}/jobs/{stage.submission_id}/logs/tail"

    def refused(by: TestClient, path: str = url, **more: Any) -> tuple[int, str]:
        with pytest.raises(WebSocketDenialResponse) as denied, by.websocket_connect(path, **more):
            pass
        return denied.value.status_code, denied.value.text

    assert refused(stranger)[0] == 401
    # A page of somebody else's could open it with the cookie that a browser sends along.
    assert refused(stranger, headers={"Cookie": f"trainmaster_session={admin_token}"})[0] == 401
    assert refused(as_user("far", role=None))[0] == 404
    assert refused(client, f"{API}/jobs/none/logs/tail") == (404, "Job none does not exist")
    with as_user("vic", role="viewer").websocket_connect(url):
        pass
