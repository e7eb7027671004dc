from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from starlette.testclient import TestClient

from core.db.engine import SessionFactory, unit_of_work
from core.db.repositories.events import append_event


def add(sessions: SessionFactory, clock: Any, job_id: str, kind: str, **more: Any) -> None:
    with unit_of_work(sessions) as session:
        append_event(session, at=clock.now, kind=kind, actor="scheduler", job_id=job_id, **more)


def parse(text: str) -> list[tuple[str, str | None, Any]]:
    """(event, id, data) of each event of a stream."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":") and ": " in line)
        if "data" in fields:
            found.append((fields["event"], fields.get("id"), json.loads(fields["data"])))
    return found


def test_history_comes_oldest_first_in_pages(
    client: TestClient, submit: Any, sessions: SessionFactory, clock: Any
) -> None:
    job_id = submit()
    for number in range(5):
        add(sessions, clock, job_id, "replica.note", reason=f"{number}")
    seen: list[dict[str, Any]] = []
    cursor = None
    while True:
        query = {"limit": 2, **({"cursor": cursor} if cursor else {})}
        page = client.get(f"/api/v1/jobs/{job_id}/events", params=query).json()
        seen += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert [event["kind"] for event in seen] == ["job.queued"] + ["replica.note"] * 5
    assert [event["reason"] for event in seen[1:]] == list("01234")
    after = client.get(f"/api/v1/jobs/{job_id}/events", params={"after": seen[3]["id"]}).json()
    assert after["items"] == seen[4:]


def test_a_job_tells_no_other_jobs_events(client: TestClient, submit: Any) -> None:
    first, second = submit(), submit()
    events = client.get(f"/api/v1/jobs/{first}/events").json()["items"]
    assert {event["job_id"] for event in events} == {first}
    everything = client.get("/api/v1/events").json()["items"]
    assert {first, second} <= {event["job_id"] for event in everything}


def test_all_events_are_those_of_the_callers_projects(
    client: TestClient, submit: Any, as_user: Callable[..., TestClient]
) -> None:
    submit()
    assert as_user("eve", role=None).get("/api/v1/events").json()["items"] == []
    assert len(as_user("ann").get("/api/v1/events").json()["items"]) == 1
    assert as_user("eve", role=None).get("/api/v1/events", params={"project": "default"}).status_code == 404


@pytest.mark.parametrize(
    "query", [{"after": -1}, {"after": 2**70}, {"limit": 0}, {"cursor": "?"}, {"cursor": "WyJhIl0"}]
)
def test_a_place_that_is_none_is_refused(client: TestClient, submit: Any, query: dict[str, Any]) -> None:
    assert client.get(f"/api/v1/jobs/{submit()}/events", params=query).status_code == 422


def test_following_a_job_that_is_over_tells_all_and_ends(client: TestClient, submit: Any) -> None:
    job_id = submit()
    client.post(f"/api/v1/jobs/{job_id}/cancel")
    answer = client.get(f"/api/v1/jobs/{job_id}/events", params={"follow": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = parse(answer.text)
    assert [(kind, data.get("kind", data.get("state"))) for kind, _, data in events] == [
        ("event", "job.queued"),
        ("event", "job.cancelled"),
        ("end", "cancelled"),
    ]


def test_a_broken_stream_goes_on_after_its_last_id(client: TestClient, submit: Any) -> None:
    job_id = submit()
    client.post(f"/api/v1/jobs/{job_id}/cancel")
    path = f"/api/v1/jobs/{job_id}/events?follow=true"
    first = parse(client.get(path).text)[0][1]
    rest = parse(client.get(path, headers={"Last-Event-ID": str(first)}).text)
    assert [data.get("kind") for _, _, data in rest] == ["job.cancelled", None]


def test_following_what_is_not_there_is_a_plain_404(client: TestClient) -> None:
    assert client.get("/api/v1/jobs/none/events", params={"follow": True}).status_code == 404


def test_a_long_history_streams_whole(client: TestClient, submit: Any, sessions: SessionFactory, clock: Any) -> None:
    job_id = submit()
    with unit_of_work(sessions) as session:
        for number in range(1200):
            append_event(session, at=clock.now, kind="replica.note", actor="x", job_id=job_id, reason=str(number))
    client.post(f"/api/v1/jobs/{job_id}/cancel")
    events = parse(client.get(f"/api/v1/jobs/{job_id}/events", params={"follow": True}).text)
    ids = [int(event_id) for kind, event_id, _ in events if kind == "event" and event_id is not None]
    assert len(ids) == 1202
    assert ids == sorted(set(ids))


@pytest.fixture
def live(app: FastAPI, client: TestClient) -> Iterator[str]:
    """The application behind a real server: a stream must be read while it goes on."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 10
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    app.state.shutdown.is_stopping = True
    server.should_exit = True
    thread.join(timeout=10)


def test_a_follower_hears_of_events_as_they_happen(
    live: str, client: TestClient, submit: Any, admin_token: str, sessions: SessionFactory, clock: Any
) -> None:
    job_id = submit()
    headers = {"Authorization": f"Bearer {admin_token}"}
    heard = []
    url = f"{live}/api/v1/jobs/{job_id}/events?follow=true"
    with httpx.stream("GET", url, headers=headers, timeout=10) as answer:
        for line in answer.iter_lines():
            if not line.startswith("data: "):
                continue
            data = json.loads(line.removeprefix("data: "))
            heard.append(data.get("kind", data.get("state")))
            if heard == ["job.queued"]:
                add(sessions, clock, job_id, "replica.note")
            elif heard[-1] == "replica.note":
                client.post(f"/api/v1/jobs/{job_id}/cancel")
    assert heard == ["job.queued", "replica.note", "job.cancelled", "cancelled"]


def test_a_stream_ends_when_its_reader_may_read_no_more(
    live: str, submit: Any, as_user: Callable[..., TestClient], sessions: SessionFactory, clock: Any
) -> None:
    from sqlalchemy import text

    job_id = submit()
    token = as_user("ann").headers["Authorization"]
    seen = []
    url = f"{live}/api/v1/jobs/{job_id}/events?follow=true"
    with httpx.stream("GET", url, headers={"Authorization": token}, timeout=10) as answer:
        for line in answer.iter_lines():
            if line.startswith("event: "):
                seen.append(line)
                with unit_of_work(sessions) as session:
                    session.execute(text("update users set disabled_at = created_at where name = 'ann'"))
                clock.advance(10)
    assert seen == ["event: event", "event: error"]
