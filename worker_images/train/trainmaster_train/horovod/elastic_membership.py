"""Worlds of an elastic job as Horovod's gangs: the platform announces each world, and the process joins it."""

from __future__ import annotations

import sys
from typing import Callable, Optional

from trainmaster_train import elastic
from trainmaster_train.horovod.elastic import register_rejoin

# All peers are there when the first one connects: one that is lost in between is not waited for as long as at a start.
RENDEZVOUS_S = 30.0


class ElasticMembership:
    """Takes this process from world to world. ``leave``: releases what the framework holds of the old world."""

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave = leave
        self._is_following = False

    def own(self) -> Optional[elastic.ElasticWorld]:
        """The current world if this process goes from world to world; else ``None``."""
        return elastic.own_world() if self._is_following else None

    def wait_to_join(self) -> None:
        """Wait for the first world if this process joins a running gang; does nothing in any other process.

        A process is started before it has a rank only if the others go from world to world by themselves.
        """
        if elastic.is_elastic() and not self._is_following and elastic.newest_number() == 0:
            elastic.enter(elastic.first_world())
            self._follow()

    def follow(self) -> None:
        """From now on go from world to world in this process, instead of being restarted for each world."""
        if elastic.is_elastic() and not self._is_following:
            elastic.first_world()  # tells the runtime that this process stays; the first commit joins a newer world
            self._follow()

    def rejoin(self) -> bool:
        """Wait for the next world and enter it; ``False``: none came."""
        self._leave()
        try:
            elastic.enter(elastic.next_world(elastic.own_world().number))
        except elastic.WorldError as none:
            print(f"[trainmaster] {none}", file=sys.stderr, flush=True)
            return False
        return True

    def _follow(self) -> None:
        self._is_following = True
        register_rejoin(self.rejoin, lambda: elastic.newest_number() > elastic.own_world().number)
