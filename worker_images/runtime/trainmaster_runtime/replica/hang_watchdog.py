"""Processes whose end itself goes wrong: they hang in, or die of, the interpreter's teardown.

The exit hook notes which processes have finished their work, and with which code.
"""

from __future__ import annotations

import signal

from trainmaster_runtime.process import exits, procfs, tree
from trainmaster_runtime.process.exits import ReplicaEnd
from trainmaster_runtime.replica.local_process import UNKNOWN_CODE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster_runtime.log_writer import JobLog
    from trainmaster_runtime.replica.local_process import ExitNotes, LocalProcess


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
