from __future__ import annotations

from typing import Any

import httpx
import pytest
from trainmaster import AsyncClient, Client
from trainmaster.client import RetryPolicy
from trainmaster.client.transport import COMMENT, EventParser
from trainmaster.errors import (
    ClientTooOld,
    FieldMistake,
    IdempotencyMismatch,
    InvalidSpec,
    NotFound,
    ServerFailure,
    ServerUnreachable,
    TokenExpired,
    TrainmasterError,
    Unavailable,
    error_from_problem,
)

ME = {"user": "ann", "is_admin": False, "scopes": ["read"]}


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_passing_failure_is_tried_again_with_growing_pauses(
    status: int, client: Client, server: Any, pauses: list[float]
) -> None:
    server.on("GET", "/me", httpx.Response(status), httpx.Response(status), ME)
    assert client.get_me().user == "ann"
    assert pauses == [1.0, 2.0]


def test_broken_connections_are_tried_again(client: Client, server: Any, pauses: list[float]) -> None:
    server.on("GET", "/me", httpx.ConnectError("refused"), httpx.ReadError("reset"), ME)
    assert client.get_me().user == "ann"
    assert len(pauses) == 2


def test_the_servers_wish_for_a_pause_is_retained(client: Client, server: Any, pauses: list[float]) -> None:
    server.on("GET", "/me", httpx.Response(429, headers={"Retry-After": "7"}), ME)
    client.get_me()
    assert pauses == [7.0]


def test_a_wish_beyond_patience_is_an_error_at_once(
    client: Client, server: Any, pauses: list[float], problem: Any
) -> None:
    answer = problem(503, "unavailable", "The database is away.")
    answer.headers["Retry-After"] = "3600"
    server.on("GET", "/me", answer)
    with pytest.raises(Unavailable) as caught:
        client.get_me()
    assert caught.value.retry_after_s == 3600
    assert pauses == []


def test_pauses_are_drawn_between_half_and_whole() -> None:
    low, high = RetryPolicy(chance=lambda: 0.0), RetryPolicy(chance=lambda: 1.0)
    assert (low.delay_s(1), high.delay_s(1)) == (0.1, 0.2)
    assert high.delay_s(50) == high.max_delay_s


def test_calls_are_tried_again_for_as_long_as_the_documentation_says() -> None:
    def whole_s(chance: float, **changes: int) -> float:
        policy = RetryPolicy(chance=lambda: chance, **changes)
        return sum(policy.delay_s(failure) for failure in range(1, policy.tries))

    assert [round(whole_s(chance), 1) for chance in (0.0, 1.0)] == [1.5, 3.0]
    assert [int(whole_s(chance, tries=20)) for chance in (0.0, 1.0)] == [38, 76]


def test_trying_ends_and_the_last_error_is_reported(client: Client, server: Any, problem: Any) -> None:
    server.on("GET", "/me", problem(503, "unavailable", "The database is away; try again."))
    with pytest.raises(Unavailable, match="The database is away"):
        client.get_me()
    assert server.count("GET", "/me") == 4


def test_no_server_is_reported_with_what_to_do(client: Client, server: Any) -> None:
    server.on("GET", "/me", httpx.ConnectError("refused"))
    with pytest.raises(ServerUnreachable) as caught:
        client.get_me()
    assert str(caught.value) == (
        "No Trainmaster server answers at http://server.test:8765: start one with `trainmaster up`, or log in "
        "to another "
        "with `trainmaster login URL`."
    )


def test_a_mistake_is_not_tried_again(client: Client, server: Any, problem: Any) -> None:
    server.on("GET", "/jobs/x", problem(404, "not_found", "There is no job x."))
    with pytest.raises(NotFound, match=r"There is no job x\."):
        client.get_job("x")
    assert server.count("GET", "/jobs/x") == 1


def test_a_submission_keeps_its_key_over_all_tries(client: Client, server: Any, job_json: Any) -> None:
    server.on("POST", "/jobs", httpx.ReadTimeout("slow"), httpx.Response(502), job_json())
    client.submit({"name": "mnist"})
    keys = [request.headers["Idempotency-Key"] for request in server.requests]
    assert len(keys) == 3
    assert len(set(keys)) == 1


def test_two_submissions_have_two_keys(client: Client, server: Any, job_json: Any) -> None:
    server.on("POST", "/jobs", job_json())
    client.submit({"name": "mnist"})
    client.submit({"name": "mnist"})
    first, second = (request.headers["Idempotency-Key"] for request in server.requests)
    assert first != second


def test_a_post_without_a_key_is_not_repeated_when_it_may_have_arrived(client: Client, server: Any) -> None:
    server.on("POST", "/tokens", httpx.ReadError("reset"))
    with pytest.raises(ServerUnreachable):
        client.create_token("ci")
    assert server.count("POST", "/tokens") == 1


def test_a_post_without_a_key_is_repeated_when_it_surely_did_not_arrive(client: Client, server: Any) -> None:
    token = {"id": "t", "user": "ann", "name": "ci", "scopes": ["read"], "created_at": "2026-11-21T07:00:00Z"}
    server.on("POST", "/tokens", httpx.ConnectError("refused"), httpx.Response(429), {**token, "token": "tm_x"})
    assert client.create_token("ci").token == "tm_x"


def test_every_request_says_who_asks_and_with_which_version(client: Client, server: Any) -> None:
    server.on("GET", "/me", ME)
    client.get_me()
    headers = server.requests[0].headers
    assert headers["Authorization"] == "Bearer tm_secret"
    assert headers["Trainmaster-Client"] == "0.1.0"


def test_names_with_slashes_stay_one_segment(client: Client, server: Any) -> None:
    with pytest.raises(NotFound):
        client.get_job("../users")
    assert server.requests[0].url.raw_path == b"/api/v1/jobs/..%2Fusers"


def test_an_error_tells_the_sentence_and_every_field(client: Client, server: Any, problem: Any) -> None:
    errors = [
        {"path": "roles.wroker", "message": "is not known", "hint": "did you mean worker?"},
        {"path": "name", "message": "is missing", "hint": None},
    ]
    server.on("POST", "/jobs", problem(422, "invalid_spec", "The spec has 2 mistakes.", errors=errors, request_id="r1"))
    with pytest.raises(InvalidSpec) as caught:
        client.submit({})
    assert str(caught.value) == (
        "The spec has 2 mistakes.\n  roles.wroker: is not known (did you mean worker?)\n  name: is missing"
    )
    assert caught.value.mistakes[1] == FieldMistake("name", "is missing")
    assert caught.value.request_id == "r1"
    assert caught.value.to_problem()["errors"][0]["path"] == "roles.wroker"


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (401, {"code": "token_expired", "detail": "It expired."}, TokenExpired),
        (409, {"code": "idempotency_mismatch", "detail": "Another payload."}, IdempotencyMismatch),
        (426, {"code": "client_too_old", "detail": "Update it."}, ClientTooOld),
        (404, {"code": "a_code_of_tomorrow", "detail": "Gone."}, NotFound),
        (500, {"code": "internal", "detail": "A bug."}, ServerFailure),
        (502, "<html>Bad Gateway</html>", Unavailable),
        (418, None, ServerFailure),
        (400, ["not", "a", "problem"], TrainmasterError),
    ],
)
def test_codes_and_statuses_become_exceptions(status: int, body: Any, kind: type[TrainmasterError]) -> None:
    error = error_from_problem(status, body, where="GET /x")
    assert isinstance(error, kind)
    assert error.sentence


def test_an_answer_that_is_not_trainmasters_is_reported_as_such(client: Client, server: Any) -> None:
    server.on("GET", "/me", httpx.Response(200, text="<html>Welcome to the hotel's network</html>"))
    with pytest.raises(ServerFailure, match="has a format unknown to this client"):
        client.get_me()


def test_an_address_that_is_none_is_reported() -> None:
    with (
        Client("htp://nowhere", retry=RetryPolicy(tries=1)) as client,
        pytest.raises(ServerUnreachable, match="http://"),
    ):
        client.get_me()


@pytest.mark.parametrize(
    ("url", "is_used"),
    [("http://127.0.0.1:8765", False), ("http://localhost:1", False), ("http://[::1]:1", False), ("http://lab", True)],
)
def test_a_proxy_is_not_requested_this_machine(url: str, is_used: bool) -> None:
    with Client(url) as client:
        assert client.runner._connection.uses_proxies is is_used


def test_a_token_is_never_in_what_is_printed(client: Client) -> None:
    assert "tm_secret" not in repr(client.runner._connection)


@pytest.mark.anyio
async def test_the_asynchronous_client_retries_alike(server: Any, anyio_backend: str) -> None:
    retry = RetryPolicy(tries=3, first_delay_s=0.001)
    server.on("GET", "/me", httpx.ConnectError("refused"), httpx.Response(503), ME)
    async with AsyncClient("http://x", "t", retry=retry, transport=httpx.MockTransport(server)) as client:
        assert (await client.get_me()).user == "ann"
    assert server.count("GET", "/me") == 3


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("cut", [1, 2, 3, 7, 1000])
def test_a_stream_may_be_cut_anywhere(cut: int) -> None:
    raw = b": hi\n\nid: 7\nevent: line\ndata: a\ndata: \xc3\xa9\n\nid: 8\n\ndata:x\r\n\r\nretry: 5\n\n"
    parser = EventParser()
    events = [event for at in range(0, len(raw), cut) for event in parser.feed(raw[at : at + cut])]
    assert [(event.kind, event.data, event.id) for event in events] == [
        (COMMENT, "", None),
        ("line", "a\né", "7"),
        (COMMENT, "", "8"),
        ("message", "x", "8"),
    ]
