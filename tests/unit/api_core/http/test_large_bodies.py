"""What is refused before its body was read: the client gets the error, also if it reads only after it has sent all."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn
from fastapi import FastAPI
from starlette.testclient import TestClient

from api.http.connections import AbortableConnection

LARGE = b"a" * (24 * 2**20)  # more than the buffers of a connection


@pytest.fixture
def port(app: FastAPI, client: TestClient) -> Iterator[int]:
    """Of a real server with the application."""
    assert client
    server = uvicorn.Server(uvicorn.Config(app, port=0, http=AbortableConnection, log_level="critical", lifespan="on"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join(timeout=30)


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize(
    ("method", "path", "has_token", "status", "text"),
    [
        ("POST", "/api/v1/jobs", True, 413, "larger than 4 MiB"),
        ("POST", "/mlflow/api/2.0/mlflow/runs/log-batch", True, 413, "larger than 4 MiB"),
        ("PUT", "/api/v1/archives/sha256:x", False, 401, "needs a token"),
    ],
)
def test_a_refused_body_gets_a_readable_answer(
    port: int,
    admin_token: str,
    connection: str,
    method: str,
    path: str,
    status: int,
    text: str,
    *,
    is_chunked: bool,
    has_token: bool,
) -> None:
    headers = {"Connection": connection, "Content-Type": "application/json"}
    if has_token:
        headers["Authorization"] = f"Bearer {admin_token}"
    if not is_chunked:
        headers["Content-Length"] = str(len(LARGE))
    asked = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    pieces = (LARGE[at : at + 2**20] for at in range(0, len(LARGE), 2**20))
    if is_chunked:
        asked.request(method, path, pieces, {**headers, "Transfer-Encoding": "chunked"}, encode_chunked=True)
    else:
        asked.request(method, path, LARGE, headers)
    answer = asked.getresponse()
    assert (answer.status, text in answer.read().decode()) == (status, True)
    asked.close()
