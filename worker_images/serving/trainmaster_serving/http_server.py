"""The HTTP server: a health route, and a predict route in Vertex AI's shape.

https://cloud.google.com/vertex-ai/docs/predictions/custom-container-requirements#prediction: ``{"instances": […],
"parameters": {…}}`` in, ``{"predictions": […]}`` out, with ``metadata`` that holds for all of them. It listens before
the model is loaded, so that health checks can report that. On SIGTERM it finishes open requests and ends; while the
model is loading, at once.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import sys
import threading
import time
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Dict, List, Optional, Tuple

from trainmaster_serving.errors import BadInstances, ModelProblem
from trainmaster_serving.models import PredictionModel, load_model, metadata_of

# More than the platform's proxy accepts; for direct requests.
_BODY_LIMIT = 1 << 30
_IDLE_S = 30.0  # time-out of a connection between two requests
# Requests that are still open this long after SIGTERM are dropped. Less than the platform's own grace period.
_DRAIN_S = 25.0


class PredictionServer(ThreadingHTTPServer):
    """Answers 503 until ``model`` is set."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: Tuple[str, int], health_route: str, predict_route: str) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, PredictionHandler)
        self.health_route = health_route
        self.predict_route = predict_route
        self.model: Optional[PredictionModel] = None
        self.is_shutting_down = False
        self._open = 0
        self._lock = threading.Condition()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnected."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)

    def begin(self) -> None:
        with self._lock:
            self._open += 1

    def end(self) -> None:
        with self._lock:
            self._open -= 1
            self._lock.notify_all()

    def drain(self, within_s: float) -> bool:
        """Wait until no request is open; returns ``False`` after ``within_s``."""
        with self._lock:
            return self._lock.wait_for(lambda: self._open == 0, within_s)


class PredictionHandler(BaseHTTPRequestHandler):
    """One connection, possibly with several requests."""

    protocol_version = "HTTP/1.1"
    timeout = _IDLE_S
    server: PredictionServer  # pyright: ignore[reportIncompatibleVariableOverride] (narrower than in the base class)

    def setup(self) -> None:
        super().setup()
        # Header and body are two writes: Nagle's algorithm would wait for the client's delayed acknowledgement.
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def do_GET(self) -> None:
        if self._path() != self.server.health_route:
            self._refuse(404, "use GET %s or POST %s" % (self.server.health_route, self.server.predict_route))
        elif self.server.is_shutting_down:
            self._refuse(503, "the server is shutting down")
        elif self.server.model is None:
            self._refuse(503, "the model is loading")
        else:
            self._answer(200, {"status": "ready"})

    def do_POST(self) -> None:
        self.server.begin()
        try:
            self._post()
        finally:
            self.server.end()

    def _post(self) -> None:
        body = self._body()
        if body is None:
            return
        if self._path() != self.server.predict_route:
            self._refuse(404, "POST is supported only for %s" % self.server.predict_route)
            return
        model = self.server.model
        if model is None:
            self._refuse(503, "the model is loading")
            return
        try:
            instances, parameters = _request_of(body)
            predictions = model.predict(instances, parameters) if instances else []
            metadata = metadata_of(model, parameters) if instances else {}
        except BadInstances as error:
            self._refuse(400, str(error))
        except MemoryError:
            self._refuse(507, "there is not enough memory for so many instances at once")
        except Exception:  # noqa: BLE001 (a model may raise anything)
            traceback.print_exc()
            self._refuse(500, "the model failed; the log of the serving replica has more")
        else:
            self._answer(200, {"predictions": predictions, **({"metadata": metadata} if metadata else {})})

    def _body(self) -> Optional[bytes]:
        """The request's body; ``None`` if it was refused."""
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            return self._chunks()
        length = _number(self.headers.get("Content-Length", ""), 10)
        if length is None or length > _BODY_LIMIT:
            self.close_connection = True
            self._refuse(411 if length is None else 413, "the body has no length, or is too large")
            return None
        body = self.rfile.read(length)
        if len(body) < length:
            self.close_connection = True
            return None
        return body

    def _chunks(self) -> Optional[bytes]:
        parts: List[bytes] = []
        size = 0
        while True:
            count = _number(self.rfile.readline(1024).split(b";")[0].strip().decode("latin-1"), 16)
            if count is None:
                self.close_connection = True
                self._refuse(400, "the body's chunks cannot be read")
                return None
            size += count
            if size > _BODY_LIMIT:
                self.close_connection = True
                self._refuse(413, "the body is too large")
                return None
            if count == 0:
                while self.rfile.readline(65536) not in (b"\r\n", b"\n", b""):
                    pass
                return b"".join(parts)
            parts.append(self.rfile.read(count))
            self.rfile.readline(16)

    def _path(self) -> str:
        return self.path.split("?", 1)[0]

    def _refuse(self, status: int, sentence: str) -> None:
        self._answer(status, {"error": sentence})

    def _answer(self, status: int, value: Dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        if self.server.is_shutting_down:
            self.close_connection = True
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, code: Any = "-", size: Any = "-") -> None:  # noqa: ARG002
        """Log only failed requests: health is checked every few seconds."""
        if isinstance(code, int) and code >= 500 and self.command != "GET":
            self.log_message('"%s" %s', self.requestline, code)


def serve(options: argparse.Namespace) -> int:
    """Serve until SIGTERM. Raises ``ModelProblem``: the model cannot be served."""
    try:
        server = PredictionServer((options.host, options.port), options.health_route, options.predict_route)
    except OSError as error:
        raise ModelProblem("The server cannot listen at port %d: %s." % (options.port, error.strerror)) from error
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
    stopped = threading.Event()

    def on_signal(*_: Any) -> None:
        if server.model is None:
            os._exit(0)  # no request was answered yet: end at once, however long loading the model takes
        stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    began_s = time.monotonic()
    server.model = load_model(options.model, options.model_file, options.framework, options.trust_code)
    print(
        "Serving %s at port %d; the model was loaded in %.1f s."
        % (options.model, options.port, time.monotonic() - began_s),
        flush=True,
    )
    while not stopped.wait(3600.0):
        pass
    server.is_shutting_down = True
    server.shutdown()  # no new connection is accepted
    server.server_close()
    is_drained = server.drain(_DRAIN_S)
    print("Ended%s." % ("" if is_drained else ", with requests that took too long"), flush=True)
    # Threads of idle connections still wait for requests.
    sys.stdout.flush()
    os._exit(0)


def _number(text: str, base: int) -> Optional[int]:
    """The number in a header or a chunk; ``None`` if it is not of plain digits, as HTTP requires: ``int`` also accepts
    signs and underscores, and ``str.isdigit`` is true for digits that ``int`` does not accept.
    """
    return int(text, base) if re.fullmatch("[0-9]{1,18}" if base == 10 else "[0-9A-Fa-f]{1,15}", text) else None


def _request_of(body: bytes) -> Tuple[Any, Dict[str, Any]]:
    try:
        value = json.loads(body)
    except ValueError as error:
        raise BadInstances("the body is not JSON: %s" % error) from error
    if not isinstance(value, dict) or not isinstance(value.get("instances"), list):
        raise BadInstances('the body must be an object such as {"instances": [[1, 2], [3, 4]]}')
    parameters = value.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise BadInstances("parameters must be an object")
    return value["instances"], parameters or {}
