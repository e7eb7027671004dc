"""Requests for the same thing that come in the same moment."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from api.app.coalescing import RequestBatcher
from core.domain.errors import Unavailable


class Giver:
    """Answers each question with itself doubled, when it is let."""

    def __init__(self) -> None:
        self.rounds: list[list[int]] = []
        self.may_answer = asyncio.Event()

    async def __call__(self, asked: Sequence[int]) -> list[int]:
        self.rounds.append(list(asked))
        await self.may_answer.wait()
        if 13 in asked:
            raise Unavailable("away")
        return [2 * one for one in asked]


def test_who_comes_while_one_is_answered_is_answered_with_all_others_who_did() -> None:
    async def scene() -> None:
        together, give = RequestBatcher(), Giver()
        asks = [asyncio.create_task(together.answer("study", number, give)) for number in range(5)]
        other = asyncio.create_task(together.answer("another study", 7, give))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        give.may_answer.set()
        assert await asyncio.gather(*asks, other) == [0, 2, 4, 6, 8, 14]
        assert await together.answer("study", 5, give) == 10  # nothing is kept
        assert max(give.rounds, key=len) == [0, 1, 2, 3, 4]
        assert [7] in give.rounds
        assert [5] in give.rounds

    asyncio.run(scene())


def test_of_two_with_one_name_the_second_is_answered_after_the_first() -> None:
    async def scene() -> None:
        together, give = RequestBatcher(), Giver()
        give.may_answer.set()
        names = ["ann", "bob", "ann", "eve", "ann"]
        asks = [together.answer("study", number, give, names=[name]) for number, name in enumerate(names)]
        assert await asyncio.gather(*asks) == [0, 2, 4, 6, 8]
        assert give.rounds == [[0, 1, 3], [2], [4]]

    asyncio.run(scene())


def test_a_failure_is_told_to_all_whom_it_hit_and_to_nobody_else() -> None:
    async def scene() -> None:
        together, give = RequestBatcher(), Giver()
        asks = [
            together.answer("study", number, give, names=["same"] if number in (1, 2) else []) for number in (1, 13, 2)
        ]
        give.may_answer.set()
        first, second, third = await asyncio.gather(*asks, return_exceptions=True)
        assert isinstance(first, Unavailable)
        assert isinstance(second, Unavailable)
        assert third == 4

    asyncio.run(scene())


def test_who_gives_up_leaves_the_others_their_answers() -> None:
    async def scene() -> None:
        together, give = RequestBatcher(), Giver()
        asks = [asyncio.create_task(together.answer("study", number, give)) for number in range(3)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asks[0].cancel()
        give.may_answer.set()
        with pytest.raises(asyncio.CancelledError):
            await asks[0]
        assert await asyncio.gather(*asks[1:]) == [2, 4]

    asyncio.run(scene())
