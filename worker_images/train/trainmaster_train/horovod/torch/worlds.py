"""The platform's worlds as Horovod's gangs: in an elastic job the platform says who meets anew, and where."""

from __future__ import annotations

import sys
from typing import Optional

from trainmaster_train import elastic
from trainmaster_train.horovod.elastic import meet_anew
from trainmaster_train.horovod.errors import HorovodInternalError

# All of them are there when the first connects: a peer that is lost in between must not be waited for as long as others.
MEET_S = 30.0

_is_following = False


def own_world() -> Optional[elastic.World]:
    """The world to meet the others in, where this process goes from world to world; ``None``: it does not."""
    return elastic.own_world() if _is_following else None


def wait_to_join() -> None:
    """One that is to join a gang which trains waits for its place; does nothing in any other process.

    Only where the others go from world to world by themselves a process is started before it has a place.
    """
    if elastic.is_elastic() and not _is_following and elastic.newest_number() == 0:
        elastic.enter(elastic.first_world())
        _follow()


def follow() -> None:
    """From now on go from world to world in this process, instead of being started again in place for each."""
    if elastic.is_elastic() and not _is_following:
        elastic.first_world()  # says that this process stays; a newer world than its own is met at the first commit
        _follow()


def join_group(world: elastic.World, timeout_s: float) -> None:
    """Make ``world`` torch.distributed's.

    Raises:
        HorovodInternalError: not all of it came, or there is a newer one.
    """
    try:
        elastic.Group("gloo", timeout_s).join(world)
    except elastic.WorldChanged:
        raise HorovodInternalError(f"world {world.number} is over: there is a newer one.") from None
    except elastic.PeerLost as lost:
        raise HorovodInternalError(str(lost)) from None


def rejoin() -> bool:
    """Wait for the next world and enter it; ``False``: none came."""
    elastic.Group().leave()
    try:
        elastic.enter(elastic.next_world(elastic.own_world().number))
    except elastic.WorldError as none:
        print(f"[trainmaster] {none}", file=sys.stderr, flush=True)
        return False
    return True


def _follow() -> None:
    global _is_following  # noqa: PLW0603 (a process is in one world)
    _is_following = True
    meet_anew(rejoin, lambda: elastic.newest_number() > elastic.own_world().number)
