"""Request coalescing: concurrent requests of one group share one transaction instead of opening one each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

Item = TypeVar("Item")
Answer = TypeVar("Answer")

# A larger batch would hold the locks of its shared rows for too long.
_BATCH_LIMIT: Final = 32


@dataclass(eq=False, slots=True)
class _Pending:
    item: Any
    conflict_keys: Collection[Hashable]
    answer: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class RequestBatcher:
    """Batches concurrent requests, for one event loop.

    A request that arrives while its group is idle is answered at once; those that arrive while a batch is being
    answered form the next batch.
    """

    def __init__(self) -> None:
        self._queues: dict[Hashable, list[_Pending]] = {}
        self._workers: set[asyncio.Task[None]] = set()

    async def answer(
        self,
        group: Hashable,
        item: Item,
        handle_batch: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]],
        *,
        conflict_keys: Collection[Hashable] = (),
    ) -> Answer:
        """The answer to ``item``.

        Args:
            group: requests of one group may share a batch; each passes an equivalent ``handle_batch``.
            item: the request.
            handle_batch: answers several items, in their order.
            conflict_keys: two requests with a common key are answered in different batches, in their order of arrival.

        Raises:
            Exception: what ``handle_batch`` raised; every request of that batch gets it.
        """
        request = _Pending(item, conflict_keys)
        queue = self._queues.get(group)
        if queue is not None:
            queue.append(request)
        else:
            self._queues[group] = [request]
            worker = asyncio.create_task(self._serve(group, handle_batch))
            self._workers.add(worker)  # the event loop keeps only a weak reference
            worker.add_done_callback(self._workers.discard)
        return cast("Answer", await request.answer)

    async def _serve(self, group: Hashable, handle_batch: Callable[[Sequence[Any]], Awaitable[Sequence[Any]]]) -> None:
        queue = self._queues[group]
        batch: list[_Pending] = []
        try:
            while queue:
                batch = _next_batch(queue)
                queue[:] = [request for request in queue if request not in batch]
                try:
                    answers = await handle_batch([request.item for request in batch])
                except Exception as error:  # noqa: BLE001 (raised to each requester)
                    for request in batch:
                        if not request.answer.done():
                            request.answer.set_exception(error)
                    continue
                for request, answer in zip(batch, answers, strict=True):
                    if not request.answer.done():  # the requester may have gone
                        request.answer.set_result(answer)
        finally:
            del self._queues[group]
            for request in (*batch, *queue):  # requests are left only where the server ends
                request.answer.cancel()


def _next_batch(queue: Sequence[_Pending]) -> list[_Pending]:
    batch: list[_Pending] = []
    taken: set[Hashable] = set()
    for request in queue:
        if len(batch) < _BATCH_LIMIT and taken.isdisjoint(request.conflict_keys):
            batch.append(request)
        taken.update(request.conflict_keys)  # also of requests left for later: none may overtake them
    return batch
