"""One replica from order to exit record."""

from __future__ import annotations

import errno
import os
import signal

from trainmaster_runtime import clock, sidecars
from trainmaster_runtime.log_writer import JobLog
from trainmaster_runtime.prepare import OUTPUT, NotStarted, PreparedReplica, mark_end, prepare
from trainmaster_runtime.process import exits, tree
from trainmaster_runtime.process.exits import ReplicaEnd
from trainmaster_runtime.record import StopRequest, read_text, write_copy
from trainmaster_runtime.replica import local_process, world_transitions
from trainmaster_runtime.replica.limits import Limits
from trainmaster_runtime.replica.local_process import UNKNOWN_CODE
from trainmaster_runtime.replica.local_processes import LocalProcesses
from trainmaster_runtime.replica.outputs import Outputs
from trainmaster_runtime.replica.peer_connections import PeerConnections
from trainmaster_runtime.replica.termination import Termination
from trainmaster_runtime.replica.world_transitions import StatusWriter, WorldTransitions
from trainmaster_runtime.replica.worlds import WorldChanges

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster_runtime.order import RuntimeOrder
    from trainmaster_runtime.reports.reporter import Reporter


class EndConditions:
    """Checked in the run's loop. ``started_at``: monotonic. ``reporter``: ``None`` where no API is."""

    def __init__(
        self,
        order: RuntimeOrder,
        limits: Limits,
        termination: Termination,
        *,
        started_at: float,
        reporter: Reporter | None,
    ) -> None:
        self._order = order
        self._limits = limits
        self._termination = termination
        self._deadline = None if order.deadline_s is None else started_at + order.deadline_s
        self._reporter = reporter

    def next_check_at(self) -> float | None:
        """When a check may find something; monotonic."""
        deadline = None if self._termination.is_decided else self._deadline
        return min((time for time in (deadline, self._limits.check_at) if time is not None), default=None)

    def check(self, now: float) -> None:
        """End the replica if a condition is met and nothing else has ended it before. ``now`` is monotonic."""
        termination = self._termination
        if self._deadline is not None and now >= self._deadline and not termination.is_decided:
            sentence = "It ran longer than its `max_run_time` of %g s." % (self._order.deadline_s or 0)
            termination.end(ReplicaEnd("deadline", None, sentence), self._order.stop_grace_s)
        if self._reporter is not None and self._reporter.has_attempt_ended and not termination.is_decided:
            sentence = (
                "The platform says that this attempt has ended, as when its node was cut off and the job went on "
                "elsewhere: the command is ended."
            )
            termination.end(ReplicaEnd("stopped", None, sentence), self._order.stop_grace_s)
        if self._limits.check_at is not None and now >= self._limits.check_at:
            ending = self._limits.check(now)
            if ending is not None and not termination.is_decided:
                termination.end(ending, 0.0)


_CHECK_S = 1.0
_LOGS = "/.trainmaster/logs"
_TRACE_CONTEXT = "TRACEPARENT"  # there, when traces are exported
# A server that is away may come back; a right that is missing stays so.
_LASTING = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster_runtime.order import RuntimeOrder
    from trainmaster_runtime.record import StateFolder
    from trainmaster_runtime.reports.reporter import Reporter
    from trainmaster_runtime.warm.child import WarmFork


class StopRequested(Exception):
    """A stop request while none of the user's processes runs yet."""


class ReplicaRun:
    """Runs the order. One object, one run, in the main thread."""

    def __init__(
        self, order: RuntimeOrder, state: StateFolder, *, token_path: str, warm: WarmFork | None = None
    ) -> None:
        self._order = order
        self._state = state
        self._token = read_text(token_path)
        self._output = OUTPUT if order.view == "as_is" else order.source_of(OUTPUT)
        folder = state.path if self._output is None else self._output + _LOGS
        self._log = JobLog(folder + "/" + order.log_name, order.log_limit_bytes)
        self._log.mask(order.env.get(name, "") for name in order.secret_names)
        # As the job sees it: users need not know the host's path.
        self._log_shown = OUTPUT + _LOGS + "/" + order.log_name
        self._outputs = Outputs(self._log)
        self._processes = LocalProcesses(self._outputs, self._log, exit_grace_s=order.exit_grace_s, warm=warm)
        self._stop = StopRequest(state, order.request_path, order.stop_grace_s)
        self._termination = Termination(self._stop, self._processes, self._log)
        self._status = StatusWriter(state)
        self._prepared: PreparedReplica | None = None
        self._began_at = clock.now()
        self._started_at: float | None = None
        self._reporter: Reporter | None = None
        self._peers: PeerConnections | None = None
        signal.set_wakeup_fd(self._outputs.wake_fd, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._termination.on_stop)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))

    def run(self) -> int:
        """Run to the end and write the exit record; returns the exit code (1 if there is none)."""
        try:
            ending = self._run()
        except NotStarted as error:
            ending = error.ending
            self._log.say(ending.sentence)
        except StopRequested:
            ending = self._stop.ending()
            ending.sentence += " The command was not started."
        except Exception as error:  # noqa: BLE001 - the edge: whatever happens here, an exit record is written
            ending = ReplicaEnd("unknown", None, "The runtime failed: %s: %s." % (type(error).__name__, error))
            self._log.say(ending.sentence)
            tree.kill_all()
        if self._prepared is not None:
            self._prepared.groups.close()
        facts = dict(self._status.facts)
        if self._log.lost_bytes:
            facts["log_bytes_lost"] = self._log.lost_bytes
        mark_end(self._order, has_ended=True)
        record = ending.to_json(at=clock.stamp(clock.now()), log_tail=self._log.tail(), facts=facts)
        self._state.write_exit(record)
        if self._order.termination_path is not None:
            write_copy(self._order.termination_path, record)
        if self._reporter is not None:
            self._send_last_reports(self._reporter)
        return 1 if ending.code is None else ending.code

    def _send_last_reports(self, reporter: Reporter) -> None:
        """The job has ended and its exit is recorded: a signal now only shortens the reports."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: reporter.hurry())
        ending = self._termination.ending
        if self._started_at is not None and _TRACE_CONTEXT in self._order.env:
            reporter.add_progress({"spans": self._spans(self._started_at)})
        reporter.finish(self._has_new_stop_request, is_stopped=ending is not None and ending.cause == "stopped")

    def _spans(self, started_at: float) -> dict[str, list[float]]:
        """For the job's trace: begin and end, seconds since 1970."""
        spans = {"prepare": [self._began_at, started_at], "command": [started_at, clock.now()]}
        if self._outputs.first_line_at is not None:
            spans["first line"] = [started_at, self._outputs.first_line_at]
        return spans

    def _has_new_stop_request(self) -> bool:
        try:
            return self._stop.is_new()
        except OSError:  # no room for the request, which is old by now
            return True

    def _run(self) -> ReplicaEnd:
        order, log = self._order, self._log
        if self._stop.is_there:
            raise StopRequested
        if log.failure is not None and not log.is_disk_full:
            cause = "start_refused" if log.failure.errno in _LASTING else "start_failed"
            sentence = "The log %s cannot be written (%s); check the output's volume."
            raise NotStarted(ReplicaEnd(cause, None, sentence % (self._log_shown, log.failure.strerror)))
        self._prepared = prepared = prepare(order, self._state, self._token, log, self._check_stop)
        prepared.groups.limit(
            cpu_milli=order.cpu_limit_milli, memory_bytes=order.memory_limit_bytes, pids=order.pids_limit
        )
        transitions = self._join_world(prepared)
        self._status.set_pending("Starting the command.")
        programs = prepared.programs(order)
        limits = Limits(order, prepared)
        error = self._processes.start(programs, prepared)
        if error is not None:
            log.say(error.sentence)
            tree.kill_all()
            return ReplicaEnd(error.cause, error.exit_code, error.sentence)
        self._termination.signal_started()
        self._started_at = clock.now()
        started_at = clock.monotonic()
        limits.start(started_at, log)
        self._set_running(prepared, limits)
        self._reporter = sidecars.start_reporter(order, prepared, self._state, self._token, log, self._output)
        if self._reporter is not None:
            self._outputs.note = self._reporter.note
        sidecars.serve_rendezvous(programs[0].env, log)
        conditions = EndConditions(order, limits, self._termination, started_at=started_at, reporter=self._reporter)
        self._peers = peers = PeerConnections(
            order, programs[0].env, log, started_at=started_at, report_path=prepared.job_folder + "/report.jsonl"
        )
        self._loop(conditions, transitions)
        if not self._termination.is_decided and self._processes.first_failure is None:
            peers.finish(clock.monotonic())
        return self._ending(limits)

    def _check_stop(self, wait_s: float) -> None:
        self._outputs.wait_for_signal(wait_s)
        self._termination.check_stop_request()
        if self._termination.is_decided:
            raise StopRequested

    def _join_world(self, prepared: PreparedReplica) -> WorldTransitions | None:
        """The world of an elastic gang's replica, once it has one; ``None`` for other gangs."""
        if self._order.world is None:
            return None
        # Where an executor sees no status: a joining replica learns from the others' folder how they change worlds.
        shared = os.path.dirname(self._log_shown) if self._order.view == "as_is" else None
        self._status.worlds = worlds = WorldChanges(self._order, self._state, prepared.job_folder, shared)
        worlds.publish()
        transitions = WorldTransitions(
            self._order, prepared, worlds, self._processes, self._termination, self._status, self._log
        )
        transitions.wait_for_first_world(self._check_stop)
        return transitions

    def _set_running(self, prepared: PreparedReplica, limits: Limits) -> None:
        pids = self._processes.pids
        self._status.facts.update(
            pid=pids[0], pids=pids, isolation=prepared.isolation, limits=limits.enforcers(), log=self._log_shown
        )
        if self._processes.start_method:
            self._status.facts["start"] = self._processes.start_method
        self._status.set_running()

    def _loop(self, conditions: EndConditions, transitions: WorldTransitions | None) -> None:
        processes, termination = self._processes, self._termination
        check_s = _CHECK_S if transitions is None else world_transitions.CHECK_S
        while (
            not processes.have_ended
            or termination.awaits_descendants()
            or (transitions is not None and transitions.awaits_world())
        ):
            now = clock.monotonic()
            times = (now + check_s, termination.next_check_at(now), conditions.next_check_at())
            self._outputs.wait(max(0.0, min(time for time in times if time is not None) - now))
            processes.note_ended(tree.reap(), is_ending=termination.is_decided)
            termination.check_stop_request()
            if transitions is not None and not termination.is_decided:
                transitions.check(clock.monotonic())
            now = clock.monotonic()
            processes.end_hanging(now)
            conditions.check(now)
            if self._peers is not None:
                self._peers.check(now)
            termination.check(now)

    def _ending(self, limits: Limits) -> ReplicaEnd:
        """The processes have ended: end what they left, read the log to its end, and say how they ended."""
        tree.kill_all()
        self._processes.drain()
        failed = self._processes.first_failure
        code = 0 if failed is None else failed.code or 0
        ending = self._termination.ending
        if ending is not None:
            if ending.code is None and code != UNKNOWN_CODE:
                ending.code = code
            if ending.cause in ("stopped", "deadline", "node_lost") and self._termination.was_killed:
                ending.sentence += " It did not end within its grace after SIGTERM and was killed."
            return ending
        if self._processes.ended_hanging:
            return local_process.hung_ending(code, self._order.exit_grace_s)
        return exits.of_command(
            code,
            was_signalled=failed is not None and failed.was_signalled,
            is_out_of_memory=failed is not None and limits.ran_out_of_memory(failed.code),
            memory_bytes=self._order.memory_limit_bytes,
            is_disk_full=self._log.is_disk_full or exits.has_no_room(self._log.tail()),
            tail=self._log.tail(),
        )
