"""One of the user's processes."""

from __future__ import annotations

from trainmaster_runtime.log_writer import LineSplitter
from trainmaster_runtime.process import exits
from trainmaster_runtime.replica.exit_notes import UNKNOWN_CODE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster_runtime.log_writer import JobLog
    from trainmaster_runtime.replica.exit_notes import ExitNotes


class LocalProcess:
    """One local process of the replica."""

    def __init__(self, rank: int, pid: int, output: int, prefix: bytes) -> None:
        self.rank = rank
        self.pid = pid
        self.output = output
        self.splitter = LineSplitter(prefix)
        self.code: int | None = None  # None while it runs
        self.was_signalled = False
        self.hung_pids: set[int] = set()  # finished their work, did not exit, were killed by us
        self.hang_code: int | None = None  # of those
        self.ended_hanging = False

    def end(self, status: int, notes: ExitNotes, log: JobLog, *, is_ending: bool) -> None:
        """Take the wait status. ``is_ending``: the runtime wants it to end, its death means nothing else."""
        code = exits.code_of(status)
        self.was_signalled = bool(status & 0x7F)
        if self.hung_pids and code != 0 and (self.pid in self.hung_pids or code in (1, 137)):
            # Killed by us, or the shell's or torchrun's word for the child that we killed.
            self.ended_hanging = True
            self.was_signalled = False
            code = UNKNOWN_CODE if self.hang_code is None else self.hang_code
        elif self.was_signalled and not is_ending and notes.has(self.pid) and notes.code(self.pid) == 0:
            log.say(
                "process %d had finished its work with exit code 0 and then died of %s in the interpreter's teardown; "
                "it counts as finished" % (self.pid, exits.signal_name(code - 128))
            )
            code = 0
            self.was_signalled = False
        self.code = code
