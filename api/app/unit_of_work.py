"""The unit of work of a request, request coalescing, and the application context that handlers share.

The edge commits: a handler opens ``context.read()`` or ``context.write()`` once, passes the unit of work to its
service, and the block's end commits. Services never commit. Wake-ups of the scheduler are sent after the commit.

Request coalescing: concurrent requests of one group share one transaction instead of opening one each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter
from typing import Annotated, Any, Final, TypeVar, cast

from anyio import CapacityLimiter, to_thread
from fastapi import Depends, Request
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from starlette.requests import HTTPConnection

from api.app.cache import BudgetCache, CachedVolume, VolumeCache
from api.prometheus.recorder import RequestMetrics
from core.db.engine import SessionFactory, unit_of_work
from core.db.repositories.events import append_event
from core.domain.errors import Conflict
from core.settings import Settings
from core.storage.tree import Tree
from core.storage.volumes import boundaries_of, confined, tree_of
from core.wakeups import Wakeup
from core.work_queue import Worker, WorkQueue

Item = TypeVar("Item")
Answer = TypeVar("Answer")

# A larger batch would hold the locks of its shared rows for too long.
_BATCH_LIMIT: Final = 32
T = TypeVar("T")
# Threads share one interpreter: with 20 of them 32 clients got 400 submissions a second with a p99 of 250 ms, with 4
# to 8 of them 480 and 170 ms (2 cores, PostgreSQL, measured side by side). Further calls queue, first in, first out.
_BOUNDED_THREADS: Final = 5
# For health probes alone: they are answered while everything else waits.
_PROBE_THREADS: Final = 2


@dataclass(eq=False, slots=True)
class _Request:
    item: Any
    conflict_keys: Collection[Hashable]
    answer: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class RequestCoalescer:
    """Coalesces concurrent requests into batches, for one event loop.

    A request that arrives while its group is idle is answered at once; those that arrive while a batch is being
    answered form the next batch.
    """

    def __init__(self) -> None:
        self._queues: dict[Hashable, WorkQueue[_Request]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

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
        request = _Request(item, conflict_keys)
        queue = self._queues.get(group)
        if queue is None:
            queue = WorkQueue(batch_size=_BATCH_LIMIT, conflict_keys=attrgetter("conflict_keys"))
            self._queues[group] = queue
        worker = queue.add(request)
        if worker is not None:
            task = asyncio.create_task(self._serve(group, worker, handle_batch))
            self._tasks.add(task)  # the event loop keeps only a weak reference
            task.add_done_callback(self._tasks.discard)
        return cast("Answer", await request.answer)

    async def _serve(
        self, group: Hashable, worker: Worker, handle_batch: Callable[[Sequence[Any]], Awaitable[Sequence[Any]]]
    ) -> None:
        queue = self._queues[group]
        batch: list[_Request] = []
        try:
            while batch := queue.take(worker):
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
            for request in (*batch, *queue.drop_pending()):  # requests are left only where the server ends
                request.answer.cancel()


@dataclass(slots=True)
class UnitOfWork:
    """One transaction, its time, and the wake-ups to send after its commit. ``by_statement``: see ``write``."""

    session: Session
    now: datetime
    notifications: list[tuple[str, str]] = field(default_factory=list)
    by_statement: bool = False

    def notify(self, topic: str, key: str = "") -> None:
        """Wake the scheduler's loop for ``topic`` and ``key`` after the commit; not at all after a rollback."""
        if (topic, key) not in self.notifications:
            self.notifications.append((topic, key))

    def record_event(
        self,
        kind: str,
        actor: str,
        *,
        project_id: str | None = None,
        job_id: str | None = None,
        reason: str = "",
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Append an event of now to the history; see ``append_event``."""
        append_event(
            self.session,
            at=self.now,
            kind=kind,
            actor=actor,
            project_id=project_id,
            job_id=job_id,
            reason=reason,
            data=data,
        )

    def add_unique(self, row: object, sentence: str) -> None:
        """Insert the row. Raises ``Conflict`` with this sentence if another row has its name."""
        try:
            with self.session.begin_nested():
                self.session.add(row)
        except IntegrityError:
            raise Conflict(sentence, field="name") from None


@dataclass(frozen=True, slots=True)
class AppContext:
    """The objects that live as long as the application. Handlers get it with ``AppContextDep``."""

    settings: Settings
    sessions: SessionFactory
    wakeup: Wakeup
    clock: Callable[[], datetime]
    key: bytes  # signs attempt tokens, seals secrets
    request_metrics: RequestMetrics
    volumes: VolumeCache
    budgets: BudgetCache
    bounded_threads: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(_BOUNDED_THREADS))
    coalescer: RequestCoalescer = field(default_factory=RequestCoalescer)
    probe_threads: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(_PROBE_THREADS))

    def tree_of(self, volume: str) -> Tree | None:
        """The files of the volume; ``None`` if there is no such volume, or if only jobs can reach its files."""
        known = self.volumes.find(volume, self.clock())
        return None if known is None or known.root is None else tree_of(known)

    def confined(self, volume: str, path: str) -> tuple[Tree, str] | None:
        """The files that may be read for ``path`` on the volume, and the path among them: no link leads to another
        project's folder, nor out of a folder that is granted by itself. ``None``: as of ``tree_of``.

        Raises:
            LeavesVolume: a link on the way leads there.
        """
        known = self.volumes.find(volume, self.clock())
        if known is None or known.root is None:
            return None
        return confined(tree_of(known), path, self.boundaries_of(known, path))

    def boundaries_of(self, volume: CachedVolume, path: str) -> tuple[str, ...]:
        """Folders on the way to ``path`` that no link may leave."""
        prefixes = [grant.prefix for grant in volume.grants]
        return boundaries_of(path, prefixes, is_shared=volume.name == self.settings.default_volume)

    async def run_bounded(self, work: Callable[..., T], *args: object) -> T:
        """Run ``work(*args)`` in one of a few threads: for short transactions that arrive by the hundred."""
        return await to_thread.run_sync(work, *args, limiter=self.bounded_threads)

    @contextmanager
    def read(self) -> Iterator[UnitOfWork]:
        """A read-only, consistent transaction. Raises ``Unavailable`` while the database is away."""
        with unit_of_work(self.sessions, read_only=True) as session:
            yield UnitOfWork(session, self.clock())

    @contextmanager
    def write(self, *, by_statement: bool = False) -> Iterator[UnitOfWork]:
        """A transaction: committed at the block's end, rolled back by an error. Wake-ups are sent after the commit.

        ``by_statement``: each statement may be committed alone; see :func:`core.db.engine.unit_of_work`.
        """
        with unit_of_work(self.sessions, by_statement=by_statement) as session:
            work = UnitOfWork(session, self.clock(), by_statement=by_statement)
            yield work
        for topic, key in work.notifications:
            self.wakeup.notify(topic, key)


def get_app_context(request: HTTPConnection) -> AppContext:
    context: AppContext = request.app.state.context
    return context


async def _app_context(request: Request) -> AppContext:  # async: a plain function would cost a hop to the thread pool
    return get_app_context(request)


AppContextDep = Annotated[AppContext, Depends(_app_context)]
