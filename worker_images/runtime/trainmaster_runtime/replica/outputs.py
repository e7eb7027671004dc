"""Output of the user's processes: read as it comes, split into lines, written to the log."""

from __future__ import annotations

import os
import select

from trainmaster_runtime import clock

_DRAIN_S = 5.0
_READ_BYTES = 262_144

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    from trainmaster_runtime.log_writer import JobLog
    from trainmaster_runtime.replica.local_process import LocalProcess


class Outputs:
    """The pipes of the processes, and the pipe that a signal writes to: no wait lasts past a signal.

    ``wake_fd``: for ``signal.set_wakeup_fd``. ``note``: called with the lines of the first process, once it is set.
    ``first_line_at``: seconds since 1970.
    """

    def __init__(self, log: JobLog) -> None:
        self._log = log
        self._poll = select.poll()
        self._by_fd: dict[int, LocalProcess] = {}
        self._wake_read, self.wake_fd = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self.wake_fd, False)
        self.note: Callable[[list[bytes]], None] | None = None
        self.first_line_at: float | None = None

    def listen(self, processes: list[LocalProcess]) -> None:
        """To these from now on, and to signals."""
        self._poll = select.poll()
        self._poll.register(self._wake_read, select.POLLIN)
        self._by_fd = {process.output: process for process in processes}
        for fd in self._by_fd:
            self._poll.register(fd, select.POLLIN)

    def wait(self, timeout_s: float) -> None:
        """Log what is printed; returns at a signal, too."""
        for fd, _ in self._poll.poll(timeout_s * 1000):
            if fd == self._wake_read:
                _empty(fd)
            elif not self._read(self._by_fd[fd]):
                self._poll.unregister(fd)

    def wait_for_signal(self, timeout_s: float) -> None:
        """While nothing prints yet. The signal stays to be seen by :meth:`wait`."""
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        poll.poll(timeout_s * 1000)

    def drain(self, processes: list[LocalProcess]) -> None:
        """Log what the ended processes left, to its end."""
        end = clock.monotonic() + _DRAIN_S
        for process in processes:
            poll = select.poll()
            poll.register(process.output, select.POLLIN)
            while clock.monotonic() < end:
                # Every writer of the replica is dead; a process that holds the pipe open now is not ours.
                if not poll.poll(200) or not self._read(process):
                    break
            self._take(process, process.splitter.finish())

    def _read(self, process: LocalProcess) -> bool:
        """Log what ``process`` printed; ``False`` at the end."""
        try:
            data = os.read(process.output, _READ_BYTES)
        except BlockingIOError:
            return True
        if data:
            self._take(process, process.splitter.feed(data, clock.monotonic()))
            return True
        # A last line without its end counts as any other.
        self._take(process, process.splitter.finish())
        return False

    def _take(self, process: LocalProcess, lines: list[bytes]) -> None:
        if self.first_line_at is None and lines:
            self.first_line_at = clock.now()
        self._log.write(lines)
        if process.rank == 0 and self.note is not None:
            self.note(lines)


def _empty(fd: int) -> None:
    try:
        while os.read(fd, 512):
            pass
    except BlockingIOError:
        pass
