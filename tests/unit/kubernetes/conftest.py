from __future__ import annotations

import contextlib
import json
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from executors.kubernetes.api_server.client import KubernetesClient

Json = dict[str, Any]


@dataclass
class Answer:
    """One answer. ``events``: a watch, line by line; it stays open until the server ends unless ``is_ended``."""

    status: int = 200
    body: Json = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    events: list[Json] | None = None
    is_ended: bool = False
    is_dropped: bool = False  # the connection ends without an answer


@dataclass
class RecordedRequests:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Json | None


class Server:
    """Says what a test tells it to, in the order of :meth:`say`; then what :attr:`otherwise` makes."""

    def __init__(self) -> None:
        self.received: list[RecordedRequests] = []
        self.answers: deque[Answer] = deque()
        self.otherwise: Callable[[RecordedRequests], Answer] = lambda _: Answer(500, {"message": "nothing was told"})
        self.is_closing = threading.Event()
        self._lock = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def say(self, *answers: Answer) -> None:
        self.answers.extend(answers)

    def close(self) -> None:
        self.is_closing.set()
        self._http.shutdown()
        self._http.server_close()

    def answer(self, received: RecordedRequests) -> Answer:
        with self._lock:
            self.received.append(received)
            return self.answers.popleft() if self.answers else self.otherwise(received)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                with contextlib.suppress(OSError):
                    super().handle_one_request()

            def log_message(self, *_: Any) -> None:
                pass

            def _serve(self) -> None:
                parts = urlsplit(self.path)
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
                received = RecordedRequests(
                    self.command, parts.path, query, dict(self.headers), json.loads(body) if body else None
                )
                answer = server.answer(received)
                if answer.is_dropped:
                    self.close_connection = True
                    return
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                if answer.events is not None:
                    self._stream(answer)
                    return
                text = json.dumps(answer.body).encode()
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def _stream(self, answer: Answer) -> None:
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for event in answer.events or ():
                    line = json.dumps(event).encode() + b"\n"
                    # In two pieces: a chunk need not be a line.
                    for piece in (line[:7], line[7:]):
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                    self.wfile.flush()
                if not answer.is_ended:
                    server.is_closing.wait(20)
                    self.close_connection = True
                    return
                self.wfile.write(b"0\r\n\r\n")

            do_GET = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815 (the base class's names)

        return Handler


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture
def access(server: Server, tmp_path: Any) -> Any:
    """A kubeconfig for it, with a token that may be changed."""
    from executors.kubernetes.api_server.access import Access

    file = tmp_path / "kubeconfig"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "it",
        "clusters": [{"name": "it", "cluster": {"server": server.url}}],
        "users": [{"name": "me", "user": {"token": "first"}}, {"name": "you", "user": {"token": "other"}}],
        "contexts": [
            {"name": "it", "context": {"cluster": "it", "user": "me"}},
            {"name": "second", "context": {"cluster": "it", "user": "you"}},
        ],
    }
    file.write_text(json.dumps(document))
    return Access(kubeconfig=str(file))


@pytest.fixture
def cluster(access: Any) -> Iterator[KubernetesClient]:
    made = KubernetesClient(access, qps=10_000, timeout_s=5)
    yield made
    made.close()
