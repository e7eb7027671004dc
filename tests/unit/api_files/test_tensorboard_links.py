"""Addresses for TensorBoard: who gets one, and how long it is good. tests/integration/tensorboard has TensorBoard
itself.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import delete

from api.tensorboard.viewers import Viewer, Viewers
from core.db.engine import unit_of_work
from core.db.tables import Job, Membership
from core.domain.errors import Unavailable
from core.settings import Settings
from tests.unit.api_files.conftest import House, later


@pytest.fixture
def looked(house: House, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """What was asked of which TensorBoard: one that answers with the names of its jobs stands for it."""
    seen: list[tuple[str, list[str]]] = []

    @asynccontextmanager
    async def use(key: str, outputs: Any) -> AsyncIterator[httpx.AsyncClient]:
        def answer(request: httpx.Request) -> httpx.Response:
            seen.append((f"{request.method} {request.url.raw_path.decode()}", sorted(request.headers)))

            async def body() -> AsyncIterator[bytes]:
                yield json.dumps([one.name for one in outputs]).encode()

            return httpx.Response(200, content=body(), headers={"Set-Cookie": "a=b", "ETag": '"x"'})

        async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://tensorboard") as client:
            yield client

    monkeypatch.setattr(house.app.state.viewers, "use", use)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: object())
    return seen


def link(house: House, who: str, *jobs: str) -> str:
    answer = house.call(who, "POST", "/tensorboards", json={"jobs": list(jobs)})
    assert answer.status_code == 201, answer.text
    path: str = answer.json()["path"]
    return path


def test_the_address_alone_opens_it_and_nothing_of_the_platform_goes_in_or_out(house: House, looked: Any) -> None:
    path = link(house, "viewer", "job-1")
    answer = house.client.get(
        f"{path}data/x%2Fy?a=1%202",
        headers={"Cookie": "trainmaster_session=tm_root", "Authorization": "Bearer tm_root"},
    )
    assert answer.json() == ["digits"]
    assert answer.headers["etag"] == '"x"'
    assert "set-cookie" not in answer.headers
    ((request, headers),) = looked
    assert request == "GET /data/x/y?a=1%202"
    assert not {"cookie", "authorization"} & set(headers)


@pytest.mark.parametrize("strange", ["/x", "/evil.example/x", "//", "%00", "a%00b", "a?b=%00", "%ff", "..%2f..", "a#b"])
def test_strange_addresses_are_answered_and_lead_nowhere(house: House, looked: Any, strange: str) -> None:
    answer = house.client.get(link(house, "viewer", "job-1") + strange)
    assert answer.status_code in (200, 404)
    if answer.status_code == 404:
        assert answer.json()["code"] == "not_found"
        assert not looked


def test_an_address_ends_with_the_rights_of_who_requested_and_after_a_day(house: House, looked: Any) -> None:
    path, other = link(house, "viewer", "job-1"), link(house, "member", "job-1")
    assert house.client.get(path).status_code == 200
    with unit_of_work(house.sessions) as session:
        session.execute(delete(Membership).where(Membership.user_id == house.users["viewer"]))
    later(house, seconds=4)
    gone = house.client.get(path)
    assert gone.status_code == 404
    assert "no longer valid" in gone.json()["detail"]
    assert house.client.get(other).status_code == 200
    later(house, hours=24)
    assert house.client.get(other).status_code == 404


def test_an_address_ends_with_one_of_its_jobs(house: House, looked: Any) -> None:
    with unit_of_work(house.sessions) as session:
        house.add_job(session, "job-2")
    path = link(house, "member", "job-1", "job-2")
    # Of the same name: a part of the id tells them apart.
    assert house.client.get(path).json() == ["digits-job-1", "digits-job-2"]
    with unit_of_work(house.sessions) as session:
        session.get_one(Job, "job-2").deleted_at = house.now
    later(house, seconds=4)
    assert house.client.get(path).status_code == 404


def test_what_cannot_be_requested(house: House, looked: Any) -> None:
    for body, status in (({"jobs": []}, 422), ({"jobs": ["job-x"]}, 404), ({"jobs": ["j"] * 51}, 422), ({}, 422)):
        assert house.call("member", "POST", "/tensorboards", json=body).status_code == status
    assert house.call("stranger", "POST", "/tensorboards", json={"jobs": ["job-1"]}).status_code == 404


def test_where_it_is_not_installed_a_sentence_says_so(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    answer = house.call("member", "POST", "/tensorboards", json={"jobs": ["job-1"]})
    assert answer.status_code == 409
    assert "pip install" in answer.json()["detail"]


def test_no_more_run_than_may_and_those_that_are_being_looked_at_stay(tmp_path: Path) -> None:
    async def start(_outputs: object, _memory_bytes: int, now_s: float) -> Viewer:
        process = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE)  # it ends with its input
        return Viewer(process, httpx.AsyncClient(), tmp_path / "folder", now_s)

    now = 0.0

    async def story() -> None:
        nonlocal now
        viewers = Viewers(Settings(tensorboard_limit=2, tensorboard_idle_s=10), clock_s=lambda: now, start=start)
        async with viewers.use("a", ()), viewers.use("b", ()):
            with pytest.raises(Unavailable, match="All 2 TensorBoards"):
                async with viewers.use("c", ()):
                    pass
            now = 100.0
            await viewers.end_idle()
            assert set(viewers.running) == {"a", "b"}
        async with viewers.use("b", ()):
            now = 101.0
        async with viewers.use("c", ()):
            assert set(viewers.running) == {"b", "c"}
        now = 200.0
        await viewers.end_idle()
        assert viewers.running == {}

    asyncio.run(story())
