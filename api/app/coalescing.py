"""Requests for the same thing that come in the same moment are answered together: one transaction instead of one each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

Item = TypeVar("Asked")
Answer = TypeVar("Answer")

# More would hold the rows that they share for long.
_AT_ONCE: Final = 32


@dataclass(eq=False, slots=True)
class _Pending:
    asked: Any
    names: Collection[Hashable]
    answer: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class RequestBatcher:
    """For one event loop. Who comes alone is answered at once; who comes meanwhile, with all who have come by then."""

    def __init__(self) -> None:
        self._lines: dict[Hashable, list[_Pending]] = {}
        self._turns: set[asyncio.Task[None]] = set()

    async def answer(
        self,
        line: Hashable,
        asked: Item,
        give: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]],
        *,
        names: Collection[Hashable] = (),
    ) -> Answer:
        """The answer to ``asked``.

        Args:
            line: who may be answered together; any one's ``give`` does for all of its line.
            give: the answers to several, in their order.
            names: of two who share one the second is answered after the first, not with it.

        Raises:
            Exception: what ``give`` raised, to all whom it should have answered.
        """
        mine = _Pending(asked, names)
        waiting = self._lines.get(line)
        if waiting is not None:
            waiting.append(mine)
        else:
            self._lines[line] = [mine]
            turn = asyncio.create_task(self._serve(line, give))
            self._turns.add(turn)  # the loop itself does not hold it
            turn.add_done_callback(self._turns.discard)
        return cast("Answer", await mine.answer)

    async def _serve(self, line: Hashable, give: Callable[[Sequence[Any]], Awaitable[Sequence[Any]]]) -> None:
        waiting = self._lines[line]
        served: list[_Pending] = []
        try:
            while waiting:
                served = _next(waiting)
                waiting[:] = [one for one in waiting if one not in served]
                try:
                    answers = await give([one.asked for one in served])
                except Exception as error:  # noqa: BLE001 (raised to each who asked)
                    for one in served:
                        if not one.answer.done():
                            one.answer.set_exception(error)
                    continue
                for one, answer in zip(served, answers, strict=True):
                    if not one.answer.done():  # who asked may be gone
                        one.answer.set_result(answer)
        finally:
            del self._lines[line]
            for one in (*served, *waiting):  # nobody waits still, but where the server ends
                one.answer.cancel()


def _next(waiting: Sequence[_Pending]) -> list[_Pending]:
    found: list[_Pending] = []
    seen: set[Hashable] = set()
    for one in waiting:
        if len(found) < _AT_ONCE and seen.isdisjoint(one.names):
            found.append(one)
        seen.update(one.names)  # also of who waits on: whoever comes behind is not answered before
    return found
