"""Fair use: whatever one caller sends, the requests of others are answered as before; see ``api.http.fair_use``.

A caller is the token that a request presents, or else the address that it comes from. The limits hold in each process
of the API; behind a reverse proxy, uvicorn's ``FORWARDED_ALLOW_IPS`` says whose ``X-Forwarded-For`` names the address.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import Scope

from core.domain.errors import TooManyRequests, Unauthenticated
from core.settings import Settings
from core.tokens import SESSION_PREFIX

# Requests of one caller that wait for their turn; more are refused.
_WAITING: Final = 500
# Bodies of one address that have begun and not ended.
_UNFINISHED_BODIES: Final = 100
# For a whole body, except for those that are streamed to disk under limits of their own.
_BODY_S: Final = 30.0
# Wrong tokens and login codes of one address: so many at once, and so many a second on average.
_WRONG_LOGINS: Final = (60.0, 0.5)
# Logins by a provider that one address starts, each of which may be a request to the provider: as above.
_STARTED_LOGINS: Final = (60.0, 0.5)
_SESSION: Final = re.compile(rf"{SESSION_PREFIX}[\w-]+")
# After a stream is refused, so long others of the caller are refused without a look.
_REFUSED_STREAMS_S: Final = 1.0
# Callers whose use is remembered; those that were seen longest ago are forgotten first.
_CALLERS: Final = 20_000


class TokenBuckets:
    """A token bucket (https://en.wikipedia.org/wiki/Token_bucket) for each key."""

    def __init__(
        self, burst: float, per_s: float, clock: Callable[[], float] = time.monotonic, *, keys: int = _CALLERS
    ) -> None:
        self._keys = keys
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
        while len(self._buckets) > self._keys:
            self._buckets.popitem(last=False)

    def _tokens(self, key: str) -> float:
        tokens, at_s = self._buckets.get(key, (self._burst, 0.0))
        return min(self._burst, tokens + (self._clock() - at_s) * self._per_s)


class KeyedSemaphore:
    """At most ``limit`` requests of a key at once; others wait in the order in which they came."""

    def __init__(self, limit: int, *, waiting: int = _WAITING) -> None:
        self.limit = limit
        self._waiting_limit = waiting
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def acquire(self, key: str) -> None:
        """Raises ``TooManyRequests`` when too many wait already."""
        if self._running[key] < self.limit:
            self._running[key] += 1
            return
        queue = self._waiting.setdefault(key, deque())
        if len(queue) >= self._waiting_limit:
            raise TooManyRequests(
                f"{self.limit} requests are being answered and {self._waiting_limit} more wait; send fewer at once.",
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

    @property
    def total(self) -> int:
        """Open things of all keys."""
        return self._open.total()

    def is_reached(self, key: str) -> bool:
        return self._open[key] >= self.limit

    @contextmanager
    def acquire(self, key: str) -> Iterator[None]:
        """For a key whose limit is not reached."""
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
        self._requests = TokenBuckets(max(1.0, 5.0 * settings.requests_per_s), settings.requests_per_s, clock)
        # A handler has a thread: half of the threads are for others.
        self.turns = KeyedSemaphore(max(2, settings.database_pool_size))
        self.bodies = ConcurrencyLimit(_UNFINISHED_BODIES)
        self.body_s = _BODY_S
        self.streams = ConcurrencyLimit(settings.streams_per_user)
        self.wrong_logins = TokenBuckets(*_WRONG_LOGINS, clock)
        self.started_logins = TokenBuckets(*_STARTED_LOGINS, clock)
        self._suspects = KeyedSemaphore(1)
        self._clock = clock
        self._refused_until_s: dict[str, float] = {}  # streams of callers

    def demand_stream(self, key: str) -> None:
        """Raises ``TooManyRequests``, before any work is done, if a stream of the caller was refused just now."""
        if self._refused_until_s.get(key, 0.0) > self._clock():
            raise self._too_many_streams()

    def refuse_stream(self, key: str) -> TooManyRequests:
        """The refusal of a stream, which holds for a moment for others of the caller ``key``, too."""
        if len(self._refused_until_s) > _CALLERS:
            self._refused_until_s.clear()
        self._refused_until_s[key] = self._clock() + _REFUSED_STREAMS_S
        return self._too_many_streams()

    def _too_many_streams(self) -> TooManyRequests:
        return TooManyRequests(
            f"{self.streams.limit} streams of this user are open; close some, or follow several jobs by one stream of "
            "`GET /api/v1/events`. An admin may raise TRAINMASTER_STREAMS_PER_USER.",
            retry_after_s=_REFUSED_STREAMS_S,
        )

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

    def demand_login_start(self, connection: HTTPConnection) -> None:
        """Count a login that begins at a provider. Raises ``TooManyRequests``, so that no address floods providers."""
        address = address_of(connection.scope)
        wait_s = self.started_logins.wait_s(address)
        if wait_s:
            raise TooManyRequests("Too many logins were started from this address; wait.", retry_after_s=wait_s)
        self.started_logins.take(address)

    @asynccontextmanager
    async def login_attempt(self, connection: HTTPConnection) -> AsyncIterator[None]:
        """Around the check of a token or a login code, which raises ``Unauthenticated`` where it is wrong.

        Where many wrong ones come from an address, its checks wait for each other, so that guessing loads the database
        little. Right ones still pass: users behind one proxy share an address.

        Raises:
            TooManyRequests: the token or code is wrong, as were many from this address; or too many checks wait.
        """
        address = address_of(connection.scope)
        wait_s = self.wrong_logins.wait_s(address)
        if wait_s:
            await self._suspects.acquire(address)
        try:
            yield
        except Unauthenticated as wrong:
            self.wrong_logins.take(address)
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


def caller_key(scope: Scope, headers: Headers) -> str:
    """The token that is presented, by its digest, or else the address."""
    # The token alone: with what stands around it a caller could be many.
    token = headers.get("authorization", "").partition(" ")[2].strip()
    if not token:
        session = _SESSION.search(headers.get("cookie", ""))
        token = session[0] if session is not None else ""
    return hashlib.blake2b(token.encode(), digest_size=16).hexdigest() if token else address_of(scope)


def address_of(scope: Scope) -> str:
    client: tuple[str, int] | None = scope.get("client")
    return client[0] if client else ""
