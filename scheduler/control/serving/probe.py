"""Health probes of serving replicas."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import quote

# Vertex AI gives a health check 10 s. A replica that takes longer than this is too busy for more requests.
TIMEOUT_S: Final = 2.0
_PARALLEL: Final = 32
_HEAD_BYTES: Final = 16_384  # of an answer's status line and headers
_BODY_BYTES: Final = 200
_IN_ROUTES: Final = "/?&=%:@!$'()*+,;~[]"
_STATUS: Final = re.compile(rb"HTTP/1\.[01] +([1-5][0-9][0-9])(?: |$)")


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """``words``: a sentence on the answer."""

    is_ready: bool
    words: str


HealthProbe = Callable[[str, str], ProbeResult]  # address (host:port) and route


def probe_health(address: str, route: str, *, timeout_s: float = TIMEOUT_S) -> ProbeResult:
    """What the health route answers. Blocks for ``timeout_s`` at most, however slowly the bytes arrive, and a little
    longer for a name lookup.
    """
    try:
        status, body = _get(address, route, time.monotonic() + timeout_s)
    except TimeoutError:
        return ProbeResult(False, f"its health route {route} did not answer within {timeout_s:g} s.")
    except ConnectionRefusedError:
        return ProbeResult(False, "nothing listens at its port yet.")
    except (OSError, ValueError) as error:
        return ProbeResult(False, f"its health route {route} cannot be asked: {str(error) or type(error).__name__}.")
    if status == HTTPStatus.OK:
        return ProbeResult(True, "ready")
    return ProbeResult(False, f"its health route {route} answers {status}" + (f": {_plain(body)}" if body else "."))


def _plain(body: str) -> str:
    """The sentence in ``{"error": "…"}`` of the platform's own server; any other body as it is."""
    try:
        parsed = json.loads(body)
    except ValueError:
        return body
    words = parsed.get("error") if isinstance(parsed, dict) else None
    return words if isinstance(words, str) and words else body


def probe_all(probe: HealthProbe, targets: Mapping[str, tuple[str, str]], *, within_s: float) -> dict[str, ProbeResult]:
    """Probe each address and route, by key, many in parallel. Without an answer within ``within_s`` seconds a key is
    missing: its health is unknown.

    Each call begins with another key, so that slow replicas do not keep others from ever being probed.
    """
    if not targets:
        return {}
    first = time.monotonic_ns() // 1_000_000 % len(targets)
    keys = [*targets][first:] + [*targets][:first]
    pool = ThreadPoolExecutor(min(_PARALLEL, len(targets)), thread_name_prefix="health")
    try:
        asking = {key: pool.submit(probe, *targets[key]) for key in keys}
        done, _ = wait(asking.values(), timeout=within_s)
        return {key: asking[key].result() for key in targets if asking[key] in done}
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # running probes end at their own deadline


def _get(address: str, route: str, deadline: float) -> tuple[int, str]:
    """Status and the beginning of the body of an answer.

    Hand-written, since ``http.client`` gives the full timeout to each of its reads.
    """
    host, _, port = address.rpartition(":")
    request = (
        f"GET {quote(route, safe=_IN_ROUTES)} HTTP/1.0\r\nHost: {address}\r\nUser-Agent: trainmaster-health\r\n"
        "Accept: */*\r\nConnection: close\r\n\r\n"
    ).encode("ascii")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=_left(deadline)) as stream:
        stream.settimeout(_left(deadline))
        stream.sendall(request)
        return _read(stream, deadline)


def _read(stream: socket.socket, deadline: float) -> tuple[int, str]:
    got = b""
    end = -1
    while end < 0:
        if len(got) > _HEAD_BYTES:
            raise ValueError("the headers of its answer are too long")
        more = _receive(stream, deadline)
        got += more
        end = got.find(b"\r\n\r\n")
        if not more:
            raise ValueError("it broke off" if got else "it closed the connection")
    head, body = got[:end], got[end + 4 :]
    found = _STATUS.match(head.split(b"\r\n", 1)[0])
    if found is None:
        raise ValueError("what it answers is not HTTP")
    status = int(found[1])
    if status == HTTPStatus.OK:
        return status, ""
    length = re.search(rb"(?im)^content-length: *([0-9]{1,9}) *\r?$", head)
    wanted = min(_BODY_BYTES, int(length[1])) if length else _BODY_BYTES
    try:
        while len(body) < wanted and (more := _receive(stream, deadline)):
            body += more
    except OSError:
        pass  # the status is what counts
    return status, body[:wanted].decode("utf-8", "replace").strip()


def _receive(stream: socket.socket, deadline: float) -> bytes:
    stream.settimeout(_left(deadline))
    return stream.recv(4096)


def _left(deadline: float) -> float:
    """Seconds left. Raises ``TimeoutError`` where there are none."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
