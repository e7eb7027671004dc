"""Lists are fetched page by page, by both clients and by a job's handle."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from trainmaster import AsyncClient, Client

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
