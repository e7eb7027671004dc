"""The driver of the fake engine, one instance per control plane, and the faults that a test injects into its calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from random import Random  # noqa: TID251 - the generator is an argument, as the ban asks
from typing import Final, TypeVar

from core.domain.errors import ExecutorTryAgain
from core.domain.ids import AttemptId
from core.domain.jobs.layout import Layout
from executors.base import NodeInfo, Observation, ReplicaKey, ReplicaOrder
from executors.fake.engine import FakeEngine


class InjectedFault(StrEnum):
    """One call's fate. ``LATE`` and ``TWICE`` are for calls that change something; others read them as ``NONE``."""

    NONE = "none"
    BEFORE = "before"  # ExecutorTryAgain, and nothing was done
    AFTER = "after"  # ExecutorTryAgain, yet it was done
    TWICE = "twice"  # done now and once more later, when the caller has long gone on
    LATE = "late"  # ExecutorTryAgain, and it is done later
    KILLED_BEFORE = "killed_before"  # the calling process dies before the effect …
    KILLED_AFTER = "killed_after"  # … or right after it


class ProcessKilled(BaseException):
    """The control plane's process died here. Not an ``Exception``: no edge may swallow it, as none survives a kill."""


# (name of the call, what it is about as text) -> fate
FaultSource = Callable[[str, str], InjectedFault]


def no_faults(call: str, subject: str) -> InjectedFault:  # noqa: ARG001 - the protocol's shape
    return InjectedFault.NONE


class SeededFaults:
    """Draws fates by weight; the same generator state gives the same fates. ``is_on = False`` ends all trouble."""

    def __init__(self, random: Random, weights: Mapping[InjectedFault, float]) -> None:
        self._random = random
        self._fates = list(weights)
        self._weights = [weights[fate] for fate in self._fates]
        self.is_on = True

    def __call__(self, call: str, subject: str) -> InjectedFault:  # noqa: ARG002 - the protocol's shape
        if not self.is_on:
            return InjectedFault.NONE
        remainder = max(0.0, 1.0 - sum(self._weights))
        return self._random.choices([*self._fates, InjectedFault.NONE], [*self._weights, remainder])[0]


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
