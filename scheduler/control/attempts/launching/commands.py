"""Idempotent commands to the executor about existing replicas: stop, send a new world, discard.

Each is sent again after a while, as long as the engine shows no effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from executors.base import ChangesWorlds, Observation, Phase, ReplicaKey
from scheduler.control.attempts.attempt_snapshot import GangMember, stop_grace
from scheduler.control.attempts.launching.replica_orders import OrderContext, world_order
from scheduler.control.attempts.reconcile_result import ReconcilerCache
from scheduler.control.attempts.storage.attempt_loader import AttemptRows
from scheduler.control.context import ControlContext

# Stop is sent again at this interval, in case the engine lost it.
_STOP_AGAIN: Final = timedelta(seconds=5)
# The same of a new world. Its members show within a tenth of a second that they know it.
_TELL_AGAIN: Final = timedelta(seconds=2)
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


class ExecutorCommands:
    """The commands of one pass. ``cache``: when earlier passes sent which command."""

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

    def discard(self, members: Sequence[GangMember], seen: Sequence[Observation]) -> None:
        """Kill what is left of replicas that the gang goes on without; again while the engine shows them alive."""
        executor = self.control.executor
        if not members or not isinstance(executor, ChangesWorlds):
            return
        now = self.control.clock()
        live = {o.key for o in seen if o.exit is None and o.phase is not Phase.LOST}
        for member in members:
            key = self._key(member)
            last_sent = self.cache.discard_times.get(key)
            if last_sent is None or (key in live and now - last_sent >= _STOP_AGAIN):
                executor.kill(key)
                self.cache.discard_times[key] = now

    def _key(self, member: GangMember) -> ReplicaKey:
        return ReplicaKey(self.job.id, self.attempt.id, member.role, member.index, member.generation)
