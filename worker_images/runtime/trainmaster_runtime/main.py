"""The entry: claims the order, detaches if asked, and runs the replica."""

from __future__ import annotations

import argparse
import fcntl
import os
import signal

from trainmaster_runtime import cgroups
from trainmaster_runtime.order import load
from trainmaster_runtime.process import job_user, procfs, syscalls
from trainmaster_runtime.record import StateFolder

# Exit codes of the launcher, for the executor.
CLAIMED = 0
NOT_CLAIMED = 75  # another process runs it, it was run already, or its attempt was removed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from trainmaster_runtime.warm.child import WarmFork


def main(arguments: list[str]) -> NoReturn:
    """Claim and run the order that a command line names; ends the process."""
    options = _parse(arguments)
    path = os.path.abspath(options.order)
    state = StateFolder(os.path.dirname(path) if options.state is None else options.state)
    answer_read = answer_write = None
    if options.detach:
        answer_read, answer_write = os.pipe()
        if os.fork() > 0:
            os.close(answer_write)
            answer = os.read(answer_read, 1)
            # _exit: nothing of the runtime is to be torn down twice.
            os._exit(CLAIMED if answer == b"1" else NOT_CLAIMED if answer == b"0" else 1)
        os.close(answer_read)
    try:
        os.setsid()
    except PermissionError:  # a group's leader already: the first process of a container, or a shell's job
        pass
    os._exit(_run(path, state, options.lock_fd, answer_write))


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="trainmaster_runtime", allow_abbrev=False)
    parser.add_argument(
        "--detach",
        action="store_true",
        help="return as soon as the order is claimed, while a child in a session of its own goes on",
    )
    parser.add_argument("--lock-fd", type=int, metavar="N", help="inherited descriptor of the locked file `lock`")
    parser.add_argument("--state", metavar="FOLDER", help="the state folder; default: the order's own")
    parser.add_argument("order", metavar="order.json", help="what to run; the token lies in the same folder")
    return parser.parse_args(arguments)


def run_forked(path: str, lock: int, answer_write: int, warm: WarmFork) -> NoReturn:
    """Run the order in this process, which was forked from a preloaded parent; ends the process.

    ``answer_write`` gets ``1`` when the order is claimed, ``0`` when another process has it.

    Raises:
        trainmaster_runtime.warm.child.ProgramStarted: in each of the user's processes that goes on as it is.
    """
    os.setsid()
    state = StateFolder(os.path.dirname(path))
    try:
        _claim_start(state)
    except OSError:
        os._exit(NOT_CLAIMED)
    os._exit(_run(path, state, lock, answer_write, warm))


def _claim_start(state: StateFolder) -> None:
    """Claim the start of the order. Raises ``OSError`` when the executor, after its timeout, has claimed it.

    The file appears as a whole, by linking: the executor ends the process that it names when nothing follows.
    """
    pid = os.getpid()
    temporary_name = "start_claim.%d" % pid
    state.write(temporary_name, {"pid": pid, "start_ticks": procfs.start_ticks(pid)})
    try:
        os.link(state.file(temporary_name), state.file("start_claim"))
    finally:
        os.unlink(state.file(temporary_name))


def _run(
    path: str, state: StateFolder, lock: int | None, answer_write: int | None, warm: WarmFork | None = None
) -> int:
    order = load(path)
    if not _claim(state, lock, order.tombstone):
        _answer(answer_write, b"0")
        return NOT_CLAIMED
    # From the moment that the pid can be read, a stop may come: it stays pending until a handler is installed.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    syscalls.adopt_orphans()
    state.reserve_exit()
    pid = os.getpid()
    state.write(
        "runtime.json",
        {
            "pid": pid,
            "start_ticks": procfs.start_ticks(pid),
            "boot_id": procfs.boot_id(),
            "mark": order.mark,
            # Before any is made: if this runtime dies, at whatever moment, this list says what to kill.
            "cgroups": cgroups.folders_to_be(cgroups.name_of(order.mark)) if order.use_cgroups else [],
        },
    )
    _answer(answer_write, b"1")
    from trainmaster_runtime.replica.run import ReplicaRun

    if order.uid is not None:
        job_user.give_folders(order)
        job_user.write_as(order.uid, order.groups)
    return ReplicaRun(order, state, token_path=os.path.dirname(path) + "/token", warm=warm).run()


def _claim(state: StateFolder, lock: int | None, tombstone: str | None) -> bool:
    """Whether this process is the one that runs the order. It holds the lock from here to its end."""
    if lock is None:
        lock = os.open(state.file("lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    # The lock must not live on in the user's processes.
    os.set_inheritable(lock, False)
    return not os.path.exists(state.file("runtime.json")) and not (tombstone and os.path.exists(tombstone))


def _answer(fd: int | None, answer: bytes) -> None:
    if fd is not None:
        os.write(fd, answer)
        os.close(fd)
