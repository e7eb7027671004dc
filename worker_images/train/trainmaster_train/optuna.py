"""An Optuna storage on the platform, shared by all jobs of a project, for scripts that run an Optuna study themselves.

    import optuna
    from trainmaster_train.optuna import storage

    study = optuna.create_study(storage=storage(), study_name="digits", load_if_exists=True)
    study.optimize(objective, n_trials=20)

It is Optuna's own gRPC client (``GrpcStorageProxy``), whose messages go to the platform's API over HTTP, with the token
that every job has. An unchanged script can be run together with a gRPC server on the default port of Optuna's client:
``python -m trainmaster_train.optuna -- python search.py``.

Needs ``optuna`` 4.2 or later with ``grpcio`` and ``protobuf``, as Optuna's own proxy does.
"""

from __future__ import annotations

import argparse
import functools
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import warnings
from typing import Any, Callable, Dict, List, Optional, Tuple
from urllib.parse import quote, urlsplit

try:
    import grpc
    from optuna.storages import GrpcStorageProxy
    from optuna.storages._grpc.auto_generated import api_pb2
    from optuna.storages._grpc.client import GrpcClientCache
    from optuna.storages._grpc.server import make_server
except ImportError as error:
    raise ImportError(
        "trainmaster_train.optuna needs Optuna 4.2 or later with gRPC: "
        f"pip install 'optuna>=4.2' grpcio protobuf ({error})"
    ) from error

_STATUS_HEADER = "Optuna-Status"
_TIMEOUT_S = 60.0
# The API may restart, or move to another machine, during a training.
_TRY_FOR_S = 120.0
_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0
_UNAVAILABLE = frozenset({429, 502, 503, 504})
# Not idempotent: never sent again once the request may have arrived.
_NOT_IDEMPOTENT = frozenset({"CreateNewStudy", "CreateNewTrial", "DeleteStudy", "SetTrialStateValues"})
# uvicorn closes connections after 5 s idle; a request into a closing connection is lost.
_IDLE_S = 3.0
_ADVICE = (
    "Give each replica its own --port and GrpcStorageProxy(port=…), use trainmaster_train.optuna.storage() in the "
    "script, or run the job in containers"
)


class StorageError(grpc.RpcError):  # type: ignore[misc]  # grpc ships no types
    """An error in the form that Optuna's client expects of its server. ``code`` is a ``grpc.StatusCode``."""

    def __init__(self, code: Any, details: str) -> None:
        super().__init__(details)
        self._code = code
        self._details = details

    def code(self) -> Any:
        return self._code

    def details(self) -> str:
        return self._details


def storage(
    *,
    url: Optional[str] = None,
    token: Optional[str] = None,
    project: Optional[str] = None,
    ca_file: Optional[str] = None,
) -> GrpcStorageProxy:
    """The storage of this job's project. It can be pickled and used by several threads and processes.

    Args:
        url: the API; default: the job's, ``TRAINMASTER_API_URL``.
        token: default: the job's own, from ``TRAINMASTER_TOKEN_FILE``, else ``TRAINMASTER_TOKEN``.
        project: of the studies; only with a user's token, outside a job.
        ca_file: CA certificates for the API; default: the system's.

    Raises:
        ValueError: there is no address, or no token.
        StorageError: raised by the first call if the API is unreachable or rejects the token.
    """
    address = url or os.environ.get("TRAINMASTER_API_URL", "")
    if not address:
        raise ValueError("url: there is no TRAINMASTER_API_URL outside a job; name the API's address")
    in_job = url is None and token is None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna calls its proxy experimental
        return _Storage(_HttpTransport(address, token, None if in_job else project, ca_file))


class _Storage(GrpcStorageProxy):
    def __init__(self, transport: _HttpTransport) -> None:
        self._transport = transport
        super().__init__()

    def _setup(self) -> None:
        self._channel = self._transport
        stub: Any = _Stub(self._transport)
        self._stub = stub
        self._cache = GrpcClientCache(stub)

    def wait_server_ready(self, timeout: Optional[float] = None) -> None:
        """Wait until the platform answers. Raises ``ConnectionError`` after ``timeout`` seconds."""
        until_s = None if timeout is None else time.monotonic() + timeout
        while not self._transport.answers():
            if until_s is not None and time.monotonic() > until_s:
                raise ConnectionError(f"{self._transport.url} did not answer within {timeout:g} s")
            time.sleep(_PAUSE_S)  # noqa: TID251 (polling: there is no notification)


class _Stub:
    """A method for each method of the service, as in the generated stub."""

    def __init__(self, transport: _HttpTransport) -> None:
        methods = api_pb2.DESCRIPTOR.services_by_name["StorageService"].methods_by_name
        for name, method in methods.items():
            setattr(self, name, functools.partial(self._call, transport, name, _class(method.output_type)))

    @staticmethod
    def _call(transport: _HttpTransport, name: str, answer: Callable[[], Any], request: Any) -> Any:
        message = answer()
        message.ParseFromString(transport.call(name, request.SerializeToString()))
        return message


def _class(described: Any) -> Callable[[], Any]:
    made: Callable[[], Any] = getattr(api_pb2, described.name)
    return made


class _HttpTransport:
    """HTTP requests to the API, with one connection per thread."""

    def __init__(self, url: str, token: Optional[str], project: Optional[str], ca_file: Optional[str]) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url: {url!r} is not an address like http://host:8765")
        self.url = url
        self._is_tls = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._path = parts.path.rstrip("/") + "/api/v1/optuna/"
        self._query = f"?project={quote(project, safe='')}" if project else ""
        self._given_token = token
        self._ca_file = ca_file
        self._setup()

    def _setup(self) -> None:
        self._local = threading.local()
        self._token()

    def __getstate__(self) -> Dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_local"}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._setup()

    def close(self) -> None:
        """Close this thread's connection."""
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None

    def answers(self) -> bool:
        try:
            self._post("GetAllStudies", b"")
        except (OSError, http.client.HTTPException):
            return False
        return True

    def call(self, method: str, body: bytes) -> bytes:
        """The answer's bytes.

        Raises:
            StorageError: the storage reports an error, or the API was unreachable for two minutes.
        """
        until_s = time.monotonic() + _TRY_FOR_S
        pause_s = _PAUSE_S
        while True:
            try:
                status, grpc_status, answer = self._post(method, body)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                sent = not isinstance(error, ConnectionRefusedError)
                if (sent and method in _NOT_IDEMPOTENT) or time.monotonic() > until_s:
                    raise StorageError(grpc.StatusCode.UNAVAILABLE, f"{self.url} does not answer: {error}") from error
            else:
                if status == 200:
                    return answer
                # A proxy may report this although the API has executed the request, or the API if it does not know.
                is_unsafe = method in _NOT_IDEMPOTENT and status != 429
                if status not in _UNAVAILABLE or is_unsafe or time.monotonic() > until_s:
                    raise _error(status, grpc_status, answer)
            time.sleep(pause_s)  # noqa: TID251 (the same)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _post(self, method: str, body: bytes) -> Tuple[int, Optional[str], bytes]:
        connection = self._connection(method)
        headers = {"Authorization": f"Bearer {self._token()}", "Content-Type": "application/x-protobuf"}
        connection.request("POST", self._path + method + self._query, body, headers)
        response = connection.getresponse()
        answer = response.read()
        self._local.used_at_s = time.monotonic()
        return response.status, response.headers.get(_STATUS_HEADER), answer

    def _connection(self, method: str) -> http.client.HTTPConnection:
        connection: Optional[http.client.HTTPConnection] = getattr(self._local, "connection", None)
        # A connection that the API has closed meanwhile looks like a lost answer.
        if (
            connection is not None
            and method not in _NOT_IDEMPOTENT
            and time.monotonic() - self._local.used_at_s < _IDLE_S
        ):
            return connection
        self.close()
        if self._is_tls:
            context = ssl.create_default_context(cafile=self._ca_file)
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=_TIMEOUT_S, context=context)
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT_S)
        self._local.connection, self._local.used_at_s = connection, time.monotonic()
        return connection

    def _token(self) -> str:
        if self._given_token:
            return self._given_token
        path = os.environ.get("TRAINMASTER_TOKEN_FILE", "")
        if path:
            with open(path, encoding="utf-8") as file:
                return file.read().strip()
        token = os.environ.get("TRAINMASTER_TOKEN", "")
        if not token:
            raise ValueError("token: there is no TRAINMASTER_TOKEN_FILE outside a job; give a token of your own")
        return token


def _error(status: int, grpc_status: Optional[str], answer: bytes) -> StorageError:
    try:
        details = str(json.loads(answer)["detail"])
    except (ValueError, KeyError, TypeError):
        details = f"The API answered {status}."
    if grpc_status is not None and hasattr(grpc.StatusCode, grpc_status):
        return StorageError(getattr(grpc.StatusCode, grpc_status), details)
    codes = {
        401: grpc.StatusCode.UNAUTHENTICATED,
        403: grpc.StatusCode.PERMISSION_DENIED,
        410: grpc.StatusCode.PERMISSION_DENIED,
        413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
    code = codes.get(status, grpc.StatusCode.UNAVAILABLE if status in _UNAVAILABLE else grpc.StatusCode.UNKNOWN)
    return StorageError(code, details)


def main() -> None:
    """A gRPC server on this machine for scripts that use Optuna's ``GrpcStorageProxy`` as it is."""
    parser = argparse.ArgumentParser(
        prog="python -m trainmaster_train.optuna",
        description="Serves the platform's storage of Optuna studies to Optuna's own GrpcStorageProxy.",
    )
    parser.add_argument("--host", default="localhost", help="default: localhost, for this replica alone")
    parser.add_argument("--port", type=int, default=13000, help="default: 13000, as Optuna's client has it")
    parser.add_argument("command", nargs="*", help="after --: a program to run; the server ends with it")
    arguments = parser.parse_args()
    try:
        claimed = _claim(arguments.port)
        server = make_server(storage(), arguments.host, arguments.port)
    except (ValueError, OSError) as error:
        sys.exit(f"trainmaster_train.optuna: {error}")
    except RuntimeError as error:  # gRPC raises nothing more specific for a port in use
        sys.exit(
            f"trainmaster_train.optuna: {arguments.host}:{arguments.port} cannot be listened on: {error}. {_ADVICE}"
        )
    server.start()
    if not arguments.command:
        print(f"trainmaster_train.optuna: serves at {arguments.host}:{arguments.port}", file=sys.stderr)
        server.wait_for_termination()
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        GrpcStorageProxy(host=arguments.host, port=arguments.port).wait_server_ready(timeout=_TRY_FOR_S)
    status = _run(arguments.command)
    claimed.close()
    sys.exit(status)


def _claim(port: int) -> socket.socket:
    """Claim the port for the life of the server. gRPC would share it with another replica's server, and fail with that.

    Raises:
        OSError: another process has it.
    """
    claimed = socket.socket(socket.AF_UNIX)
    if sys.platform == "linux":  # elsewhere there are no socket names that end with their process
        try:
            # gRPC shares ports only with processes of this user, so other users' names must not collide.
            claimed.bind(f"\0trainmaster-optuna-{os.getuid()}-{port}")
        except OSError as error:
            raise OSError(
                f"port {port} is another replica's on this machine, as plain processes have no network of their own. "
                f"{_ADVICE}"
            ) from error
    return claimed


def _run(command: List[str]) -> int:
    """Run the program; returns its exit status. Signals to this process are forwarded."""
    program: Optional[subprocess.Popen[bytes]] = None
    early: List[int] = []

    def forward_signal(number: int, _frame: object) -> None:
        if program is None:  # still starting
            early.append(number)
        else:
            program.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward_signal)
    try:
        program = subprocess.Popen(command)
    except OSError as error:
        sys.exit(f"trainmaster_train.optuna: {command[0]}: {error.strerror}")
    for early_number in early:
        program.send_signal(early_number)
    status = program.wait()
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    main()
