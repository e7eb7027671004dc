"""The driver of the fake engine: one instance per control plane, each with its own faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Final, TypeVar

from core.domain.errors import ExecutorTryAgain
from core.domain.ids import AttemptId
from core.domain.jobs.layout import Layout
from executors.base import NodeInfo, Observation, ReplicaKey, ReplicaOrder
from executors.fake.engine import FakeEngine
from executors.fake.faults import FaultSource, InjectedFault, ProcessKilled, no_faults

T = TypeVar("T")
_AWAY: Final = "The engine did not answer; try again."


class FakeExecutor:
    """Satisfies :class:`executors.base.Executor` over ``engine``.

    Args:
        faults: asked once per call.
        late_by: virtual time until a late call, or the second half of a doubled one, takes effect.
    """

    name = "fake"
    shares_hosts = True

    def __init__(
        self, engine: FakeEngine, faults: FaultSource = no_faults, *, late_by: timedelta = timedelta(seconds=5)
    ) -> None:
        self.engine = engine
        self.faults = faults
        self.late_by = late_by

    def nodes(self, *, database_id: str = "") -> Sequence[NodeInfo]:
        return self._read("nodes", "", lambda: self.engine.nodes(database_id))

    def assign_addresses(
        self,
        layout: Layout,
        taken_ports: frozenset[int],
        attempt_id: AttemptId,  # noqa: ARG002
        *,
        world: int = 1,  # noqa: ARG002 - ports come again only when all others were given out
    ) -> Layout:
        return self._read("assign_addresses", "", lambda: self.engine.assign(layout, taken_ports))

    def create(self, order: ReplicaOrder) -> None:
        self._write("create", str(order.key), lambda: self.engine.create(order))

    def change_world(self, order: ReplicaOrder) -> None:
        self._write("change_world", str(order.key), lambda: self.engine.change_world(order))

    def kill(self, key: ReplicaKey) -> None:
        self._write("give_up", str(key), lambda: self.engine.stop(key, timedelta()))

    def stop(self, key: ReplicaKey, *, grace: timedelta) -> None:
        self._write("stop", str(key), lambda: self.engine.stop(key, grace))

    def observe(self, attempt_id: AttemptId, *, fresh: bool = False) -> Sequence[Observation]:  # noqa: ARG002 (always)
        return self._read("observe", attempt_id, lambda: self.engine.observe(attempt_id))

    def attempts(self) -> Mapping[AttemptId, str]:
        return self._read("attempts", "", self.engine.attempts)

    def remove(self, attempt_id: AttemptId) -> None:
        self._write("remove", attempt_id, lambda: self.engine.remove(attempt_id))

    def _read(self, call: str, subject: str, effect: Callable[[], T]) -> T:
        match self.faults(call, subject):
            case InjectedFault.BEFORE | InjectedFault.AFTER:
                raise ExecutorTryAgain(_AWAY)
            case InjectedFault.KILLED_BEFORE | InjectedFault.KILLED_AFTER:
                raise ProcessKilled(call)
            case InjectedFault.NONE | InjectedFault.TWICE | InjectedFault.LATE:
                return effect()

    def _write(self, call: str, subject: str, effect: Callable[[], None]) -> None:
        match self.faults(call, subject):
            case InjectedFault.NONE:
                effect()
            case InjectedFault.BEFORE:
                raise ExecutorTryAgain(_AWAY)
            case InjectedFault.AFTER:
                effect()
                raise ExecutorTryAgain(_AWAY)
            case InjectedFault.TWICE:
                effect()
                self.engine.later(self.late_by, _ignoring_errors(effect))
            case InjectedFault.LATE:
                self.engine.later(self.late_by, _ignoring_errors(effect))
                raise ExecutorTryAgain(_AWAY)
            case InjectedFault.KILLED_BEFORE:
                raise ProcessKilled(call)
            case InjectedFault.KILLED_AFTER:
                effect()
                raise ProcessKilled(call)


def _ignoring_errors(effect: Callable[[], None]) -> Callable[[], None]:
    """``effect`` without its errors: the caller of a late effect is gone."""

    def call() -> None:
        try:
            effect()
        except Exception:  # noqa: BLE001, S110 - the caller is long gone; an engine answers into the void
            pass

    return call
