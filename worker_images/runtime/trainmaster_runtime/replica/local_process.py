"""One of the user's processes, and those whose end itself goes wrong: they hang in the interpreter's teardown.

The exit hook notes which processes have finished their work, and with which code.
"""

from __future__ import annotations

import os
import signal

from trainmaster_runtime.log_writer import LineSplitter
from trainmaster_runtime.process import exits, procfs, tree
from trainmaster_runtime.process.exits import ReplicaEnd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster_runtime.log_writer import JobLog


UNKNOWN_CODE = -1  # of a process that hung at exit and noted none


class ExitNotes:
    """The file that ``hooks/sitecustomize.py`` appends ``<pid> <code or ?>`` to; none before :meth:`follow`."""

    def __init__(self) -> None:
        self._path = ""
        self._offset = 0
        self._codes: dict[int, int | None] = {}
        self._finished_at: dict[int, float] = {}

    def follow(self, path: str) -> None:
        """Create the file if it is missing, and read it from now on. Raises ``OSError``."""
        self._path = path
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))

    def check(self, now: float) -> None:
        """Read what is new. ``now`` is monotonic."""
        try:
            if os.stat(self._path).st_size <= self._offset:
                return
            with open(self._path, "rb") as stream:
                stream.seek(self._offset)
                for line in stream:
                    if not line.endswith(b"\n"):
                        return
                    self._offset += len(line)
                    words = line.split()
                    if len(words) == 2 and words[0].isdigit():
                        pid = int(words[0])
                        self._codes[pid] = int(words[1]) if words[1].isdigit() else None
                        self._finished_at[pid] = now
        except OSError:
            return

    def has(self, pid: int) -> bool:
        return pid in self._codes

    def code(self, pid: int) -> int | None:
        return self._codes.get(pid)

    def hangs_since(self, pid: int) -> float | None:
        """When ``pid`` had finished its work; ``None`` if it has not."""
        return self._finished_at.get(pid)

    def forget(self, pid: int) -> None:
        """``pid`` is gone, and its number may come again."""
        self._codes.pop(pid, None)
        self._finished_at.pop(pid, None)

    @property
    def is_empty(self) -> bool:
        return not self._finished_at


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


def hung_ending(code: int, grace_s: float) -> ReplicaEnd:
    """The end of a replica whose command did not exit. ``code``: the one that it noted before, or ``UNKNOWN_CODE``."""
    known = None if code == UNKNOWN_CODE else code
    sentence = "The command finished its work with %s, did not exit within %g s, and was ended." % (
        exits.describe(known),
        grace_s,
    )
    return ReplicaEnd("hanging_exit", known, sentence)


def end_hanging(processes: list[LocalProcess], notes: ExitNotes, grace_s: float, now: float, log: JobLog) -> None:
    """Kill what has finished its work ``grace_s`` ago and is still there. ``now`` is monotonic."""
    for process in processes:
        if process.code is not None:
            continue
        hanging = [process.pid] if notes.has(process.pid) else _hanging_below(process, notes)
        if not hanging or process.hung_pids.issuperset(hanging):
            continue
        if max(notes.hangs_since(pid) or 0.0 for pid in hanging) + grace_s > now:
            continue
        codes = [notes.code(pid) for pid in hanging]
        process.hung_pids.update(hanging)
        process.hang_code = None if None in codes else next((code for code in codes if code), 0)
        log.say(
            "the command finished its work %g s ago with %s and does not exit: it is ended"
            % (grace_s, exits.describe(process.hang_code))
        )
        for pid in hanging:
            tree.send(pid, signal.SIGKILL)


def _hanging_below(process: LocalProcess, notes: ExitNotes) -> list[int]:
    """The children of a shell that have finished their work, and those of torchrun when all have; else none.

    Torchrun ends every worker when it sees one dead: none may be killed while another one works.
    """
    children = [pid for pid in procfs.descendants(process.pid) if procfs.parent(pid) == process.pid]
    finished = [pid for pid in children if notes.has(pid)]
    if finished and (tree.is_shell(process.pid) or (len(finished) == len(children) and _is_torchrun(process.pid))):
        return finished
    return []


def _is_torchrun(pid: int) -> bool:
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as stream:
            words = stream.read().split(b"\0")
    except OSError:
        return False
    return any(word.endswith(b"/torchrun") or word == b"torch.distributed.run" for word in words[:4])
