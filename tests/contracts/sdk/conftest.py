"""The real application, reached by the real client without a network."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import select
from starlette.testclient import TestClient
from trainmaster import AsyncClient, Client
from trainmaster.client import RetryPolicy

from api.app.factory import create_app
from core.db.bootstrap import read_token
from core.db.engine import SessionFactory, unit_of_work
from core.db.tables import Job
from core.settings import Settings

QUICK = RetryPolicy(tries=3, first_delay_s=0.01, stream_patience_s=1.0)


class ByTestClient(httpx.BaseTransport):
    """Hands each request of the client to the application, in the event loop of starlette's test client."""

    def __init__(self, inner: TestClient) -> None:
        self._inner = inner

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = self._inner.request(
            request.method,
            str(request.url),
            content=request.read(),
            headers=[(k, v) for k, v in request.headers.items() if k != "host"],
        )
        return httpx.Response(answer.status_code, headers=_plain(answer.headers.multi_items()), content=answer.content)


def _plain(headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    # The test client has unpacked the body already.
    return [(k, v) for k, v in headers if k.lower() not in ("content-encoding", "content-length")]


@pytest.fixture(scope="session")
def openapi(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The API's description of itself."""
    home = tmp_path_factory.mktemp("home")
    document: dict[str, Any] = create_app(Settings(home=home, secret_key="for tests")).openapi()
    return document


@pytest.fixture
def token(app: FastAPI, settings: Settings) -> str:
    found = read_token(settings)
    assert found is not None
    return found


@pytest.fixture
def sdk(app: FastAPI, token: str) -> Iterator[Client]:
    """Speaks as the platform's admin."""
    with (
        TestClient(app) as inner,
        Client("http://platform", token, retry=QUICK, transport=ByTestClient(inner)) as client,
    ):
        yield client


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def async_sdk(app: FastAPI, token: str) -> AsyncIterator[AsyncClient]:
    transport = httpx.ASGITransport(app)
    async with AsyncClient("http://platform", token, retry=QUICK, transport=transport) as client:
        yield client


@pytest.fixture
def job_output(settings: Settings, sessions: SessionFactory) -> Any:
    """``job_output(id)``: the folder that the job writes to."""

    def folder(job_id: str) -> Path:
        with unit_of_work(sessions) as session:
            row = session.execute(select(Job).where(Job.id == job_id)).scalar_one()
            path = settings.home / "output" / row.output_path
        path.mkdir(parents=True, exist_ok=True)
        return path

    return folder


@pytest.fixture
def end_job(sessions: SessionFactory) -> Any:
    """``end_job(id, state)``: as the control loop would, at once."""

    def end(job_id: str, state: str) -> None:
        with unit_of_work(sessions) as session:
            session.execute(select(Job).where(Job.id == job_id)).scalar_one().state = state

    return end
