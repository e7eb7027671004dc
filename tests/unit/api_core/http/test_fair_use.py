"""Limits of fair use: by bucket, in turns, at once; and what others of the same platform notice of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from api.app.factory import create_app
from api.app.fair_use import ConcurrencyLimit, KeyedSemaphore, TokenBuckets
from core.domain.errors import TooManyRequests


class Seconds:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    seconds = Seconds()
    buckets = TokenBuckets(3.0, 0.5, seconds)
    for _ in range(3):
        assert buckets.wait_s("a") == 0.0
        buckets.take("a")
    assert buckets.wait_s("a") == 2.0
    assert buckets.wait_s("b") == 0.0
    seconds.now_s += 2.0
    assert buckets.wait_s("a") == 0.0
    buckets.take("a")
    assert buckets.wait_s("a") == 2.0
    seconds.now_s += 3600.0
    for _ in range(3):  # it holds no more than the burst
        buckets.take("a")
    assert buckets.wait_s("a") == 2.0


def test_only_the_latest_callers_are_remembered() -> None:
    buckets = TokenBuckets(1.0, 1.0, Seconds(), keys=10)
    for number in range(11):
        buckets.take(f"caller {number}")
    assert buckets.wait_s("caller 0") == 0.0
    assert buckets.wait_s("caller 1") > 0.0


def test_requests_of_a_caller_take_turns_in_order_and_others_pass() -> None:
    async def scene() -> list[str]:
        turns, seen = KeyedSemaphore(2), list[str]()

        async def work(key: str, name: str, hold: asyncio.Event) -> None:
            await turns.acquire(key)
            seen.append(name)
            await hold.wait()
            turns.release(key)

        hold, free = asyncio.Event(), asyncio.Event()
        free.set()
        tasks = [asyncio.create_task(work("a", f"a{number}", hold)) for number in range(5)]
        await asyncio.sleep(0)
        await asyncio.create_task(work("b", "b0", free))
        tasks[2].cancel()  # it waits no longer
        await asyncio.sleep(0)
        hold.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _ in range(2):  # all turns are free again
            await asyncio.wait_for(turns.acquire("a"), 5)
        return seen

    assert asyncio.run(scene()) == ["a0", "a1", "b0", "a3", "a4"]


def test_a_turn_that_comes_to_a_cancelled_request_goes_to_the_next_one() -> None:
    async def scene() -> None:
        turns = KeyedSemaphore(1)
        await turns.acquire("a")
        second, third = (asyncio.create_task(turns.acquire("a")) for _ in range(2))
        await asyncio.sleep(0)
        turns.release("a")
        second.cancel()  # its turn has come, but it does not know yet
        with pytest.raises(asyncio.CancelledError):
            await second
        await asyncio.wait_for(third, 5)

    asyncio.run(scene())


def test_requests_beyond_those_that_may_wait_are_refused() -> None:
    async def scene() -> None:
        turns = KeyedSemaphore(1, waiting=1)
        await turns.acquire("a")
        waiting = asyncio.create_task(turns.acquire("a"))
        await asyncio.sleep(0)
        with pytest.raises(TooManyRequests, match="1 requests are being answered and 1 more wait"):
            await turns.acquire("a")
        turns.release("a")
        await waiting

    asyncio.run(scene())


def test_what_is_closed_makes_room() -> None:
    limit = ConcurrencyLimit(2)
    with limit.acquire("a"), limit.acquire("b"):
        assert not limit.is_reached("a")
        with limit.acquire("a"):
            assert limit.is_reached("a")
            assert not limit.is_reached("b")
        assert not limit.is_reached("a")


def test_a_token_that_asks_too_often_is_refused_and_others_are_not(
    settings: Any, sessions: Any, clock: Any, wakeup: Any, app: FastAPI, admin_token: str
) -> None:
    few = settings.model_copy(update={"requests_per_s": 0.001})
    with TestClient(create_app(few, sessions=sessions, wakeup=wakeup, clock=clock)) as client:
        token = {"Authorization": f"Bearer {admin_token}"}
        assert client.get("/api/v1/me", headers=token).status_code == 200
        refused = client.get("/api/v1/me", headers=token)
        assert (refused.status_code, refused.json()["code"]) == (429, "too_many_requests")
        assert 1 <= int(refused.headers["retry-after"]) <= 1_000
        assert "TRAINMASTER_REQUESTS_PER_S" in refused.json()["detail"]
        padded = {"Authorization": f"bearer   {admin_token}", "Cookie": "a=b"}
        assert client.get("/api/v1/me", headers=padded).status_code == 429  # the same caller
        # The address has a bucket of its own, and a probe is answered whatever else it sends.
        assert [client.get("/api/v1/spec").status_code for _ in range(2)][1] == 429
        assert client.get("/api/v1/live").status_code == 200


def test_guessing_tokens_and_codes_is_slowed_down_and_right_ones_still_pass(
    app: FastAPI, client: TestClient, stranger: TestClient, admin_token: str
) -> None:
    answers = [
        stranger.get("/api/v1/me", headers={"Authorization": f"Bearer tm_guess{number}"}).status_code
        for number in range(65)
    ]
    assert answers[:60] == [401] * 60
    assert 429 in answers[60:]
    guessed = stranger.post("/api/v1/login", json={"code": "guess"})
    assert (guessed.status_code, guessed.json()["code"]) == (429, "too_many_requests")
    assert "unknown here" in guessed.json()["detail"]
    assert int(guessed.headers["retry-after"]) >= 1
    app.state.callers.clear()
    assert client.get("/api/v1/me").status_code == 200
    code = client.post("/api/v1/login/codes").json()["code"]
    assert stranger.post("/api/v1/login", json={"code": code}).status_code == 201


class Sender:
    """Speaks to the application in this thread's loop, with bodies that come in parts."""

    def __init__(self, app: FastAPI, token: str) -> None:
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app),
            base_url="http://platform",
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )

    async def post(self, *parts: bytes | asyncio.Event, token: str | None = None) -> httpx.Response:
        async def body() -> AsyncIterator[bytes]:
            for part in parts:
                if isinstance(part, asyncio.Event):
                    await part.wait()
                else:
                    yield part

        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return await self.client.post("/api/v1/jobs", content=body(), headers=headers)


def test_a_body_that_does_not_end_is_given_up(app: FastAPI, client: TestClient, admin_token: str) -> None:
    app.state.fair_use.body_s = 0.2

    async def scene() -> httpx.Response:
        return await Sender(app, admin_token).post(b'{"name":', asyncio.Event())

    answer = asyncio.run(scene())
    assert (answer.status_code, answer.json()["code"]) == (408, "request_too_slow")


def test_unfinished_bodies_of_an_address_are_limited_whatever_their_tokens(
    app: FastAPI, client: TestClient, admin_token: str
) -> None:
    app.state.fair_use.bodies.limit = 20

    async def scene() -> None:
        sender, rest = Sender(app, admin_token), asyncio.Event()
        unfinished = [
            asyncio.create_task(sender.post(b'{"name":', rest, b'"x"}', token=f"tm_{number}")) for number in range(20)
        ]
        await asyncio.sleep(0.1)
        refused = await sender.post(b"{}")
        assert (refused.status_code, refused.json()["code"]) == (429, "too_many_requests")
        assert "bodies" in refused.json()["detail"]
        assert (await sender.client.get("/api/v1/me")).status_code == 200
        rest.set()
        assert {answer.status_code for answer in await asyncio.gather(*unfinished)} == {401}
        assert (await sender.post(b"{}")).status_code == 422

    asyncio.run(scene())


def test_half_a_body_holds_no_turn_of_another_token(app: FastAPI, client: TestClient, admin_token: str) -> None:
    limit = app.state.fair_use.turns.limit

    async def scene() -> None:
        sender, rest = Sender(app, admin_token), asyncio.Event()
        own = [asyncio.create_task(sender.post(b"{", rest, b"}", token="tm_slow")) for _ in range(limit + 5)]
        await asyncio.sleep(0.1)
        answer = await asyncio.wait_for(sender.client.get("/api/v1/me"), 30)
        assert answer.status_code == 200
        rest.set()
        assert {answer.status_code for answer in await asyncio.gather(*own)} == {401}

    asyncio.run(scene())
