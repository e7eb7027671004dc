"""Sends the deliveries of one webhook: objects in parallel, the deliveries of one object one after another."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpcore

from core.outgoing.networks import CheckedBackend, OutboundNetworks, RefusedAddress

SEND_TIMEOUT_S: Final = 10.0
# Of one endpoint at once: the connections that a receiver has to bear.
_PARALLEL: Final = 16
# After so long no other delivery is begun: the results of the others are to be written.
_BEGIN_WITHIN_S: Final = 3.0
_EXCERPT_BYTES: Final = 1_000
_USER_AGENT: Final = "Trainmaster-Webhooks/1"


@dataclass(frozen=True, slots=True)
class WebhookMessage:
    """``key``: messages with the same key are sent in order; one that fails holds the later ones back."""

    id: int
    key: str
    body: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SendResult:
    """``error``: why it is not delivered; empty: it is."""

    status: int | None
    excerpt: str
    error: str
    duration_ms: int


async def send_all(
    url: str, messages: Sequence[WebhookMessage], networks: OutboundNetworks, keep_alive: Callable[[], None]
) -> dict[int, SendResult]:
    """The results by the ids of messages; a message without one was not sent.

    ``keep_alive``: called about once a second; what it raises ends all.
    """
    by_key: dict[str, list[WebhookMessage]] = {}
    for message in messages:
        by_key.setdefault(message.key, []).append(message)
    results: dict[int, SendResult] = {}
    places = asyncio.Semaphore(_PARALLEL)
    end_s = time.monotonic() + _BEGIN_WITHIN_S
    async with httpcore.AsyncConnectionPool(
        ssl_context=ssl.create_default_context(),
        max_connections=_PARALLEL,
        network_backend=CheckedBackend(networks),
    ) as pool:

        async def send_in_order(queue: Sequence[WebhookMessage]) -> None:
            for message in queue:
                async with places:
                    if time.monotonic() > end_s:
                        return
                    result = results[message.id] = await _send(pool, url, message)
                if result.error:
                    return

        async def renew() -> None:
            while True:
                await asyncio.sleep(1.0)
                keep_alive()

        sending = asyncio.gather(*(send_in_order(queue) for queue in by_key.values()))
        futures: list[asyncio.Future[Any]] = [asyncio.create_task(renew()), sending]
        done, _ = await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        for future in futures:
            future.cancel()
        await asyncio.gather(*futures, return_exceptions=True)
        for future in done:
            future.result()
    return results


async def _send(pool: httpcore.AsyncConnectionPool, url: str, message: WebhookMessage) -> SendResult:
    begin_s = time.monotonic()
    status, excerpt = None, b""
    headers = {**message.headers, "content-type": "application/json", "user-agent": _USER_AGENT}
    try:
        async with asyncio.timeout(SEND_TIMEOUT_S):
            # Redirects are not followed, and no proxy is used.
            async with pool.stream("POST", url, headers=list(headers.items()), content=message.body) as response:
                status = response.status
                async for chunk in response.aiter_stream():
                    excerpt += chunk
                    if len(excerpt) >= _EXCERPT_BYTES:
                        break
        error = "" if 200 <= status < 300 else _refusal(status)
    except TimeoutError:
        error = f"no complete response within {SEND_TIMEOUT_S:g} s"
    except RefusedAddress as refused:
        error = str(refused)
    except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError) as failure:
        error = f"{type(failure).__name__}: {failure}"
    text = excerpt[:_EXCERPT_BYTES].decode(errors="replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
    return SendResult(status, text, error[:_EXCERPT_BYTES], round((time.monotonic() - begin_s) * 1000))


def _refusal(status: int) -> str:
    if 300 <= status < 400:
        return f"status {status}: redirects are not followed; use the final URL"
    return f"status {status}"
