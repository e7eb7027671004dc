"""The bridge for gRPC, between a client that speaks bytes and a platform of a few lines: what the SDK hardly ever
does.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

grpc = pytest.importorskip("grpc")

pytestmark = [pytest.mark.xdist_group("frameworks"), pytest.mark.timeout(300)]

PACKAGE = "google.cloud.aiplatform.v1"
NAME = b"projects/p/locations/us-central1/customJobs/"


class FakePlatform(BaseHTTPRequestHandler):
    """Answers as its API would, by the last word of the address."""

    def do_GET(self) -> None:
        word = self.path.partition("?")[0].rpartition("/")[2]
        if word == "health":
            return self.answer(200, {})
        if word == "long":
            return self.refuse(400, "FAILED_PRECONDITION", "ü" * 20_000)
        if word == "proxy":
            self.send_response(502)
            self.end_headers()
            self.wfile.write(b"<html>Bad Gateway")
            return None
        if word == "refused":
            return self.refuse(403, "PERMISSION_DENIED", "Nothing for you here.")
        reported = {"authorization": self.headers.get("Authorization"), "cookie": self.headers.get("Cookie")}
        return self.answer(200, {"name": word, "displayName": json.dumps(reported)})

    def refuse(self, code: int, status: str, message: str) -> None:
        self.answer(code, {"error": {"code": code, "message": message, "status": status}})

    def answer(self, code: int, body: Any) -> None:
        raw = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: object) -> None:
        """Its words would be noise."""


@pytest.fixture(scope="module")
def fake() -> Iterator[Any]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakePlatform)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def channel(fake: Any, bridge_to: Any) -> Iterator[Any]:
    bridge = bridge_to(f"http://127.0.0.1:{fake.server_port}")
    trust = grpc.ssl_channel_credentials(Path(bridge.ca).read_bytes())
    with grpc.secure_channel(bridge.address, trust) as opened:
        yield opened


def field(number: int, content: bytes) -> bytes:
    """A field of bytes as protobuf writes it."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def call(channel: Any, method: str, request: bytes, **options: Any) -> bytes:
    answer: bytes = channel.unary_unary(method)(request, timeout=60, wait_for_ready=True, **options)
    return answer


def refused(channel: Any, method: str, request: bytes) -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call(channel, method, request)
    return caught.value.code().name, caught.value.details()


def get(word: str) -> bytes:
    return field(1, NAME + word.encode())


GET = f"/{PACKAGE}.JobService/GetCustomJob"


def test_the_callers_token_is_handed_on_and_nothing_else(channel: Any) -> None:
    metadata = (("authorization", "Bearer tm_mine"), ("cookie", "a=b"))
    answer = call(channel, GET, get("one"), metadata=metadata)
    reported = json.dumps({"authorization": "Bearer tm_mine", "cookie": None}).encode()
    assert answer == field(1, b"one") + field(2, reported)


def test_calls_of_different_callers_do_not_mix(channel: Any) -> None:
    call(channel, GET, get("one"), metadata=(("authorization", "Bearer tm_mine"),))
    assert b'"authorization": null' in call(channel, GET, get("one"))


def test_an_error_keeps_its_own_status_and_words(channel: Any) -> None:
    assert refused(channel, GET, get("refused")) == ("PERMISSION_DENIED", "Nothing for you here.")


def test_words_that_are_too_long_for_a_status_are_cut(channel: Any) -> None:
    status, words = refused(channel, GET, get("long"))
    assert status == "FAILED_PRECONDITION"
    assert 500 < len(words) < 1100
    assert words.endswith("ü…")


def test_what_a_proxy_says_becomes_a_status(channel: Any) -> None:
    assert refused(channel, GET, get("proxy"))[0] == "UNAVAILABLE"


@pytest.mark.parametrize(
    ("request_bytes", "sentence"),
    [
        (get("one") + field(999, b"x"), "Unknown field 999"),
        (b"\xff", "not of this method's type"),
        (field(1, b"one"), "JobService.GetCustomJob: the request has resource names"),
    ],
)
def test_a_request_that_is_none_is_informed_so(channel: Any, request_bytes: bytes, sentence: str) -> None:
    status, words = refused(channel, GET, request_bytes)
    assert status == "INVALID_ARGUMENT"
    assert sentence in words


def test_an_unknown_field_inside_is_named_with_its_place(channel: Any) -> None:
    # It lies in the first worker pool of a CreateCustomJobRequest.
    pool = field(1, field(999, b"x"))
    request = field(1, b"projects/p/locations/us-central1") + field(2, field(4, pool))
    status, words = refused(channel, f"/{PACKAGE}.JobService/CreateCustomJob", request)
    assert status == "INVALID_ARGUMENT"
    assert "custom_job.job_spec.worker_pool_specs[0].999" in words


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (f"{PACKAGE}.DatasetService/ListDatasets", "DatasetService.ListDatasets is not served"),
        ("google.cloud.aiplatform.v1beta1.JobService/GetCustomJob", "v1beta1.JobService.GetCustomJob is not served"),
        (f"{PACKAGE}.JobService/Nothing", "JobService.Nothing is not served"),
        (f"{PACKAGE}.PredictionService/StreamGenerateContent", "StreamGenerateContent is a streaming method"),
    ],
)
def test_what_is_not_served_is_refused_by_its_name(channel: Any, method: str, sentence: str) -> None:
    status, words = refused(channel, f"/{method}", b"")
    assert status == "UNIMPLEMENTED"
    assert sentence in words


def test_a_message_beyond_all_limits_is_refused(channel: Any) -> None:
    assert refused(channel, GET, field(1, b"x" * (65 * 2**20)))[0] == "RESOURCE_EXHAUSTED"


def test_its_health_is_the_platforms(channel: Any) -> None:
    assert call(channel, "/grpc.health.v1.Health/Check", b"") == b"\x08\x01"
    assert call(channel, "/grpc.health.v1.Health/Check", field(1, f"{PACKAGE}.JobService".encode())) == b"\x08\x01"


def test_without_a_platform_it_says_so(bridge_to: Any) -> None:
    bridge = bridge_to("http://127.0.0.1:9")
    trust = grpc.ssl_channel_credentials(Path(bridge.ca).read_bytes())
    with grpc.secure_channel(bridge.address, trust) as opened:
        status, words = refused(opened, GET, get("one"))
        assert status == "UNAVAILABLE"
        assert "cannot reach the platform at http://127.0.0.1:9" in words
        assert call(opened, "/grpc.health.v1.Health/Check", b"") == b"\x08\x02"
