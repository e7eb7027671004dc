"""A thin client: JSON in, JSON out, over the ``kubernetes`` package's discovery and authentication.

Its model classes are left out: parsing 5,000 pods through them costs tens of seconds of CPU.
"""

from __future__ import annotations

import random  # noqa: TID251 (jitter: equal clients must not come at the same moment)
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

import orjson
import urllib3

from core.domain.errors import ExecutorTryAgain
from executors.kubernetes.api_server.access import Access, ApiConnection
from executors.kubernetes.api_server.errors import ApiRefused as ApiRefused  # noqa: PLC0414 (re-exported)
from executors.kubernetes.api_server.errors import Gone as Gone  # noqa: PLC0414 (the same)
from executors.kubernetes.api_server.errors import ObjectConflict as ObjectConflict  # noqa: PLC0414 (the same)
from executors.kubernetes.api_server.errors import ObjectExists as ObjectExists  # noqa: PLC0414 (the same)
from executors.kubernetes.api_server.errors import ObjectNotFound as ObjectNotFound  # noqa: PLC0414 (the same)
from executors.kubernetes.api_server.errors import QuotaFull, ServerBusy, error_of, read_status


class RequestThrottle:
    """A bucket of tokens: ``qps`` requests per second in the long run, ``burst`` at once. For many threads, in turn."""

    def __init__(self, qps: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._qps = qps
        self._burst = max(1, burst)
        self._clock = clock
        self._lock = threading.Lock()
        # When the bucket would be full again; taking one token moves it by 1/qps.
        self._full_at = clock()

    def reserve(self) -> float:
        """Take a token; how long to wait before it may be used, in seconds."""
        with self._lock:
            now = self._clock()
            self._full_at = max(self._full_at, now) + 1 / self._qps
            return max(0.0, self._full_at - now - self._burst / self._qps)


Json = dict[str, Any]
T = TypeVar("T")

_TIMEOUT_S: Final = 20.0
_CONNECT_TIMEOUT_S: Final = 5.0
# Tries of one call, the first included, and how long it may wait between them altogether: the control loop has a
# handful of threads, and its own back-off.
_TRIES: Final = 4
_PATIENCE_S: Final = 6.0
_FIRST_DELAY_S: Final = 0.1
_PAGE: Final = 500
_USER_AGENT: Final = "trainmaster"


def path(resource: str, namespace: str = "", name: str = "", *, group: str = "v1") -> str:
    """The path of a collection or an object: ``path("pods", "jobs", "chief-0")``; a subresource goes behind the name,
    as ``"chief-0/binding"``. ``group``: ``"v1"`` or ``"networking.k8s.io/v1"``; no namespace: cluster-wide.
    """
    root = "/api/v1" if group == "v1" else f"/apis/{group}"
    parts = [root, *(("namespaces", quote(namespace, safe="")) if namespace else ()), resource]
    if name:
        parts.append(quote(name, safe="/"))
    return "/".join(parts)


class KubernetesClient:
    """One API server, for many threads.

    Objects are the API's own JSON as dicts. Every call waits its turn under the client-side limit, is repeated a few
    times while the server is away or busy (Retry-After is honoured, up to six seconds altogether), and raises:

    - ``ExecutorTryAgain``: away, 5xx, 429, timeout, 401 even after the credentials were read again, a namespace that
      is being deleted, a quota that is full now; ``ObjectConflict`` (one of these): a precondition does not hold;
    - ``ApiRefused`` (an ``ExecutorRefused``): 400, 403, 413, 422: more than a quota allows at all, missing rights,
      admission webhooks, invalid objects, with the server's own words in the sentence and in ``.message``, ``.reason``,
      ``.http_status``;
    - ``ObjectNotFound``, ``ObjectExists``, ``Gone``: plain exceptions for the caller to handle.

    Args:
        qps: requests per second at most in the long run; twice as many at once.
        note: called as ``note("POST", "/api/v1/…")`` for every call before it is made; the tests compare with RBAC.
    """

    def __init__(
        self,
        access: Access | None = None,
        *,
        qps: float = 50.0,
        timeout_s: float = _TIMEOUT_S,
        note: Callable[[str, str], None] | None = None,
    ) -> None:
        self._access = access if access is not None else Access()
        self._throttle = RequestThrottle(qps, round(2 * qps))
        self._timeout_s = timeout_s
        self._note = note
        self._link: ApiConnection | None = None
        self._link_lock = threading.Lock()
        self._is_closed = threading.Event()
        self._watches: set[ApiWatch] = set()
        self._jitter = random.Random()  # noqa: S311 (no secret)

    def get(self, url: str, params: Mapping[str, Any] | None = None) -> Json:
        """One object."""
        return self._json("GET", url, params)

    def list_page(
        self,
        url: str,
        params: Mapping[str, Any] | None = None,
        *,
        limit: int = _PAGE,
        token: str = "",
    ) -> Json:
        """One page of a list: ``items``, ``metadata.resourceVersion``, and ``metadata.continue`` if there is more.

        ``params``: ``labelSelector``, ``fieldSelector``, ``resourceVersion``. Raises ``Gone`` for a ``token`` (the last
        page's ``continue``) that is too old.
        """
        query = {**(params or {}), "limit": limit}
        if token:
            query["continue"] = token
        return self._json("GET", url, query)

    def list_pages(self, url: str, params: Mapping[str, Any] | None = None, *, limit: int = _PAGE) -> Iterator[Json]:
        """All pages of one consistent list, fresh from the store. Raises ``Gone`` when it takes longer than the server
        keeps its history (minutes): begin again.
        """
        token = ""
        while True:
            page = self.list_page(url, params, limit=limit, token=token)
            yield page
            token = page["metadata"].get("continue") or ""
            if not token:
                return

    def post(self, url: str, body: Json, params: Mapping[str, Any] | None = None) -> Json:
        """Create an object in the collection; the object as it was stored.

        A body with a name is sent again when it is not known whether it arrived: then ``ObjectExists`` may mean our
        own first try. One without (``generateName``, reviews, token requests) is sent again only if it surely was not
        taken.
        """
        is_repeatable = "name" in body.get("metadata", {})
        return self._json("POST", url, params, body=body, is_repeatable=is_repeatable)

    def patch(self, url: str, body: Json, params: Mapping[str, Any] | None = None) -> Json:
        """Merge ``body`` into the object (JSON merge patch: ``None`` takes a field away, lists are replaced); the
        object as it is now.
        """
        return self._json("PATCH", url, params, body=body, content_type="application/merge-patch+json")

    def delete(
        self, url: str, *, options: Mapping[str, Any] | None = None, params: Mapping[str, Any] | None = None
    ) -> Json:
        """Delete an object, or a collection where ``params`` has a ``labelSelector``; the server's answer.

        ``options``: DeleteOptions (``gracePeriodSeconds``, ``propagationPolicy``, ``preconditions``). Raises
        ``ObjectNotFound``; a repetition after a lost answer does too.
        """
        body = {"kind": "DeleteOptions", "apiVersion": "v1", **options} if options else None
        return self._json("DELETE", url, params, body=body)

    def watch(
        self,
        url: str,
        *,
        resource_version: str,
        params: Mapping[str, Any] | None = None,
        timeout_s: float = 240.0,
    ) -> ApiWatch:
        """Open a watch of a collection from ``resource_version`` on.

        The server ends it after ``timeout_s``. Raises ``Gone`` when the version is too old, here or while iterating.
        """
        query = {
            **(params or {}),
            "watch": "true",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": max(1, round(timeout_s)),
        }

        def open_watch() -> ApiWatch:
            response = self._send("GET", url, query, read_timeout_s=timeout_s + 15.0, is_stream=True)
            if response.status != 200:
                with _closing(response):
                    raise self._error("GET", url, response, _read_all(response))
            return ApiWatch(response, self._forget)

        watching = self._with_retries(open_watch, is_repeatable=True)
        with self._link_lock:
            self._watches.add(watching)
        if self._is_closed.is_set():
            watching.close()
        return watching

    def close(self) -> None:
        """End waits and open watches; calls raise ``ExecutorTryAgain`` from now on."""
        self._is_closed.set()
        with self._link_lock:
            watches, link = list(self._watches), self._link
        for watching in watches:
            watching.close()
        if link is not None:
            link.pool.clear()

    def _forget(self, watching: ApiWatch) -> None:
        with self._link_lock:
            self._watches.discard(watching)

    def _json(
        self,
        method: str,
        url: str,
        params: Mapping[str, Any] | None,
        *,
        body: Json | None = None,
        content_type: str = "application/json",
        is_repeatable: bool = True,
    ) -> Json:
        data = orjson.dumps(body) if body is not None else None

        def call() -> Json:
            response = self._send(method, url, params, data=data, content_type=content_type)
            answer = _read_all(response)
            if not 200 <= response.status < 300:
                raise self._error(method, url, response, answer)
            result: Json = orjson.loads(answer)
            return result

        return self._with_retries(call, is_repeatable=is_repeatable)

    def _with_retries(self, call: Callable[[], T], *, is_repeatable: bool) -> T:
        """``call``'s result, repeated while that makes sense."""
        left_s = _PATIENCE_S
        delay_s = _FIRST_DELAY_S
        for tries_left in reversed(range(_TRIES)):
            try:
                return call()
            except ExecutorTryAgain as error:
                may_come_again = is_repeatable or isinstance(error, (ServerBusy, _NotSent))
                wait_s = delay_s * self._jitter.uniform(0.5, 1.5)
                if error.retry_after_s is not None:
                    wait_s += error.retry_after_s
                if not may_come_again or not tries_left or wait_s > left_s or _is_final(error):
                    raise
            left_s -= wait_s
            delay_s *= 2.5
            self._sleep(wait_s)
        raise AssertionError("unreachable")

    def _send(
        self,
        method: str,
        url: str,
        params: Mapping[str, Any] | None,
        *,
        data: bytes | None = None,
        content_type: str = "",
        read_timeout_s: float | None = None,
        is_stream: bool = False,
    ) -> urllib3.BaseHTTPResponse:
        """The server's answer, whatever it is; 401 makes the credentials be read again, once."""
        if self._note is not None:
            self._note(method, url if not (params or {}).get("watch") else f"{url}?watch")
        query = f"?{urlencode(params)}" if params else ""
        for is_second in (False, True):
            self._sleep(self._throttle.reserve())
            link = self._connected()
            try:
                response = link.pool.request(
                    method,
                    f"{link.host}{url}{query}",
                    body=data,
                    headers=_headers(link, content_type if data is not None else ""),
                    timeout=urllib3.Timeout(connect=_CONNECT_TIMEOUT_S, read=read_timeout_s or self._timeout_s),
                    retries=False,
                    redirect=False,
                    preload_content=not is_stream,
                )
            except (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError) as error:
                raise _NotSent(_no_answer(error)) from error
            except urllib3.exceptions.HTTPError as error:
                raise ExecutorTryAgain(_no_answer(error)) from error
            if response.status != 401 or is_second:
                return response
            response.close()
            self._reconnect(link)
        raise AssertionError("unreachable")

    def _connected(self) -> ApiConnection:
        with self._link_lock:
            if self._link is None:
                self._link = self._access.connect()
            return self._link

    def _reconnect(self, old: ApiConnection) -> None:
        """Read the credentials again, unless another thread has just done so. Open watches keep what they have."""
        with self._link_lock:
            if self._link is old:
                self._link = self._access.connect()

    def _sleep(self, seconds: float) -> None:
        if self._is_closed.is_set() or (seconds > 0 and self._is_closed.wait(seconds)):
            raise ClientClosed("The connection to the Kubernetes cluster is being closed.")

    def _error(self, method: str, url: str, response: urllib3.BaseHTTPResponse, answer: bytes) -> Exception:
        return error_of(response.status, read_status(answer), f"{method} {url}", _retry_after_s(response))


class ApiWatch:
    """An open watch: iterate over its events, each ``{"type": ADDED | MODIFIED | DELETED | BOOKMARK, "object": …}``.

    Ends when the server ends it or after :meth:`close`, which any thread may call. Raises ``Gone`` when its version
    is too old, ``ExecutorTryAgain`` when the connection breaks. For one reader.
    """

    def __init__(self, response: urllib3.BaseHTTPResponse, forget: Callable[[ApiWatch], None]) -> None:
        self._response = response
        self._forget = forget
        self._is_closed = False

    def __iter__(self) -> Iterator[Json]:
        try:
            for line in self._lines():
                event: Json = orjson.loads(line)
                if event["type"] == "ERROR":
                    status = event["object"]
                    raise error_of(int(status.get("code") or 500), status, "a watch", None)
                yield event
        except urllib3.exceptions.ReadTimeoutError:
            return  # the server should have ended it before; the next watch goes on where this one stood
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            if self._is_closed:
                return
            raise ExecutorTryAgain(_no_answer(error)) from error
        finally:
            self._forget(self)
            self._response.close()

    def close(self) -> None:
        self._is_closed = True
        try:
            self._response.shutdown()  # wakes the reader, which closes it
        except (OSError, ValueError, RuntimeError):
            pass  # it has ended by itself

    def _lines(self) -> Iterator[bytes]:
        partial_line = b""
        while not self._is_closed and (data := self._response.read1(1 << 18)):
            *lines, partial_line = (partial_line + data).split(b"\n")
            yield from (line for line in lines if line)


class ClientClosed(ExecutorTryAgain):
    """After :meth:`KubernetesClient.close`."""


class _NotSent(ExecutorTryAgain):
    """There was no connection: the call was surely not taken."""


class _closing:  # noqa: N801 (reads like contextlib.closing, which loses the type)
    def __init__(self, response: urllib3.BaseHTTPResponse) -> None:
        self._response = response

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._response.close()


def _read_all(response: urllib3.BaseHTTPResponse) -> bytes:
    try:
        return response.data
    except urllib3.exceptions.HTTPError as error:
        raise ExecutorTryAgain(_no_answer(error)) from error


def _headers(link: ApiConnection, content_type: str) -> dict[str, str]:
    headers = {"Accept": "application/json", "User-Agent": _USER_AGENT}
    if content_type:
        headers["Content-Type"] = content_type
    authorization = link.authorization()
    if authorization:
        headers["Authorization"] = authorization
    return headers


def _is_final(error: ExecutorTryAgain) -> bool:
    """Whether the same call would only be answered in the same way."""
    return isinstance(error, QuotaFull) or (isinstance(error, ObjectConflict) and "quota" not in error.sentence)


def _retry_after_s(response: urllib3.BaseHTTPResponse) -> float | None:
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isdigit() else None


def _no_answer(error: BaseException) -> str:
    return f"The Kubernetes API server does not answer: {error}"
