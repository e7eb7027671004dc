"""Creating replicas of one attempt through the executor, several in parallel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

import structlog

from core.domain.errors import ExecutorError, ExecutorTryAgain
from executors.base import CreatesGangs
from scheduler.control.attempts.attempt_snapshot import GangMember
from scheduler.control.attempts.launching.replica_orders import OrderContext, build_order
from scheduler.control.context import ControlContext

log = structlog.get_logger(__name__)
T = TypeVar("T")

# Of a gang that the driver creates whole: the lease is renewed between two parts, and a part takes less than half of
# it.
_PART: Final = 32


def batch_size(control: ControlContext) -> int:
    """How many members :func:`create_batch` gets at once."""
    return _PART if isinstance(control.executor, CreatesGangs) else max(1, control.create_at_once)


def create_batch(
    control: ControlContext, order_context: OrderContext, members: Sequence[GangMember]
) -> list[ExecutorError | None]:
    """Create ``members`` in parallel; for each the error, if any."""
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
    with ThreadPoolExecutor(len(members), thread_name_prefix="create") as pool:
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
