"""The platform's worlds as Horovod's gangs: in an elastic job the platform says who meets anew, and where."""

from __future__ import annotations

import sys
from typing import Callable, Optional

from trainmaster_train import elastic
from trainmaster_train.horovod.elastic import register_rejoin

# All of them are there when the first connects: a peer that is lost in between must not be waited for as long as others.
RENDEZVOUS_S = 30.0


class ElasticMembership:
    """This process's way from world to world. ``leave``: gives up what a framework itself keeps of the old one."""

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave = leave
        self._is_following = False

    def own(self) -> Optional[elastic.World]:
        """The world to meet the others in, where this process goes from world to world; ``None``: it does not."""
        return elastic.own_world() if self._is_following else None

    def wait_to_join(self) -> None:
        """One that is to join a gang which trains waits for its place; does nothing in any other process.

        Only where the others go from world to world by themselves a process is started before it has a place.
        """
        if elastic.is_elastic() and not self._is_following and elastic.newest_number() == 0:
            elastic.enter(elastic.first_world())
            self._follow()

    def follow(self) -> None:
        """From now on go from world to world in this process, instead of being started again in place for each."""
        if elastic.is_elastic() and not self._is_following:
            elastic.first_world()  # says that this process stays; a newer world than its own is met at the first commit
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
