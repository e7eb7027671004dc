"""How a replica is ended: SIGTERM to its processes, a grace, then SIGKILL to all that is left."""

from __future__ import annotations

import os
import signal

from trainmaster_runtime import clock
from trainmaster_runtime.process import exits, procfs, tree

_PEERS_GRACE_S = 5.0
_DESCENDANTS_CHECK_S = 0.05

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster_runtime.log_writer import JobLog
    from trainmaster_runtime.process.exits import ReplicaEnd
    from trainmaster_runtime.record import StopRequest
    from trainmaster_runtime.replica.local_processes import LocalProcesses


class Termination:
    """Decides once why the replica ends, and sends the signals.

    Attributes:
        ending: why it is ended: stopped, deadline, out of memory …; ``None`` while it may go on.
        was_killed: it outlived its grace, or had none.
    """

    def __init__(self, stop: StopRequest, processes: LocalProcesses, log: JobLog) -> None:
        self._stop = stop
        self._processes = processes
        self._log = log
        self._kill_at: float | None = None
        self._are_descendants_signalled = False
        self.ending: ReplicaEnd | None = None
        self.was_killed = False

    @property
    def is_decided(self) -> bool:
        return self.ending is not None

    def on_stop(self, *_: object) -> None:
        """A stop request has come, or SIGTERM; also the signal's handler."""
        grace_s = self._stop.grace_s
        now = clock.monotonic()
        if self.is_decided or self._kill_at is not None:
            # Already ending: a shorter grace shortens it.
            self._kill_at = now + grace_s if self._kill_at is None else min(now + grace_s, self._kill_at)
            return
        self.ending = self._stop.ending()
        self._ask_to_end(grace_s)

    def check_stop_request(self) -> None:
        if self._stop.is_new():
            self.on_stop()

    def end(self, ending: ReplicaEnd, grace_s: float) -> None:
        """End the replica for this reason; without a grace it is killed at once."""
        self.ending = ending
        self._log.say(ending.sentence)
        if grace_s > 0:
            self._ask_to_end(grace_s)
        else:
            self._kill_at = clock.monotonic()
            self._kill()

    def signal_started(self) -> None:
        """Repeat SIGTERM for processes that were being started when the stop came."""
        if self.is_decided and self._kill_at is not None:
            self._ask_to_end(self._kill_at - clock.monotonic())

    def awaits_descendants(self) -> bool:
        """When stopping, processes that the command left behind have the rest of the grace; otherwise they end with
        it.
        """
        return self._kill_at is not None and not self.was_killed and bool(procfs.descendants(os.getpid()))

    def next_check_at(self, now: float) -> float | None:
        """When :meth:`check` has something to do; monotonic."""
        kill_at = None if self.was_killed else self._kill_at
        descendants_at = (
            now + _DESCENDANTS_CHECK_S if self._kill_at is not None and self._processes.have_ended else None
        )
        times = (kill_at, descendants_at, self._processes.end_peers_at)
        return min((time for time in times if time is not None), default=None)

    def check(self, now: float) -> None:
        """Send the signals that are due."""
        processes = self._processes
        if processes.end_peers_at is not None and now >= processes.end_peers_at:
            processes.end_peers_at = None
            if self._kill_at is None and not processes.have_ended:
                failed = processes.first_failure
                self._log.say(
                    "process %d of %d ended with %s: the others are ended"
                    % (failed.rank if failed else 0, len(processes), exits.describe(failed.code if failed else 1))
                )
                self._ask_to_end(_PEERS_GRACE_S)
        if self._kill_at is None:
            return
        if not self._are_descendants_signalled and processes.have_ended:
            self._are_descendants_signalled = True
            for pid in procfs.descendants(os.getpid()):
                tree.send(pid, signal.SIGTERM)
        if now >= self._kill_at and not self.was_killed:
            self._kill()

    def _ask_to_end(self, grace_s: float) -> None:
        self._kill_at = clock.monotonic() + grace_s
        self._processes.ask_to_end()

    def _kill(self) -> None:
        self.was_killed = True
        self._processes.note_ended(tree.kill_all(), is_ending=self.is_decided)
