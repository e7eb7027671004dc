from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from trainmaster import AsyncClient, Client
from trainmaster.client import RetryPolicy, StateNotice
from trainmaster.errors import ServerUnreachable, TokenExpired, WaitTimedOut

STREAM = "/jobs/job_1/logs/stream"
EVENTS = "/jobs/job_1/events"


class Breaking(httpx.SyncByteStream):
    """Gives its chunks, then breaks as a killed server does."""

    def __init__(self, *chunks: bytes, error: Exception | None = None) -> None:
        self._chunks = chunks
        self._error = error or httpx.RemoteProtocolError("peer closed connection")

    def __iter__(self) -> Iterator[bytes]:
        yield from self._chunks
        raise self._error


def broken(*chunks: bytes, error: Exception | None = None) -> Any:
    return lambda _request: httpx.Response(200, stream=Breaking(*chunks, error=error))


class Streams(httpx.MockTransport):
    """A fake server whose answers may stream; the plain one would read them whole."""

    def __init__(self, server: Any) -> None:
        super().__init__(self._give)
        self._server = server

    def _give(self, request: httpx.Request) -> httpx.Response:
        answers = self._server.routes.get((request.method, request.url.path.removeprefix("/api/v1")))
        if answers and callable(answers[0]):
            self._server.requests.append(request)
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            made: httpx.Response = answer(request)
            return made
        response: httpx.Response = self._server(request)
        return response


@pytest.fixture
def client(server: Any, pauses: list[float], job_json: Any) -> Client:
    server.on("GET", "/jobs/mnist", job_json())
    retry = RetryPolicy(tries=3, first_delay_s=1.0, max_delay_s=8.0, stream_patience_s=30.0, chance=lambda: 1.0)
    return Client("http://server.test", "tm_secret", retry=retry, transport=Streams(server))


def ok(content: bytes) -> httpx.Response:
    return httpx.Response(200, content=content, headers={"Content-Type": "text/event-stream"})


def test_a_broken_stream_goes_on_at_the_next_line(client: Client, server: Any, sse: Any, line_json: Any) -> None:
    head = sse(("line", line_json("one", offset=4)), ("line", line_json("two", offset=8)))
    rest = ok(sse(("line", line_json("three", offset=14)), ("end", {})))
    server.on("GET", STREAM, broken(head, b"id: 3\nevent: li"), rest)
    assert [line.text for line in client.stream_logs("mnist", follow=True)] == ["one", "two", "three"]
    assert "Last-Event-ID" not in server.requests[1].headers
    assert server.requests[2].headers["Last-Event-ID"] == "2"


def test_lines_that_come_again_after_a_break_are_reported_once(
    client: Client, server: Any, sse: Any, line_json: Any
) -> None:
    one, two = ("line", line_json("one", offset=4)), ("line", line_json("two", offset=8))
    other = ("line", line_json("two", offset=8, index=1))
    server.on("GET", STREAM, broken(sse(one, two, ids=False)), ok(sse(one, two, other, ("end", {}), ids=False)))
    lines = [(line.index, line.text) for line in client.stream_logs("mnist", follow=True)]
    assert lines == [(0, "one"), (0, "two"), (1, "two")]


def test_an_id_without_an_event_moves_the_place_to_go_on_from(client: Client, server: Any, sse: Any) -> None:
    server.on("GET", STREAM, broken(b": hi\n\nid: far\n\n"), ok(sse(("end", {}))))
    assert list(client.stream_logs("mnist", follow=True, search="needle")) == []
    assert server.requests[2].headers["Last-Event-ID"] == "far"


def test_a_server_that_goes_down_politely_is_awaited(client: Client, server: Any, sse: Any, line_json: Any) -> None:
    server.on(
        "GET",
        STREAM,
        ok(sse(("line", line_json("one", offset=4)))),
        httpx.ConnectError("refused"),
        ok(sse(("end", {}))),
    )
    assert len(list(client.stream_logs("mnist", follow=True))) == 1
    assert server.count("GET", STREAM) == 3


def test_a_silent_stream_is_opened_again_and_is_no_failure(
    client: Client, server: Any, pauses: list[float], sse: Any
) -> None:
    silent = broken(b": hi\n\n", error=httpx.ReadTimeout("silent"))
    server.on("GET", STREAM, *[silent] * 20, ok(sse(("end", {}))))
    assert list(client.stream_logs("mnist", follow=True)) == []
    assert pauses == []


def test_patience_with_a_stream_that_never_works_ends(
    client: Client, server: Any, pauses: list[float], sse: Any
) -> None:
    server.on("GET", STREAM, ok(sse(("state", {"state": "running"}))), httpx.ConnectError("refused"))
    with pytest.raises(ServerUnreachable):
        list(client.stream_logs("mnist", follow=True))
    assert 20 < sum(pauses) <= 30


def test_a_stream_that_cannot_be_opened_at_all_is_reported_soon(
    client: Client, server: Any, pauses: list[float]
) -> None:
    server.on("GET", STREAM, httpx.ConnectError("refused"))
    with pytest.raises(ServerUnreachable):
        list(client.stream_logs("job_1"))
    assert len(pauses) == 2


def test_an_error_within_the_stream_is_raised(client: Client, server: Any, sse: Any) -> None:
    server.on("GET", STREAM, ok(sse(("error", {"code": "token_expired", "status": 401, "detail": "It expired."}))))
    with pytest.raises(TokenExpired, match="It expired"):
        list(client.stream_logs("mnist", follow=True))


def test_a_passing_error_within_the_stream_is_survived(client: Client, server: Any, sse: Any) -> None:
    away = ("error", {"code": "unavailable", "status": 503, "detail": "The database is away."})
    server.on("GET", STREAM, ok(sse(away)), ok(sse(("end", {}))))
    assert list(client.stream_logs("mnist", follow=True)) == []


def test_watching_tells_states_between_the_lines(client: Client, server: Any, sse: Any, line_json: Any) -> None:
    server.on(
        "GET",
        STREAM,
        ok(sse(("state", {"state": "running"}), ("line", line_json("one", offset=4)), ("end", {"state": "succeeded"}))),
    )
    first, second = client.watch_job("mnist")
    assert first == StateNotice("running")
    assert getattr(second, "text", None) == "one"


def test_leaving_a_stream_early_closes_it(client: Client, server: Any, sse: Any, line_json: Any) -> None:
    server.on("GET", STREAM, ok(sse(*[("line", line_json(f"l{n}", offset=n)) for n in range(1, 100)])))
    lines = client.stream_logs("mnist", follow=True)
    assert next(lines).text == "l1"
    lines.close()  # type: ignore[attr-defined]
    assert server.count("GET", STREAM) == 1


def event_json(number: int, kind: str) -> tuple[str, dict[str, Any]]:
    return "event", {"id": number, "at": "2026-11-21T07:00:00Z", "kind": kind, "actor": "scheduler"}


def test_waiting_looks_at_the_job_when_an_event_says_that_it_moved(
    client: Client, server: Any, sse: Any, job_json: Any
) -> None:
    server.on("GET", "/jobs/mnist", job_json())
    server.on("GET", "/jobs/job_1", job_json(), job_json(state="succeeded"))
    server.on(
        "GET",
        EVENTS,
        ok(sse(event_json(1, "replica.started"), event_json(2, "job.running"), event_json(3, "job.succeeded"))),
    )
    assert client.wait_for_job("mnist").state == "succeeded"
    assert server.count("GET", "/jobs/job_1") <= 3


def test_waiting_bears_a_server_that_is_away_for_longer_than_a_request_does(
    client: Client, server: Any, sse: Any, job_json: Any, pauses: list[float]
) -> None:
    away = httpx.Response(503, headers={"Retry-After": "2"})
    server.on("GET", "/jobs/job_1", *[away] * 5, job_json(state="succeeded"))
    server.on("GET", EVENTS, ok(sse(event_json(1, "job.running"))))
    assert client.wait_for_job("mnist").state == "succeeded"
    assert sum(pauses) >= 8


def test_waiting_for_an_ended_job_asks_once(client: Client, server: Any, job_json: Any) -> None:
    server.on("GET", "/jobs/mnist", job_json(state="failed"))
    assert client.wait_for_job("mnist").state == "failed"
    assert len(server.requests) == 1


def test_waiting_ends_in_time_and_says_that_the_job_goes_on(
    client: Client, server: Any, job_json: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter([0.0, 1.0, 6.0, 11.0, 16.0])
    monkeypatch.setattr("trainmaster.client.flows.streams.time", SimpleNamespace(monotonic=lambda: next(seconds)))
    server.on("GET", "/jobs/mnist", job_json())
    server.on("GET", "/jobs/job_1", job_json())
    server.on("GET", EVENTS, broken(b": hi\n\n", error=httpx.ReadTimeout("silent")))
    with pytest.raises(WaitTimedOut, match="running after 10 s; it continues"):
        client.wait_for_job("mnist", timeout_s=10)
    assert server.requests[1].extensions["timeout"]["read"] == 9.0


def test_following_events_tells_each_once_and_ends_with_the_job(
    client: Client, server: Any, sse: Any, job_json: Any
) -> None:
    server.on("GET", "/jobs/mnist", job_json())
    server.on("GET", "/jobs/job_1", job_json())
    first, second, third = (event_json(n, "replica.started") for n in (1, 2, 3))
    server.on("GET", EVENTS, broken(sse(first, second)), ok(sse(first, second, third, ("end", {"state": "succeeded"}))))
    server.routes["GET", EVENTS].append({"items": [], "next_cursor": None})
    assert [event.id for event in client.follow_events("mnist")] == [1, 2, 3]


@pytest.mark.anyio
async def test_the_asynchronous_stream_goes_on_alike(server: Any, sse: Any, line_json: Any, job_json: Any) -> None:
    server.on("GET", "/jobs/mnist", job_json())
    server.on(
        "GET",
        STREAM,
        ok(sse(("line", line_json("one", offset=4)))),
        ok(sse(("line", line_json("one", offset=4)), ("line", line_json("two", offset=8)), ("end", {}))),
    )
    retry = RetryPolicy(first_delay_s=0.001)
    async with AsyncClient("http://x", "t", retry=retry, transport=httpx.MockTransport(server)) as client:
        assert [line.text async for line in client.stream_logs("mnist", follow=True)] == ["one", "two"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
