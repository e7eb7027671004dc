"""Coalescing of concurrent requests into batches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from api.app.unit_of_work import RequestCoalescer
from core.domain.errors import Unavailable


class BatchHandler:
    """Answers each item with twice its value, as soon as it may."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.may_answer = asyncio.Event()

    async def __call__(self, items: Sequence[int]) -> list[int]:
        self.batches.append(list(items))
        await self.may_answer.wait()
        if 13 in items:
            raise Unavailable("away")
        return [2 * item for item in items]


def test_requests_that_arrive_during_a_batch_form_the_next_batch() -> None:
    async def scene() -> None:
        coalescer, handler = RequestCoalescer(), BatchHandler()
        requests = [asyncio.create_task(coalescer.answer("study", number, handler)) for number in range(5)]
        other = asyncio.create_task(coalescer.answer("another study", 7, handler))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        handler.may_answer.set()
        assert await asyncio.gather(*requests, other) == [0, 2, 4, 6, 8, 14]
        assert await coalescer.answer("study", 5, handler) == 10  # answers are not cached
        assert max(handler.batches, key=len) == [0, 1, 2, 3, 4]
        assert [7] in handler.batches
        assert [5] in handler.batches

    asyncio.run(scene())


def test_requests_with_a_common_conflict_key_are_in_different_batches() -> None:
    async def scene() -> None:
        coalescer, handler = RequestCoalescer(), BatchHandler()
        handler.may_answer.set()
        names = ["ann", "bob", "ann", "eve", "ann"]
        requests = [
            coalescer.answer("study", number, handler, conflict_keys=[name]) for number, name in enumerate(names)
        ]
        assert await asyncio.gather(*requests) == [0, 2, 4, 6, 8]
        assert handler.batches == [[0, 1, 3], [2], [4]]

    asyncio.run(scene())


def test_a_failure_reaches_only_the_requests_of_its_batch() -> None:
    async def scene() -> None:
        coalescer, handler = RequestCoalescer(), BatchHandler()
        requests = [
            coalescer.answer("study", number, handler, conflict_keys=["same"] if number in (1, 2) else [])
            for number in (1, 13, 2)
        ]
        handler.may_answer.set()
        first, second, third = await asyncio.gather(*requests, return_exceptions=True)
        assert isinstance(first, Unavailable)
        assert isinstance(second, Unavailable)
        assert third == 4

    asyncio.run(scene())


def test_a_cancelled_request_does_not_affect_others() -> None:
    async def scene() -> None:
        coalescer, handler = RequestCoalescer(), BatchHandler()
        requests = [asyncio.create_task(coalescer.answer("study", number, handler)) for number in range(3)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        requests[0].cancel()
        handler.may_answer.set()
        with pytest.raises(asyncio.CancelledError):
            await requests[0]
        assert await asyncio.gather(*requests[1:]) == [2, 4]

    asyncio.run(scene())
