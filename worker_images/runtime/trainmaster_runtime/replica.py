"""One replica from order to exit record: its processes, its log, its end."""

from __future__ import annotations

import errno
import os
import signal

from trainmaster_runtime import clock, hang_watchdog, sidecars
from trainmaster_runtime.hang_watchdog import ExitNotes, LocalProcess
from trainmaster_runtime.limits import Limits
from trainmaster_runtime.log_writer import JobLog
from trainmaster_runtime.outputs import Outputs
from trainmaster_runtime.prepare import OUTPUT, NotStarted, PreparedReplica, mark_end, prepare, write_files
from trainmaster_runtime.process import exits, procfs, spawn, tree
from trainmaster_runtime.process.exits import ReplicaEnd
from trainmaster_runtime.record import StopRequest, read_text, write_copy
from trainmaster_runtime.worlds import LOOK_S, MOVE_GRACE_S, WorldChanges, hold_s

# After a process failed, the others may fail of it too and say something: wait a little, ask, then kill.
_OTHERS_WAIT_S = 1.0
_OTHERS_GRACE_S = 5.0
_LOOK_S = 1.0
_HANG_LOOK_S = 0.5
_LOGS = "/.trainmaster/logs"
_LASTING = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from trainmaster_runtime.order import RuntimeOrder, UserProgram
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
        self._warm = warm
        self._start = ""  # how its processes came to be, where that is not by execution
        self._token = read_text(token_path)
        self._state = state
        self._stop = StopRequest(state, order.request_path, order.stop_grace_s)
        output = OUTPUT if order.view == "as_is" else order.source_of(OUTPUT)
        self._output = output
        folder = state.path if output is None else output + _LOGS
        self._log = JobLog(folder + "/" + order.log_name, order.log_limit_bytes)
        # As the job sees it: users need not know the host's path.
        self._log_shown = OUTPUT + _LOGS + "/" + order.log_name
        self._processes: list[LocalProcess] = []
        self._facts: dict[str, Any] = {}
        self._notes: ExitNotes | None = None
        self._prepared: PreparedReplica | None = None
        self._limits: Limits | None = None
        self._reporter: Reporter | None = None
        self._first_failure: LocalProcess | None = None
        self._wanted: ReplicaEnd | None = None  # why we end it: stopped, deadline, out of memory …
        self._kill_at: float | None = None
        self._was_killed = False
        self._others_ask_at: float | None = None
        self._is_rest_signalled = False
        self._hang_look_at = 0.0
        self._deadline: float | None = None
        self._worlds: WorldChanges | None = None
        self._started_at = ""
        self._hold_until: float | None = None
        self._outputs = Outputs(self._log)
        signal.set_wakeup_fd(self._outputs.wake_fd, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop)
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
        facts = dict(self._facts)
        if self._log.lost_bytes:
            facts["log_bytes_lost"] = self._log.lost_bytes
        mark_end(self._order, has_ended=True)
        record = ending.to_json(at=clock.stamp(clock.now()), log_tail=self._log.tail(), facts=facts)
        self._state.write_exit(record)
        if self._order.termination_path is not None:
            write_copy(self._order.termination_path, record)
        if self._reporter is not None:
            self._report_rest(self._reporter)
        return 1 if ending.code is None else ending.code

    def _report_rest(self, reporter: Reporter) -> None:
        """Send the last reports. The job has ended and its exit is recorded: a signal now only shortens the reports."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: reporter.hurry())
        reporter.finish(
            self._has_new_stop_request, is_stopped=self._wanted is not None and self._wanted.cause == "stopped"
        )

    def _has_new_stop_request(self) -> bool:
        try:
            return self._stop.is_new()
        except OSError:  # no room for the wish, which is old by now
            return True

    # Start

    def _run(self) -> ReplicaEnd:
        if self._stop.is_there:
            raise StopRequested
        order = self._order
        if self._log.failure is not None and not self._log.is_disk_full:
            sentence = "The log %s cannot be written (%s); check the output's volume." % (
                self._log_shown,
                self._log.failure.strerror,
            )
            # A server that is away may come back; a right that is missing stays so.
            is_lasting = self._log.failure.errno in _LASTING
            raise NotStarted(ReplicaEnd("start_refused" if is_lasting else "start_failed", None, sentence))
        prepared = prepare(order, self._state, self._token, self._log, self._check_stop)
        self._prepared = prepared
        prepared.groups.limit(
            cpu_milli=order.cpu_limit_milli, memory_bytes=order.memory_limit_bytes, pids=order.pids_limit
        )
        self._notes = ExitNotes(prepared.job_folder + "/exits")
        if order.world is not None:
            # Where an executor sees no status: a joining replica learns from the others' folder how they change worlds.
            shared = os.path.dirname(self._log_shown) if order.view == "as_is" else None
            self._worlds = WorldChanges(order, self._state, prepared.job_folder, shared)
            self._worlds.publish()
            self._wait_for_world(self._worlds)
        self._state.write_status(phase="pending", detail="Starting the command.")
        programs = prepared.programs(order)
        self._limits = limits = Limits(order, prepared)
        error = self._spawn(programs)
        if error is not None:
            self._log.say(error.sentence)
            tree.kill_all()
            return ReplicaEnd(error.cause, error.exit_code, error.sentence)
        if self._wanted is not None and self._kill_at is not None:
            # The stop came while they were being started.
            self._ask_to_end(self._kill_at - clock.monotonic())
        self._start_watches(limits, prepared.isolation)
        self._report_running()
        self._reporter = sidecars.start_reporter(order, prepared, self._state, self._token, self._log, self._output)
        if self._reporter is not None:
            self._outputs.note = self._reporter.note
        sidecars.serve_rendezvous(programs[0].env, self._log)
        self._loop()
        return self._finish()

    def _wait_for_world(self, worlds: WorldChanges) -> None:
        """A replica that joins a gang with processes per world starts nothing before its first world."""
        if not worlds.is_joining or self._order.joins_warm:
            return
        self._state.write_status(phase="pending", detail="Waiting for its place in the gang.", facts=worlds.facts())
        worlds.show()
        while worlds.is_joining:
            self._check_stop(LOOK_S)
            update = worlds.newer_world()
            if update is not None:
                self._enter(worlds, update)

    def _enter(self, worlds: WorldChanges, update: dict[str, Any]) -> None:
        worlds.enter(update)
        worlds.publish()
        prepared = self._prepared
        assert prepared is not None  # noqa: S101 - set by _run before
        write_files(self._order, os.path.dirname(prepared.job_folder))

    def _check_stop(self, wait_s: float) -> None:
        self._outputs.wait_for_signal(wait_s)
        self._check_stop_request()
        if self._wanted is not None:
            raise StopRequested

    def _spawn(self, programs: list[UserProgram]) -> spawn.StartError | None:
        prepared = self._prepared
        assert prepared is not None  # noqa: S101 - set by _run before
        many = len(programs) > 1
        waiting = []
        for number, program in enumerate(programs):
            read, write = os.pipe()
            rank = program.env.get("RANK", str(number))
            pid, failure_read = spawn.spawn(
                program, output=write, view=prepared.view, groups=prepared.groups, warm=self._warm
            )
            os.close(write)
            os.set_blocking(read, False)
            prefix = b"[rank %s] " % rank.encode() if many else b""
            self._processes.append(LocalProcess(number, pid, read, prefix))
            waiting.append(failure_read)
        answers = [spawn.start_error(failure_read) for failure_read in waiting]
        self._start = next((answer for answer in answers if isinstance(answer, str)), "")
        return next((answer for answer in answers if not isinstance(answer, str)), None)

    def _start_watches(self, limits: Limits, isolation: str) -> None:
        order = self._order
        now = clock.monotonic()
        if order.deadline_s is not None:
            self._deadline = now + order.deadline_s
        limits.start(now)
        if limits.lacks_cpu:
            how = "cores, not by time: %d for all its processes" % limits.cores if limits.cores else "nothing"
            self._log.say(
                "no control group here: the limit of %g CPUs is kept by %s" % ((order.cpu_limit_milli or 0) / 1000, how)
            )
        self._facts = {
            "pid": self._processes[0].pid,
            "pids": [process.pid for process in self._processes],
            "isolation": isolation,
            "limits": limits.enforcers(),
            "log": self._log_shown,
        }
        if self._start:
            self._facts["start"] = self._start

    def _report_running(self, detail: str = "") -> None:
        worlds = self._worlds
        if worlds is not None:
            self._facts.update(worlds.facts())
            worlds.show()
        if worlds is not None and worlds.is_joining:
            self._state.write_status(phase="pending", detail="Waiting for its place in the gang.", facts=self._facts)
            return
        self._started_at = self._started_at or clock.stamp(clock.now())
        self._state.write_status(phase="running", detail=detail, started_at=self._started_at, facts=self._facts)

    # Loop

    def _loop(self) -> None:
        self._outputs.listen(self._processes)
        while not self._has_ended() or self._waits_for_rest() or self._waits_for_world():
            self._outputs.wait(self._timeout())
            self._note_ended(tree.reap())
            self._check_stop_request()
            if self._worlds is not None and self._wanted is None:
                self._follow(self._worlds, clock.monotonic())
            self._watch(clock.monotonic())

    # Worlds of an elastic gang

    def _follow(self, worlds: WorldChanges, now: float) -> None:
        """Enter the newest world, if there is one; restart the processes in it where they cannot change worlds
        themselves.
        """
        update = worlds.newer_world()
        if update is not None:
            try:
                self._enter(worlds, update)
            except OSError as error:
                ending = ReplicaEnd(
                    "start_failed", None, "World %s could not be entered: %s." % (update["world"], error)
                )
                self._end(ending, 0.0)
                return
            if worlds.keeps_processes() and not self._has_ended():
                self._report_running()
                sidecars.serve_rendezvous({**self._order.env, **self._order.process_env[0]}, self._log)
            elif worlds.move_by is None and not (self._has_ended() and self._first_failure is None):
                self._log.say("world %d: the command is started again in place" % worlds.number)
                worlds.move_by = now + MOVE_GRACE_S
                for process in self._processes:
                    if process.code is None:
                        tree.ask_to_end(process.pid)
        elif any(self._facts.get(name) != fact for name, fact in worlds.facts().items()):
            self._report_running()
        if worlds.move_by is not None:
            if not self._has_ended() and now >= worlds.move_by:
                self._kill()
            if self._has_ended():
                self._start_again(worlds)

    def _start_again(self, worlds: WorldChanges) -> None:
        prepared = self._prepared
        assert prepared is not None  # noqa: S101 - set by _run before
        tree.kill_all()
        self._outputs.drain(self._processes)
        for process in self._processes:
            os.close(process.output)
        self._processes = []
        self._first_failure = self._others_ask_at = self._hold_until = worlds.move_by = None
        worlds.forget_processes()
        programs = prepared.programs(self._order)
        error = self._spawn(programs)
        self._outputs.listen(self._processes)
        if error is not None:
            self._end(ReplicaEnd(error.cause, error.exit_code, error.sentence), 0.0)
            return
        if self._wanted is not None:
            # Asked to stop between the old processes and these.
            for process in self._processes:
                tree.ask_to_end(process.pid)
        self._facts.update(pid=self._processes[0].pid, pids=[process.pid for process in self._processes])
        self._report_running()
        sidecars.serve_rendezvous(programs[0].env, self._log)

    def _waits_for_world(self) -> bool:
        """Whether, by the log, another replica's failure caused this one: then the gang may go on without that
        replica.
        """
        worlds = self._worlds
        if worlds is None or self._wanted is not None:
            return False
        if worlds.move_by is not None:
            return True
        if self._first_failure is None:
            return False
        if self._hold_until is None:
            self._outputs.drain(self._processes)
            failed = self._first_failure
            # What goes from world to world by itself has waited already.
            was_killed = failed.was_signalled and failed.code != 128 + signal.SIGABRT
            hold_time_s = 0.0 if worlds.keeps_processes() else hold_s(self._log.tail(), was_killed=was_killed)
            self._hold_until = clock.monotonic() + hold_time_s
            if hold_time_s:
                self._report_running("It failed, and waits whether the gang goes on without a lost peer.")
        return clock.monotonic() < self._hold_until

    def _has_ended(self) -> bool:
        return all(process.code is not None for process in self._processes)

    def _waits_for_rest(self) -> bool:
        """When stopping, processes that the command left behind have the rest of the grace; otherwise they end with
        it.
        """
        return self._kill_at is not None and not self._was_killed and bool(procfs.descendants(os.getpid()))

    def _timeout(self) -> float:
        now = clock.monotonic()
        check_at = self._limits.check_at if self._limits is not None else None
        times = [now + _LOOK_S, self._kill_at, self._others_ask_at, self._deadline, check_at]
        if self._kill_at is not None and self._has_ended():
            times.append(now + 0.05)  # looking for the rest of the tree
        if self._worlds is not None:
            times.append(now + LOOK_S)
        return max(0.0, min(time for time in times if time is not None) - now)

    def _note_ended(self, ended: list[tuple[int, int]]) -> None:
        if not ended:
            return
        notes = self._notes
        assert notes is not None  # noqa: S101
        now = clock.monotonic()
        notes.check(now)
        by_pid = {process.pid: process for process in self._processes if process.code is None}
        for pid, status in ended:
            process = by_pid.get(pid)
            if process is not None:
                is_moving = self._worlds is not None and self._worlds.move_by is not None
                process.end(status, notes, self._log, is_ending=self._wanted is not None or is_moving)
                if process.code != 0 and self._first_failure is None and not is_moving:
                    self._first_failure = process
                    self._others_ask_at = now + _OTHERS_WAIT_S
            notes.forget(pid)

    # Watches

    def _watch(self, now: float) -> None:
        if self._notes is not None and now >= self._hang_look_at:
            self._hang_look_at = now + _HANG_LOOK_S
            self._notes.check(now)
            if not self._notes.is_empty:
                hang_watchdog.end_hanging(self._processes, self._notes, self._order.exit_grace_s, now, self._log)
        if self._deadline is not None and now >= self._deadline and self._wanted is None:
            self._end(
                ReplicaEnd(
                    "deadline", None, "It ran longer than its `max_run_time` of %g s." % (self._order.deadline_s or 0)
                ),
                self._order.stop_grace_s,
            )
        if self._reporter is not None and self._reporter.has_attempt_ended and self._wanted is None:
            self._end(
                ReplicaEnd(
                    "stopped",
                    None,
                    "The platform says that this attempt has ended, as when its node was cut off and the job went on "
                    "elsewhere: the command is ended.",
                ),
                self._order.stop_grace_s,
            )
        if self._others_ask_at is not None and now >= self._others_ask_at:
            self._others_ask_at = None
            if self._kill_at is None and not self._has_ended():
                failed = self._first_failure
                self._log.say(
                    "process %d of %d ended with %s: the others are ended"
                    % (failed.rank if failed else 0, len(self._processes), exits.describe(failed.code if failed else 1))
                )
                self._ask_to_end(_OTHERS_GRACE_S)
        limits = self._limits
        if limits is not None and limits.check_at is not None and now >= limits.check_at:
            ending = limits.check(now)
            if ending is not None and self._wanted is None:
                self._end(ending, 0.0)
        if self._kill_at is not None and not self._is_rest_signalled and self._has_ended():
            self._is_rest_signalled = True
            for pid in procfs.descendants(os.getpid()):
                tree.send(pid, signal.SIGTERM)
        if self._kill_at is not None and now >= self._kill_at and not self._was_killed:
            self._was_killed = True
            self._kill()

    # End

    def _on_stop(self, *_: object) -> None:
        grace = self._stop.grace_s
        now = clock.monotonic()
        if self._wanted is not None or self._kill_at is not None:
            # Already ending: a shorter grace shortens it.
            self._kill_at = min(now + grace, self._kill_at) if self._kill_at is not None else now + grace
            return
        self._wanted = self._stop.ending()
        self._ask_to_end(grace)

    def _check_stop_request(self) -> None:
        if self._stop.is_new():
            self._on_stop()

    def _end(self, ending: ReplicaEnd, grace_s: float) -> None:
        self._wanted = ending
        self._log.say(ending.sentence)
        if grace_s <= 0:
            self._kill_at = clock.monotonic()
            self._was_killed = True
            self._kill()
        else:
            self._ask_to_end(grace_s)

    def _ask_to_end(self, grace_s: float) -> None:
        self._kill_at = clock.monotonic() + grace_s
        for process in self._processes:
            if process.code is None:
                tree.ask_to_end(process.pid)

    def _kill(self) -> None:
        self._note_ended(tree.kill_all())

    def _finish(self) -> ReplicaEnd:
        """The processes have ended: end what they left, read the log to its end, and say how it was."""
        tree.kill_all()
        self._outputs.drain(self._processes)
        worst = self._first_failure
        code = worst.code or 0 if worst is not None else 0
        wanted = self._wanted
        if wanted is not None:
            if wanted.code is None and code != hang_watchdog.UNKNOWN:
                wanted.code = code
            if wanted.cause in ("stopped", "deadline", "node_lost") and self._was_killed:
                wanted.sentence += " It did not end within its grace after SIGTERM and was killed."
            return wanted
        deciding = self._processes if worst is None else [worst]
        if any(process.ended_hanging for process in deciding):
            return hang_watchdog.hung_ending(code, self._order.exit_grace_s)
        return exits.of_command(
            code,
            was_signalled=worst is not None and worst.was_signalled,
            is_out_of_memory=worst is not None
            and self._limits is not None
            and self._limits.ran_out_of_memory(worst.code),
            memory_bytes=self._order.memory_limit_bytes,
            is_disk_full=self._log.is_disk_full or exits.has_no_room(self._log.tail()),
            tail=self._log.tail(),
        )
