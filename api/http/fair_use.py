"""Fair use: whatever one caller sends, the requests of others are answered as before.

A caller is the token that a request presents, or else the address that it comes from. The limits hold in each process
of the API; behind a reverse proxy, uvicorn's ``FORWARDED_ALLOW_IPS`` says whose ``X-Forwarded-For`` names the address.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.problems import response_to
from core.domain.errors import RequestTooSlow, TooManyRequests, Unauthenticated
from core.settings import Settings

# Requests of one caller that wait for their turn; more are refused.
_WAITING: Final = 500
# Bodies of one address that have begun and not ended.
_UNFINISHED_BODIES: Final = 100
# A whole body, except for those that are streamed to disk under limits of their own.
_BODY_WITHIN_S: Final = 30.0
# Wrong tokens and login codes of one address: so many at once, and so many a second on average.
_WRONG_LOGINS: Final = (60.0, 0.5)
_UNFINISHED: Final = TooManyRequests(
    f"{_UNFINISHED_BODIES} bodies from this address have begun and not ended; finish them first.", retry_after_s=1.0
)
# Callers whose use is remembered; those that were seen longest ago are forgotten first.
_CALLERS: Final = 20_000


class TokenBuckets:
    """A token bucket (https://en.wikipedia.org/wiki/Token_bucket) for each key."""

    def __init__(self, burst: float, per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst = burst
        self._per_s = per_s
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, at

    def wait_s(self, key: str) -> float:
        """The seconds until ``key`` may go on; 0: at once."""
        return max(0.0, 1.0 - self._tokens(key)) / self._per_s

    def take(self, key: str) -> None:
        """One token less, but never fewer than none."""
        self._buckets[key] = (max(0.0, self._tokens(key) - 1.0), self._clock())
        self._buckets.move_to_end(key)
        while len(self._buckets) > _CALLERS:
            self._buckets.popitem(last=False)

    def _tokens(self, key: str) -> float:
        tokens, at_s = self._buckets.get(key, (self._burst, 0.0))
        return min(self._burst, tokens + (self._clock() - at_s) * self._per_s)


class KeyedSemaphore:
    """At most ``limit`` requests of a key at once; others wait in the order in which they came."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def acquire(self, key: str) -> None:
        """Raises ``TooManyRequests`` when too many wait already."""
        if self._running[key] < self._limit:
            self._running[key] += 1
            return
        queue = self._waiting.setdefault(key, deque())
        if len(queue) >= _WAITING:
            raise TooManyRequests(
                f"Too many requests at once: {self._limit} are being answered and {_WAITING} more wait; send fewer.",
                retry_after_s=1.0,
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(key)  # the turn came at the same moment
            else:
                queue.remove(turn)
            raise

    def release(self, key: str) -> None:
        """The next request's turn."""
        queue = self._waiting.get(key)
        while queue:
            turn = queue.popleft()
            if not turn.done():
                turn.set_result(None)  # it takes over the place
                return
        self._waiting.pop(key, None)
        self._running[key] -= 1
        if self._running[key] <= 0:
            del self._running[key]


class ConcurrencyLimit:
    """At most ``limit`` things of a key may be open at once."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._open: Counter[str] = Counter()

    @contextmanager
    def acquire(self, key: str, refusal: TooManyRequests) -> Iterator[None]:
        """Raises ``refusal`` when the limit is reached."""
        if self._open[key] >= self.limit:
            raise refusal
        self._open[key] += 1
        try:
            yield
        finally:
            self._open[key] -= 1
            if self._open[key] <= 0:
                del self._open[key]


class FairUse:
    """What the callers of this process use, and its limits."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._requests = TokenBuckets(5.0 * settings.requests_per_s, settings.requests_per_s, clock)
        # A handler has a thread: half of the threads are for others.
        self.turns = KeyedSemaphore(max(2, settings.database_pool_size))
        self.bodies = ConcurrencyLimit(_UNFINISHED_BODIES)
        self.streams = ConcurrencyLimit(settings.streams_per_user)
        self._wrong_logins = TokenBuckets(*_WRONG_LOGINS, clock)
        self._suspects = KeyedSemaphore(1)

    def demand_request(self, key: str) -> None:
        """Count a request of the caller. Raises ``TooManyRequests``."""
        wait_s = self._requests.wait_s(key)
        if wait_s:
            raise TooManyRequests(
                "Too many requests: TRAINMASTER_REQUESTS_PER_S says how many a token may send; follow a stream instead "
                "of asking again and again.",
                retry_after_s=wait_s,
            )
        self._requests.take(key)

    @asynccontextmanager
    async def login_attempt(self, connection: HTTPConnection) -> AsyncIterator[None]:
        """Around the check of a token or a login code, which raises ``Unauthenticated`` where it is wrong.

        Where many wrong ones come from an address, its checks wait for each other, so that guessing loads the database
        little. Right ones still pass: users behind one proxy share an address.

        Raises:
            TooManyRequests: the token or code is wrong, as were many from this address; or too many checks wait.
        """
        address = address_of(connection.scope)
        wait_s = self._wrong_logins.wait_s(address)
        if wait_s:
            await self._suspects.acquire(address)
        try:
            yield
        except Unauthenticated as wrong:
            self._wrong_logins.take(address)
            if not wait_s:
                raise
            raise TooManyRequests(
                f"{wrong.sentence} Too many wrong tokens or login codes came from this address; wait before you try "
                "another one.",
                retry_after_s=wait_s,
            ) from None
        finally:
            if wait_s:
                self._suspects.release(address)


def fair_use_of(connection: HTTPConnection) -> FairUse:
    found: FairUse = connection.app.state.fair_use
    return found


def address_of(scope: Scope) -> str:
    client: tuple[str, int] | None = scope.get("client")
    return client[0] if client else ""


def caller_key(scope: Scope, headers: Headers) -> str:
    """The token that is presented, by its digest, or else the address."""
    token = headers.get("authorization") or headers.get("cookie")
    if not token:
        return address_of(scope)
    return hashlib.blake2b(token.encode(), digest_size=16).hexdigest()


class FairUseMiddleware:
    """Applies the limits of requests and bodies."""

    def __init__(
        self, app: ASGIApp, *, fair_use: FairUse, is_upload: Callable[[Scope], bool], is_proxied: Callable[[str], bool]
    ) -> None:
        self.app = app
        self._use = fair_use
        self._is_upload = is_upload
        self._is_proxied = is_proxied

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        key = caller_key(scope, headers)
        try:
            self._use.demand_request(key)
            if self._is_proxied(scope["path"]):
                # The proxy has its own limits, and its handlers wait for models, not for threads.
                await self.app(scope, receive, send)
                return
            with ExitStack() as until_read:
                if _has_body(headers) and not self._is_upload(scope):
                    until_read.enter_context(self._use.bodies.acquire(address_of(scope), _UNFINISHED))
                    receive = _TimelyBody(receive, until_read.close).receive
                await self._in_turn(key, scope, receive, send)
        except (TooManyRequests, RequestTooSlow) as refused:
            await response_to(refused, scope["state"]["request_id"])(scope, receive, send)

    async def _in_turn(self, key: str, scope: Scope, receive: Receive, send: Send) -> None:
        """The turn ends when the response starts: what follows waits for the client, not for a thread."""
        await self._use.turns.acquire(key)
        has_turn = True

        def end_turn() -> None:
            nonlocal has_turn
            if has_turn:
                has_turn = False
                self._use.turns.release(key)

        async def sending(message: Message) -> None:
            end_turn()
            await send(message)

        try:
            await self.app(scope, receive, sending)
        finally:
            end_turn()


class _TimelyBody:
    """A body that has to arrive in time; ``when_read`` is called at its end."""

    def __init__(self, receive: Receive, when_read: Callable[[], None]) -> None:
        self._receive = receive
        self._when_read = when_read
        self._until_s = asyncio.get_running_loop().time() + _BODY_WITHIN_S
        self._is_read = False

    async def receive(self) -> Message:
        if self._is_read:
            return await self._receive()  # the client's disconnection
        try:
            async with asyncio.timeout_at(self._until_s):
                message = await self._receive()
        except TimeoutError:
            raise RequestTooSlow(
                f"The body did not arrive within {_BODY_WITHIN_S:.0f} s; send it again, larger files as an archive."
            ) from None
        if not message.get("more_body", False):
            self._is_read = True
            self._when_read()
        return message


def _has_body(headers: Headers) -> bool:
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
