"""The platform's worlds where torch.distributed is: each is its default group."""

from __future__ import annotations

from trainmaster_train import elastic
from trainmaster_train.horovod.errors import HorovodInternalError
from trainmaster_train.horovod.worlds import Worlds


def leave_group() -> None:
    elastic.Group().leave()


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


worlds = Worlds(leave_group)
