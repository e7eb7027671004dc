"""Gets a process out of a collective whose peer is gone without a word.

A peer that is killed closes its connections, and the others notice at once. One whose machine vanished does not: they would
wait for it until the collective's time-out. But the platform's node grace is over long before that, and its next world
is smaller: by this they know that nobody comes any more.
"""

from __future__ import annotations

import threading
from typing import Optional

from trainmaster_train.elastic.group import Group
from trainmaster_train.elastic.worlds import World, is_elastic, newest_number, newest_size

_LOOK_S = 0.5
# For those who notice by themselves, which most do.
_PATIENCE_S = 3.0


class Watch:
    """``with Watch(group, world):`` while this process trains in ``world``.

    When a smaller world has come and the process is still in this one a few seconds later, its connections are cut: what it
    waits in, or tries next, fails as with any lost peer. A world that is not smaller waits for the next commit.
    """

    def __init__(self, group: Group, world: World, patience_s: float = _PATIENCE_S) -> None:
        self._group = group
        self._world = world
        self._patience_s = patience_s
        self._left = threading.Event()
        self._thread: Optional[threading.Thread] = None

    def __enter__(self) -> None:
        if is_elastic() and self._world.size > 1:
            self._thread = threading.Thread(target=self._look, name="trainmaster world", daemon=True)
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._left.set()
        if self._thread is not None:
            self._thread.join()

    def _look(self) -> None:
        while not self._left.wait(_LOOK_S):
            if newest_number() > self._world.number and newest_size() < self._world.size:
                if not self._left.wait(self._patience_s):
                    self._group.cut()
                return
