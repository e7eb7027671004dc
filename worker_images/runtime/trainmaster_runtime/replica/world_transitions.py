"""Takes the processes of an elastic gang's replica from world to world, while the replica runs."""

from __future__ import annotations

import os
import signal

from trainmaster_runtime import clock, sidecars
from trainmaster_runtime.prepare import write_files
from trainmaster_runtime.process import tree
from trainmaster_runtime.process.exits import ReplicaEnd
from trainmaster_runtime.replica.worlds import hold_s

CHECK_S = 0.05
# For processes that are started again in place, from SIGTERM to SIGKILL: their peers wait for them.
_RESTART_GRACE_S = 5.0

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from trainmaster_runtime.log_writer import JobLog
    from trainmaster_runtime.order import RuntimeOrder
    from trainmaster_runtime.prepare import PreparedReplica
    from trainmaster_runtime.record import StateFolder
    from trainmaster_runtime.replica.local_processes import LocalProcesses
    from trainmaster_runtime.replica.termination import Termination
    from trainmaster_runtime.replica.worlds import WorldChanges


class WorldTransitions:
    """Enters newer worlds; restarts the processes in them where they do not change worlds themselves."""

    def __init__(
        self,
        order: RuntimeOrder,
        prepared: PreparedReplica,
        worlds: WorldChanges,
        processes: LocalProcesses,
        termination: Termination,
        status: StatusWriter,
        log: JobLog,
    ) -> None:
        self._order = order
        self._prepared = prepared
        self._worlds = worlds
        self._processes = processes
        self._termination = termination
        self._status = status
        self._log = log
        self._hold_until: float | None = None

    def wait_for_first_world(self, check_stop: Callable[[float], None]) -> None:
        """A replica that joins a gang with processes per world starts nothing before its first world."""
        worlds = self._worlds
        if not worlds.is_joining or self._order.joins_warm:
            return
        self._status.set_pending("Waiting for its place in the gang.", worlds.facts())
        worlds.show()
        while worlds.is_joining:
            check_stop(CHECK_S)
            update = worlds.newer_world()
            if update is not None:
                self._enter(update)

    def check(self, now: float) -> None:
        """Enter the newest world, if there is one. ``now`` is monotonic."""
        worlds, processes = self._worlds, self._processes
        update = worlds.newer_world()
        if update is not None:
            try:
                self._enter(update)
            except OSError as error:
                sentence = "World %s could not be entered: %s." % (update["world"], error)
                self._termination.end(ReplicaEnd("start_failed", None, sentence), 0.0)
                return
            if worlds.keeps_processes() and not processes.have_ended:
                self._status.set_running()
                sidecars.serve_rendezvous({**self._order.env, **self._order.process_env[0]}, self._log)
            elif processes.restart_by is None and not (processes.have_ended and processes.first_failure is None):
                self._log.say("world %d: the command is started again in place" % worlds.number)
                processes.restart_by = now + _RESTART_GRACE_S
                processes.ask_to_end()
        elif any(self._status.facts.get(name) != fact for name, fact in worlds.facts().items()):
            self._status.set_running()
        if processes.restart_by is not None:
            if not processes.have_ended and now >= processes.restart_by:
                processes.note_ended(tree.kill_all(), is_ending=True)
            if processes.have_ended:
                self._restart()

    def awaits_world(self) -> bool:
        """Whether, by the log, another replica's failure caused this one: then the gang may go on without that
        replica.
        """
        if self._termination.is_decided:
            return False
        if self._processes.restart_by is not None:
            return True
        failed = self._processes.first_failure
        if failed is None:
            return False
        if self._hold_until is None:
            self._processes.drain()
            # What goes from world to world by itself has waited already.
            was_killed = failed.was_signalled and failed.code != 128 + signal.SIGABRT
            hold_time_s = 0.0 if self._worlds.keeps_processes() else hold_s(self._log.tail(), was_killed=was_killed)
            self._hold_until = clock.monotonic() + hold_time_s
            if hold_time_s:
                self._status.set_running("It failed, and waits whether the gang goes on without a lost peer.")
        return clock.monotonic() < self._hold_until

    def _enter(self, update: dict[str, Any]) -> None:
        self._worlds.enter(update)
        self._worlds.publish()
        write_files(self._order, os.path.dirname(self._prepared.job_folder))

    def _restart(self) -> None:
        """Start the command again, in the entered world."""
        processes = self._processes
        processes.discard()
        self._hold_until = None
        self._worlds.forget_processes()
        programs = self._prepared.programs(self._order)
        error = processes.start(programs, self._prepared)
        if error is not None:
            self._termination.end(ReplicaEnd(error.cause, error.exit_code, error.sentence), 0.0)
            return
        if self._termination.is_decided:
            # Asked to stop between the old processes and these.
            processes.ask_to_end()
        self._status.facts.update(pid=processes.pids[0], pids=processes.pids)
        self._status.set_running()
        sidecars.serve_rendezvous(programs[0].env, self._log)


class StatusWriter:
    """Writes the replica's phase, detail and facts as they change. ``worlds``: of an elastic gang."""

    def __init__(self, state: StateFolder) -> None:
        self._state = state
        self._started_at = ""
        self.facts: dict[str, Any] = {}
        self.worlds: WorldChanges | None = None

    def set_pending(self, detail: str, facts: dict[str, Any] | None = None) -> None:
        self._state.write_status(phase="pending", detail=detail, **({} if facts is None else {"facts": facts}))

    def set_running(self, detail: str = "") -> None:
        """Its processes run; one that joins an elastic gang waits for its world still."""
        if self.worlds is not None:
            self.facts.update(self.worlds.facts())
            self.worlds.show()
            if self.worlds.is_joining:
                self.set_pending("Waiting for its place in the gang.", self.facts)
                return
        self._started_at = self._started_at or clock.stamp(clock.now())
        self._state.write_status(phase="running", detail=detail, started_at=self._started_at, facts=self.facts)
