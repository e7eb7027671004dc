"""The user's processes of one replica, from their start to their wait statuses."""

from __future__ import annotations

import os

from trainmaster_runtime import clock
from trainmaster_runtime.process import spawn, tree
from trainmaster_runtime.replica import local_process
from trainmaster_runtime.replica.local_process import ExitNotes, LocalProcess

# After a process failed, its peers may fail of it too and say something: wait a little before they are ended.
_PEERS_WAIT_S = 1.0
_HANG_CHECK_S = 0.5

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster_runtime.log_writer import JobLog
    from trainmaster_runtime.order import UserProgram
    from trainmaster_runtime.prepare import PreparedReplica
    from trainmaster_runtime.process.spawn import StartError
    from trainmaster_runtime.replica.outputs import Outputs
    from trainmaster_runtime.warm.child import WarmFork


class LocalProcesses:
    """The user's processes: started together; the first failure decides about all.

    Attributes:
        first_failure: the first process that failed.
        end_peers_at: monotonic; when the peers of a failed process are to be ended.
        restart_by: monotonic; while they end to be started again in another world.
        start_method: how they were started, in words; empty for execution.
    """

    def __init__(self, outputs: Outputs, log: JobLog, *, exit_grace_s: float, warm: WarmFork | None) -> None:
        self._outputs = outputs
        self._log = log
        self._exit_grace_s = exit_grace_s
        self._warm = warm
        self._processes: list[LocalProcess] = []
        self._notes = ExitNotes()
        self._hang_check_at = 0.0
        self.first_failure: LocalProcess | None = None
        self.end_peers_at: float | None = None
        self.restart_by: float | None = None
        self.start_method = ""

    def __len__(self) -> int:
        return len(self._processes)

    def start(self, programs: list[UserProgram], prepared: PreparedReplica) -> StartError | None:
        """Start all of them; returns why one was not started."""
        self._notes.follow(prepared.job_folder + "/exits")
        failure_reads = []
        for number, program in enumerate(programs):
            read, write = os.pipe()
            rank = program.env.get("RANK", str(number))
            pid, failure_read = spawn.spawn(
                program, output=write, view=prepared.view, join_groups=prepared.groups.join, warm=self._warm
            )
            os.close(write)
            os.set_blocking(read, False)
            prefix = b"[rank %s] " % rank.encode() if len(programs) > 1 else b""
            self._processes.append(LocalProcess(number, pid, read, prefix))
            failure_reads.append(failure_read)
        answers = [spawn.start_error(failure_read) for failure_read in failure_reads]
        self.start_method = next((answer for answer in answers if isinstance(answer, str)), "")
        self._outputs.listen(self._processes)
        return next((answer for answer in answers if not isinstance(answer, str)), None)

    def discard(self) -> None:
        """Kill all of them and forget how they ended, before others take their place."""
        tree.kill_all()
        self.drain()
        for process in self._processes:
            os.close(process.output)
        self._processes = []
        self.first_failure = self.end_peers_at = self.restart_by = None

    def drain(self) -> None:
        """Log what the ended processes printed, to its end."""
        self._outputs.drain(self._processes)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    @property
    def have_ended(self) -> bool:
        return all(process.code is not None for process in self._processes)

    @property
    def ended_hanging(self) -> bool:
        """Whether those that decide about the exit code finished their work and did not exit."""
        deciding = self._processes if self.first_failure is None else [self.first_failure]
        return any(process.ended_hanging for process in deciding)

    def ask_to_end(self) -> None:
        for process in self._processes:
            if process.code is None:
                tree.ask_to_end(process.pid)

    def note_ended(self, ended: list[tuple[int, int]], *, is_ending: bool) -> None:
        """Take the wait statuses of reaped processes. ``is_ending``: the replica is being ended."""
        if not ended:
            return
        now = clock.monotonic()
        self._notes.check(now)
        is_restarting = self.restart_by is not None
        by_pid = {process.pid: process for process in self._processes if process.code is None}
        for pid, status in ended:
            process = by_pid.get(pid)
            if process is not None:
                process.end(status, self._notes, self._log, is_ending=is_ending or is_restarting)
                if process.code != 0 and self.first_failure is None and not is_restarting:
                    self.first_failure = process
                    self.end_peers_at = now + _PEERS_WAIT_S
            self._notes.forget(pid)

    def end_hanging(self, now: float) -> None:
        """Kill those that finished their work and do not exit. ``now`` is monotonic."""
        if now >= self._hang_check_at:
            self._hang_check_at = now + _HANG_CHECK_S
            self._notes.check(now)
            if not self._notes.is_empty:
                local_process.end_hanging(self._processes, self._notes, self._exit_grace_s, now, self._log)
