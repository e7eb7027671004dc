"""Asking serving replicas whether they are ready."""

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

# Vertex AI gives a health check 10 s. Whoever takes longer than this is too busy to be given more.
TIMEOUT_S: Final = 2.0
_AT_ONCE: Final = 32
_HEAD_BYTES: Final = 16_384  # of an answer's status line and headers
_SAID: Final = 200  # bytes of a body
_IN_ROUTES: Final = "/?&=%:@!$'()*+,;~[]"
_STATUS: Final = re.compile(rb"HTTP/1\.[01] +([1-5][0-9][0-9])(?: |$)")


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """``words``: a sentence on what was answered."""

    is_ready: bool
    words: str


HealthProbe = Callable[[str, str], ProbeResult]  # address (host:port) and route


def probe_health(address: str, route: str, *, timeout_s: float = TIMEOUT_S) -> ProbeResult:
    """What the health route says. Blocks for ``timeout_s`` at most, however slowly the bytes of the answer come, and a
    little more for a name that is looked up.
    """
    try:
        status, said = _get(address, route, time.monotonic() + timeout_s)
    except TimeoutError:
        return ProbeResult(False, f"its health route {route} did not answer within {timeout_s:g} s.")
    except ConnectionRefusedError:
        return ProbeResult(False, "nothing listens at its port yet.")
    except (OSError, ValueError) as error:
        return ProbeResult(False, f"its health route {route} cannot be asked: {str(error) or type(error).__name__}.")
    if status == HTTPStatus.OK:
        return ProbeResult(True, "ready")
    return ProbeResult(False, f"its health route {route} answers {status}" + (f": {_plain(said)}" if said else "."))


def _plain(said: str) -> str:
    """The sentence in ``{"error": "…"}``, as the platform's own server tells it; all else as it is."""
    try:
        told = json.loads(said)
    except ValueError:
        return said
    words = told.get("error") if isinstance(told, dict) else None
    return words if isinstance(words, str) and words else said


def probe_all(probe: HealthProbe, asked: Mapping[str, tuple[str, str]], *, within_s: float) -> dict[str, ProbeResult]:
    """The same of each, by its key, many at once. Who has not answered ``within_s`` seconds is missing: it is not known.

    Each time another one is the first, so that slow ones do not keep others from ever being asked.
    """
    if not asked:
        return {}
    first = time.monotonic_ns() // 1_000_000 % len(asked)
    keys = [*asked][first:] + [*asked][:first]
    pool = ThreadPoolExecutor(min(_AT_ONCE, len(asked)), thread_name_prefix="health")
    try:
        asking = {key: pool.submit(probe, *asked[key]) for key in keys}
        done, _ = wait(asking.values(), timeout=within_s)
        return {key: asking[key].result() for key in asked if asking[key] in done}
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # those that are being asked end at their own deadline


def _get(address: str, route: str, deadline: float) -> tuple[int, str]:
    """Status and the beginning of the body of an answer.

    By hand, since ``http.client`` gives each of its reads the whole time anew.
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
    wanted = min(_SAID, int(length[1])) if length else _SAID
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
    """Seconds. Raises ``TimeoutError``: there are none."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
