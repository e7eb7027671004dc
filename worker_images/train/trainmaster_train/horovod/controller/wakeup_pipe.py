"""Self-pipe: a thread that waits for messages can be woken by others."""

from __future__ import annotations

import os
import select
from typing import List, Mapping, Tuple

from trainmaster_train.horovod.controller.link import ControlLink


class WakeupPipe:
    """A pipe from the process to itself. Use by several threads needs a lock."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._is_set = False

    def fileno(self) -> int:
        """Readable after :meth:`set`, until :meth:`clear`."""
        return self._read

    def set(self) -> None:
        if not self._is_set:
            self._is_set = True
            try:
                os.write(self._write, b"!")
            except OSError:  # full: earlier bytes wake the reader as well
                pass

    def clear(self) -> None:
        self._is_set = False
        try:
            os.read(self._read, 512)
        except OSError:
            pass

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


def wait_for(
    links: Mapping[int, ControlLink], event: int, wakeup: WakeupPipe, timeout_s: float
) -> Tuple[List[int], bool]:
    """The ranks whose link has ``event`` (of poll) or is broken, and whether ``wakeup`` was set; neither after
    ``timeout_s``.
    """
    poll = select.poll()
    poll.register(wakeup, select.POLLIN)
    by_number = {}
    for rank, link in links.items():
        number = link.fileno()
        if number >= 0:  # not closed by another thread
            poll.register(number, event)
            by_number[number] = rank
    found = [number for number, _ in poll.poll(timeout_s * 1000)]
    return [by_number[number] for number in found if number in by_number], wakeup.fileno() in found
