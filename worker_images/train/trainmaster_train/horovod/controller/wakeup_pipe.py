"""Waiting for what the links bring, in a thread that others can wake."""

from __future__ import annotations

import os
import select
from typing import List, Mapping, Tuple

from trainmaster_train.horovod.controller.link import ControlLink


class WakeupPipe:
    """A pipe to itself. Whoever uses it from several threads guards it with a lock."""

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
            except OSError:  # full of earlier ones, which will do
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
    """The ranks whose link has ``event`` (of poll) or is broken, and whether ``wake`` was set; after ``timeout_s``
    neither.
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
