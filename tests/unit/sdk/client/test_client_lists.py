"""Lists are fetched page by page, by both clients and by a job's handle."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from trainmaster import AsyncClient, Client
from trainmaster.errors import IllegalTransition

from tests.unit.sdk.conftest import FakeServer

ATTEMPTS = "/jobs/job_1/attempts"


def attempt_json(number: int) -> dict[str, Any]:
    return {
        "id": f"a{number}",
        "number": number,
        "state": "ended",
        "executor": "fake",
        "created_at": "2026-11-21T07:00Z",
    }


@pytest.fixture
def attempts(server: FakeServer) -> FakeServer:
    """Five attempts, two a page."""

    def answer(request: httpx.Request) -> httpx.Response:
        query = request.url.params
        first = int(query.get("cursor", query.get("after", "0"))) + 1
        numbers = list(range(first, min(first + 2, 6)))
        cursor = str(numbers[-1]) if numbers and numbers[-1] < 5 else None
        return httpx.Response(200, json={"items": [attempt_json(n) for n in numbers], "next_cursor": cursor})

    return server.on("GET", ATTEMPTS, answer)


def test_attempts_come_from_all_pages(client: Client, attempts: FakeServer) -> None:
    assert [attempt.number for attempt in client.list_attempts("job_1")] == [1, 2, 3, 4, 5]
    assert attempts.count("GET", ATTEMPTS) == 3


def test_the_next_page_is_fetched_when_it_is_needed(client: Client, attempts: FakeServer) -> None:
    assert next(client.list_attempts("job_1", after=1)).number == 2
    assert attempts.count("GET", ATTEMPTS) == 1


def test_a_page_of_attempts_can_be_had_alone(client: Client, attempts: FakeServer) -> None:
    page = client.list_attempts_page("job_1", cursor="2")
    assert ([attempt.number for attempt in page.items], page.next_cursor) == ([3, 4], "4")


def test_a_jobs_handle_walks_them_too(client: Client, attempts: FakeServer, job_json: Any) -> None:
    attempts.on("GET", "/jobs/mnist", job_json())
    assert [attempt.number for attempt in client.job("mnist").attempts()] == [1, 2, 3, 4, 5]


@pytest.mark.anyio
async def test_the_asynchronous_client_walks_them_alike(attempts: FakeServer, job_json: Any) -> None:
    attempts.on("GET", "/jobs/mnist", job_json())
    async with AsyncClient("http://x", "t", transport=httpx.MockTransport(attempts)) as client:
        assert [attempt.number async for attempt in client.list_attempts("job_1")] == [1, 2, 3, 4, 5]
        job = await client.job("mnist")
        assert [attempt.number async for attempt in job.attempts(after=3)] == [4, 5]


NOUNS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "list_volumes": ("/volumes", (), {"kind": "local", "created_at": "2026-11-21T07:00Z"}),
    "list_secrets": ("/projects/vision/secrets", ("vision",), {"updated_at": "2026-11-21T07:00Z"}),
    "list_projects": ("/projects", (), {"created_at": "2026-11-21T07:00Z"}),
    "list_users": ("/users", (), {"is_admin": False, "created_at": "2026-11-21T07:00Z"}),
    "list_log_sources": (
        "/jobs/job_1/logs",
        ("job_1",),
        {"attempt": 1, "role": "worker", "index": 0, "size_bytes": 1},
    ),
}


@pytest.mark.parametrize("method", NOUNS)
def test_every_noun_is_walked_over_its_pages(client: Client, server: FakeServer, method: str) -> None:
    path, arguments, fields = NOUNS[method]

    def answer(request: httpx.Request) -> httpx.Response:
        cursor = request.url.params.get("cursor")
        name, following = ("b", None) if cursor == "after-a" else ("a", "after-a")
        return httpx.Response(200, json={"items": [{"name": name, **fields}], "next_cursor": following})

    server.on("GET", path, answer)
    assert [item.name for item in getattr(client, method)(*arguments)] == ["a", "b"]
    page = getattr(client, f"{method}_page")(*arguments, limit=1)
    assert ([item.name for item in page.items], page.next_cursor) == (["a"], "after-a")


def test_a_refused_move_brings_the_history_of_the_job(client: Client, server: FakeServer) -> None:
    event = {"at": "2026-11-21T07:00:00Z", "kind": "job.cancelled", "actor": "user:ann", "reason": "wrong data"}
    problem = {"status": 409, "code": "illegal_transition", "detail": "It was cancelled.", "history": [event]}
    server.on("POST", "/jobs/mnist/resume", httpx.Response(409, json=problem))
    with pytest.raises(IllegalTransition) as refused:
        client.resume_job("mnist")
    assert [past._asdict() for past in refused.value.history] == [event]
    assert refused.value.to_problem()["history"] == [event]
