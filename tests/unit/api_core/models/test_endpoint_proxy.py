"""Requests through the proxy behind a real server: what streams, what breaks, who goes away, who is turned away."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from starlette.testclient import TestClient

from api.endpoints.balance import Admission
from api.http.connections import AbortableConnection
from core.db.engine import SessionFactory
from core.domain.errors import Unavailable
from core.settings import Settings
from tests.unit.api_core.models.test_endpoints_api import URL, endpoint, run_replica  # noqa: F401 (a fixture)

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"


class Replica:
    """Listens, reads each request's body whole and leaves the rest to ``answer``, which gets the connection."""

    def __init__(self, answer: Callable[[socket.socket], None]) -> None:
        self.bodies: list[bytes] = []
        self.requested = threading.Semaphore(0)
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            length = None
            while (line := stream.readline()) not in (b"\r\n", b""):
                name, _, value = line.decode().partition(":")
                length = int(value) if name.lower() == "content-length" else length
            if length is not None:
                self.bodies.append(stream.read(length))
            else:
                body = b""
                while count := int(stream.readline(), 16):
                    body += stream.read(count)
                    stream.readline()
                self.bodies.append(body)
            self.requested.release()
            self._answer(connection)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def limits() -> dict[str, float]:
    """Settings of the application which differ from the defaults."""
    return {}


@pytest.fixture
def settings(settings: Settings, limits: dict[str, float]) -> Settings:
    return settings.model_copy(update=limits)


@pytest.fixture
def replica(sessions: SessionFactory, submit: Any, endpoint: dict[str, Any]) -> Iterator[Any]:  # noqa: F811
    """``replica(answer)``: a ready one of the endpoint."""
    made: list[Replica] = []

    def make(answer: Callable[[socket.socket], None], revision: int = 1) -> Replica:
        made.append(Replica(answer))
        run_replica(sessions, submit, endpoint["deployments"][0]["id"], made[-1].address, revision=revision)
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def live(app: FastAPI, client: TestClient, admin_token: str) -> Iterator[httpx.Client]:
    """The application behind a real server, asked as its admin."""
    assert client
    server = uvicorn.Server(uvicorn.Config(app, port=0, http=AbortableConnection, log_level="critical", lifespan="on"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    headers = {"Authorization": f"Bearer {admin_token}"}
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60, trust_env=False) as requested:
        requested.server = server  # type: ignore[attr-defined]
        yield requested
    server.should_exit = True
    thread.join(timeout=30)


def connections_of(live: httpx.Client) -> list[AbortableConnection]:
    """Those that the server has open."""
    found: set[AbortableConnection] = live.server.server_state.connections  # type: ignore[attr-defined]
    return list(found)


def metric(client: TestClient, name: str, **labels: str) -> float:
    wanted = {f'{key}="{value}"' for key, value in labels.items()}
    for line in client.get("/metrics").text.splitlines():
        head, _, value = line.rpartition(" ")
        own, _, rest = head.partition("{")
        if own == name and wanted <= set(rest.rstrip("}").split(",")):
            return float(value)
    return 0.0


def until(is_so: Callable[[], bool]) -> None:
    """An answer is counted, and its room given back, a moment after its last byte has left."""
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_bodies_and_answers_stream_both_ways(live: httpx.Client, replica: Any) -> None:
    more, chunk = threading.Event(), b"10000\r\n" + b"y" * 0x10000 + b"\r\n"

    def answer(connection: socket.socket) -> None:
        connection.sendall(HEAD + b"5\r\nfirst\r\n")
        assert more.wait(60)
        connection.sendall(chunk * 16 + b"0\r\n\r\n")

    model = replica(answer)
    parts = (b"x" * 0x10000 for _ in range(64))  # 4 MiB without a length
    with live.stream("POST", f"{URL}/sums:rawPredict", content=parts) as answered:
        stream = answered.iter_raw()
        assert next(stream) == b"first"  # while the model goes on
        more.set()
        assert sum(map(len, stream)) == 2**20
    assert model.bodies == [b"x" * 2**22]


def test_a_replica_that_breaks_off_in_the_middle_is_no_whole_answer(
    live: httpx.Client, client: TestClient, replica: Any
) -> None:
    replica(lambda connection: connection.sendall(HEAD + b"5\r\nfirst\r\n"))
    with pytest.raises(httpx.RemoteProtocolError), live.stream("POST", f"{URL}/sums:predict", content=b"{}") as answer:
        answer.read()
    place = {"project": "default", "endpoint": "sums", "deployment": "default"}
    until(lambda: metric(client, "trainmaster_endpoint_broken_answers_total", **place) == 1)


def test_a_replica_that_dies_before_it_answers_is_reported_as_such_and_not_requested_again(
    live: httpx.Client, client: TestClient, replica: Any
) -> None:
    model = replica(lambda connection: connection.shutdown(socket.SHUT_RDWR))
    answer = live.post(f"{URL}/sums:predict", json={"instances": [1]})
    assert (answer.status_code, answer.json()["code"]) == (502, "model_unreachable")
    assert len(model.bodies) == 1
    place = {"project": "default", "endpoint": "sums"}
    refused = {**place, "answered_by": "platform", "status": "502"}
    until(lambda: metric(client, "trainmaster_endpoint_requests_total", **refused) == 1)


def test_who_goes_away_frees_the_replica(live: httpx.Client, client: TestClient, replica: Any) -> None:
    """Its connection is closed although the model has said nothing yet."""
    is_closed = threading.Event()

    def answer(connection: socket.socket) -> None:
        if connection.recv(1) == b"":
            is_closed.set()

    model = replica(answer)
    host, port = live.base_url.host, live.base_url.port
    with socket.create_connection((host, port or 0)) as asking:
        token = live.headers["authorization"]
        head = f"POST {URL}/sums:predict HTTP/1.1\r\nHost: a\r\nAuthorization: {token}\r\nContent-Length: 2\r\n\r\n{{}}"
        asking.sendall(head.encode())
        assert model.requested.acquire(timeout=60)
        assert metric(client, "trainmaster_endpoint_requests_in_flight", project="default", endpoint="sums") == 1
    assert is_closed.wait(60)
    place = {"project": "default", "endpoint": "sums"}
    until(lambda: not metric(client, "trainmaster_endpoint_requests_in_flight", **place))
    assert model.bodies == [b"{}"]  # nobody is asked again for who is gone


@pytest.mark.parametrize("limits", [{"predict_unread_s": 0.5}])
def test_who_does_not_read_its_answer_is_cut_off(
    live: httpx.Client,
    client: TestClient,
    app: FastAPI,
    replica: Any,
    endpoint: dict[str, Any],  # noqa: F811
) -> None:
    """The model could say more for ever; neither its replica nor the endpoint's room is held by who does not listen."""
    is_closed = threading.Event()

    def answer(connection: socket.socket) -> None:
        try:
            connection.sendall(HEAD)
            while True:
                connection.sendall(b"10000\r\n" + b"y" * 0x10000 + b"\r\n")
        except OSError:
            is_closed.set()

    replica(answer)
    host, port = live.base_url.host, live.base_url.port
    with socket.create_connection((host, port or 0)) as asking:
        token = live.headers["authorization"]
        head = f"POST {URL}/sums:predict HTTP/1.1\r\nHost: a\r\nAuthorization: {token}\r\nContent-Length: 2\r\n\r\n{{}}"
        asking.sendall(head.encode())
        assert asking.recv(64).startswith(b"HTTP/1.1 200")  # and nothing more
        assert is_closed.wait(120)
        place = {"project": "default", "endpoint": "sums"}
        until(lambda: not metric(client, "trainmaster_endpoint_requests_in_flight", **place))
        assert app.state.proxy._admission.open_of(endpoint["id"]) == 0
        assert metric(client, "trainmaster_endpoint_unread_answers_total", **place, deployment="default") == 1
        # Nor does it keep a socket open here for as long as it likes.
        until(lambda: asking.getsockname()[:2] not in {one.client for one in connections_of(live)})
        asking.settimeout(120)
        assert not rest_of(asking).endswith(b"0\r\n\r\n")  # nor may it take what it got for whole


def rest_of(connection: socket.socket) -> bytes:
    """The end of what still comes over a connection that is closed at the other side."""
    end = b""
    try:
        while more := connection.recv(2**20):
            end = (end + more)[-16:]
    except ConnectionResetError:
        pass
    return end


def test_a_body_that_does_not_come_is_not_the_models_fault(
    live: httpx.Client,
    client: TestClient,
    replica: Any,
    endpoint: dict[str, Any],  # noqa: F811
) -> None:
    assert client.post(f"{URL}/sums/deployments", json={"model": "output/default/m", "timeout_s": 1}).status_code == 200
    assert endpoint["name"] == "sums"
    replica(lambda connection: connection.close(), revision=2)
    host, port = live.base_url.host, live.base_url.port
    with socket.create_connection((host, port or 0)) as asking:
        asking.settimeout(120)
        token = live.headers["authorization"]
        head = f"POST {URL}/sums:predict HTTP/1.1\r\nHost: a\r\nAuthorization: {token}\r\nContent-Length: 9\r\n\r\n{{"
        asking.sendall(head.encode())
        answer = http.client.HTTPResponse(asking)
        answer.begin()
        assert (answer.status, json.loads(answer.read())["code"]) == (408, "request_too_slow")


@pytest.mark.parametrize("limits", [{"predict_open_limit": 4}])
def test_one_slow_endpoint_leaves_room_for_the_others(live: httpx.Client, client: TestClient, replica: Any) -> None:
    go_on = threading.Event()

    def answer(connection: socket.socket) -> None:
        assert go_on.wait(60)
        connection.sendall(HEAD + b"2\r\nok\r\n0\r\n\r\n")

    model = replica(answer)
    answers: list[int] = []
    asking = [
        threading.Thread(target=lambda: answers.append(live.post(f"{URL}/sums:predict", content=b"{}").status_code))
        for _ in range(2)
    ]
    for one in asking:
        one.start()
    for _ in asking:
        assert model.requested.acquire(timeout=60)
    refused = live.post(f"{URL}/sums:predict", content=b"{}")
    assert (refused.status_code, refused.json()["code"], refused.headers["retry-after"]) == (503, "unavailable", "1")
    assert "'sums' has 2 open requests" in refused.json()["detail"]
    assert client.post(URL, json={"name": "other"}).status_code == 201
    other = live.post(f"{URL}/other:predict", content=b"{}")
    assert "nothing is deployed to it" in other.json()["detail"]  # it was let in
    go_on.set()
    for one in asking:
        one.join()
    assert answers == [200, 200]
    place = {"project": "default", "endpoint": "sums", "deployment": "default"}
    answered = {**place, "answered_by": "model", "status": "200"}
    until(lambda: not metric(client, "trainmaster_endpoint_requests_in_flight", project="default", endpoint="sums"))
    assert live.post(f"{URL}/sums:predict", content=b"{}").status_code == 200
    until(lambda: metric(client, "trainmaster_endpoint_requests_total", **answered) == 3)
    until(lambda: metric(client, "trainmaster_endpoint_request_seconds_count", **place) == 3)


def test_the_room_is_shared_by_who_is_there() -> None:
    """However greedy the others are, the next one finds some."""
    admission = Admission(12)
    taken = {name: _take_all(admission, name) for name in ("a", "b", "c")}
    assert [len(held) for held in taken.values()] == [6, 3, 2]
    for held in taken.values():
        for one in held:
            one.__exit__(None, None, None)
    assert [admission.open_of(name) for name in taken] == [0, 0, 0]
    assert len(_take_all(admission, "a")) == 6


def _take_all(admission: Admission, name: str) -> list[Any]:
    held = []
    while True:
        one = admission.enter(name, name)
        try:
            one.__enter__()
        except Unavailable:
            return held
        held.append(one)


def test_whose_token_does_not_reach_the_project_asks_nobody(live: httpx.Client, replica: Any, as_user: Any) -> None:
    model = replica(lambda connection: connection.sendall(HEAD + b"0\r\n\r\n"))
    stranger, viewer = as_user("eve", role=None), as_user("vic", role="viewer", scopes=("read",))
    url = f"{URL}/sums:predict"
    assert live.post(url, content=b"{}", headers=dict(stranger.headers)).status_code == 404
    assert live.post(url, content=b"{}", headers={"Authorization": ""}).status_code == 401
    assert model.bodies == []
    assert live.post(url, content=b"{}", headers={"Authorization": viewer.headers["authorization"]}).status_code == 200


def test_the_proxy_ends_what_is_left_of_a_task_that_is_cancelled() -> None:
    """A request that is given up while the replica's answer comes leaves no connection behind."""
    from api.endpoints.upstream import StreamedBody, send

    closed: list[bool] = []

    class Answer(httpx.AsyncByteStream):
        async def __aiter__(self) -> Any:
            yield b"a"

        async def aclose(self) -> None:
            closed.append(True)

    async def run() -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def handle(request: httpx.Request) -> httpx.Response:
            begun.set()
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                pass  # it came in the very moment
            return httpx.Response(200, stream=Answer())

        class Asking:
            async def receive(self) -> Any:
                await asyncio.Event().wait()

        body = StreamedBody(Asking(), 10)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=httpx.MockTransport(handle)) as client:
            task = asyncio.create_task(send(client, client.build_request("POST", "http://a"), body, within_s=60))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(run())
    assert closed == [True]
