"""torch.distributed's default group, where ``hvd.init()`` made it."""

from __future__ import annotations

import os
from typing import Optional, Tuple

import torch.distributed as dist

_WHERE = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "HOROVOD_RANK", "HOROVOD_SIZE")


class OwnDefault:
    """It outlives ``hvd.shutdown()``, for the next ``hvd.init()`` at the same place.

    The ranks come to their ends one after another. Were each to give the group up there, the first to come back would
    find rank 0's old store at the same address still, and in it the addresses of those that are gone.
    """

    def __init__(self) -> None:
        self._made_at: Optional[Tuple[Optional[str], ...]] = None

    def note(self) -> None:
        """It was made just now, where the environment says."""
        self._made_at = _place()

    def leave_elsewhere(self) -> None:
        """Give it up if the environment names another place by now."""
        if self._made_at != _place():
            self.leave()

    def leave(self) -> None:
        """Give it up; does nothing where the default group is the script's own."""
        is_own, self._made_at = self._made_at is not None, None
        if is_own and dist.is_initialized():
            dist.destroy_process_group()


def _place() -> Tuple[Optional[str], ...]:
    return tuple(os.environ.get(name) for name in _WHERE)
