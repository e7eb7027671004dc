"""Commands to the executor about the replicas of one attempt: create several in parallel, stop, send a new world,
discard.

They are idempotent. Those about existing replicas are sent again after a while, as long as the engine shows no effect.

Replicas that the engine could not kill are reported once each, in the job's history where that is still written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, TypeVar

import structlog

from core import telemetry
from core.domain.errors import ExecutorError, ExecutorTryAgain
from core.domain.ids import AttemptId
from core.telemetry import SpanPlace
from executors.base import (
    ChangesWorlds,
    CreatesGangs,
    Executor,
    Observation,
    Phase,
    ReplicaKey,
    ReportsUnkilledReplicas,
)
from scheduler.control.attempts.attempt_snapshot import GangMember, stop_grace
from scheduler.control.attempts.launching.replica_orders import OrderContext, build_order, world_order
from scheduler.control.attempts.reconcile_result import ReconcilerCache
from scheduler.control.attempts.storage.attempt_loader import AttemptRows
from scheduler.control.context import ControlContext

log = structlog.get_logger(__name__)
T = TypeVar("T")

# Of a gang that the driver creates whole: the lease is renewed between two parts, and a part takes less than half of
# it.
_PART: Final = 32
# Stop is sent again at this interval, in case the engine lost it.
_STOP_AGAIN: Final = timedelta(seconds=5)
# The same of a new world. Its members show within a tenth of a second that they know it.
_TELL_AGAIN: Final = timedelta(seconds=2)
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


class ExecutorCommands:
    """The commands of one pass about existing replicas. ``cache``: when earlier passes sent which command."""

    def __init__(self, control: ControlContext, rows: AttemptRows, cache: ReconcilerCache) -> None:
        self.control = control
        self.job = rows.job
        self.attempt = rows.attempt
        self.cache = cache

    def stop(self, members: Sequence[GangMember]) -> None:
        """Stop them within their grace."""
        now = self.control.clock()
        grace = stop_grace(self.job.spec, self.attempt.stop)
        for member in members:
            key = self._key(member)
            last_sent = self.cache.stop_times.get(key)
            if last_sent is None or now - last_sent >= _STOP_AGAIN:
                self.control.executor.stop(key, grace=grace)
                self.cache.stop_times[key] = now

    def update_world(self, members: Sequence[GangMember]) -> None:
        """Send the newest world to running replicas; the engine shows which world each of them knows."""
        executor = self.control.executor
        if not members or not isinstance(executor, ChangesWorlds):
            return
        now = self.control.clock()
        due = [
            m
            for m in members
            if now - self.cache.world_update_times.get((m.id, self.attempt.world), _LONG_AGO) >= _TELL_AGAIN
        ]
        if not due:
            return
        # Other changes since their start, such as a removed secret or volume, do not concern running replicas.
        job = self.job
        order_context = OrderContext(job, self.attempt, {}, dict.fromkeys(job.spec.secrets, ""))
        for member in due:
            executor.change_world(world_order(self.control, order_context, member))
            self.cache.world_update_times[member.id, self.attempt.world] = now

    def discard(self, members: Sequence[GangMember], observations: Sequence[Observation]) -> None:
        """Kill what is left of replicas that the gang goes on without; again while the engine shows them alive."""
        executor = self.control.executor
        if not members or not isinstance(executor, ChangesWorlds):
            return
        now = self.control.clock()
        live = {o.key for o in observations if o.exit is None and o.phase is not Phase.LOST}
        for member in members:
            key = self._key(member)
            last_sent = self.cache.discard_times.get(key)
            if last_sent is None or (key in live and now - last_sent >= _STOP_AGAIN):
                executor.kill(key)
                self.cache.discard_times[key] = now

    def _key(self, member: GangMember) -> ReplicaKey:
        return ReplicaKey(self.job.id, self.attempt.id, member.role, member.index, member.generation)


def batch_size(control: ControlContext) -> int:
    """How many members :func:`create_batch` gets at once."""
    return _PART if isinstance(control.executor, CreatesGangs) else max(1, control.create_at_once)


def create_batch(
    control: ControlContext, order_context: OrderContext, members: Sequence[GangMember]
) -> list[ExecutorError | None]:
    """Create ``members`` in parallel; for each the error, if any."""
    place = SpanPlace(order_context.job.id, order_context.attempt.id)
    with telemetry.span("executor.create", place, replicas=len(members)):
        return _create_batch(control, order_context, members)


def _create_batch(
    control: ControlContext, order_context: OrderContext, members: Sequence[GangMember]
) -> list[ExecutorError | None]:
    executor = control.executor
    if isinstance(executor, CreatesGangs):
        return _create_whole(control, executor, order_context, members)

    def create(member: GangMember) -> ExecutorError | None:
        answer = _result_or_error(
            order_context, member, lambda: executor.create(build_order(control, order_context, member))
        )
        return answer if isinstance(answer, ExecutorError) else None

    if len(members) == 1:
        return [create(members[0])]
    with control.make_pool(len(members), thread_name_prefix="create") as pool:
        return list(pool.map(create, members))


def _create_whole(
    control: ControlContext, executor: CreatesGangs, order_context: OrderContext, members: Sequence[GangMember]
) -> list[ExecutorError | None]:
    built = [
        _result_or_error(order_context, member, partial(build_order, control, order_context, member))
        for member in members
    ]
    orders = [order for order in built if not isinstance(order, ExecutorError)]
    answer = _result_or_error(order_context, members[0], lambda: executor.create_all(orders)) if orders else ()
    results = iter([answer] * len(orders) if isinstance(answer, ExecutorError) else answer)
    return [order if isinstance(order, ExecutorError) else next(results) for order in built]


def _result_or_error(order_context: OrderContext, member: GangMember, work: Callable[[], T]) -> T | ExecutorError:
    """``work``'s result, or the error, with a sentence for the user."""
    try:
        return work()
    except ExecutorError as error:
        return error
    except Exception as error:
        log.exception("replica.create_failed", attempt=order_context.attempt.id, replica=member.name)
        return ExecutorTryAgain(
            f"The platform could not start it ({type(error).__name__}); the administrator finds why in the "
            "scheduler's log. It is tried again."
        )


def unkilled_replicas(executor: Executor, attempt_id: AttemptId) -> Sequence[str]:
    """A sentence for each. They stay until :func:`forget_unkilled_replicas`, as writing them down may fail."""
    return executor.unkilled_replicas(attempt_id) if isinstance(executor, ReportsUnkilledReplicas) else ()


def forget_unkilled_replicas(executor: Executor, attempt_id: AttemptId) -> None:
    """They are written down."""
    if isinstance(executor, ReportsUnkilledReplicas):
        executor.forget_unkilled_replicas(attempt_id)


def log_unkilled(executor: Executor, attempt_id: AttemptId) -> None:
    """Log those of an attempt whose end another process has written without knowing them, or that has no row."""
    for sentence in unkilled_replicas(executor, attempt_id):
        log.warning("replica.abandoned", attempt=attempt_id, why=sentence)
    forget_unkilled_replicas(executor, attempt_id)
