"""Stall inspector: warns of operations that wait too long, names the missing ranks, and ends the wait at last."""

from __future__ import annotations

import sys
from typing import Dict, Optional, Sequence

from trainmaster_train.horovod.controller.coordinator import Coordinator
from trainmaster_train.horovod.controller.handles import Handle
from trainmaster_train.horovod.settings import HorovodSettings


class StallInspector:
    """``coordinator``: only on rank 0, which alone knows the missing ranks; ``None`` on the others."""

    def __init__(self, coordinator: Optional[Coordinator], settings: HorovodSettings) -> None:
        self._coordinator = coordinator
        self._settings = settings
        self._next_check_s = 0.0
        self._warned_at: Dict[str, float] = {}

    def is_time(self, now_s: float) -> bool:
        """Whether the next :meth:`inspect` is due."""
        return now_s >= self._next_check_s

    def inspect(self, waiting: Sequence[Handle], now_s: float) -> Optional[str]:
        """Why the gang has to fail, or ``None``. Warns of long waits, at most once in ``stall_warn_s`` each.

        Args:
            waiting: this process's operations that are not answered yet.
        """
        settings = self._settings
        self._next_check_s = now_s + min(1.0, settings.stall_end_s / 4, settings.stall_warn_s / 4)
        if self._coordinator is None:
            return self._inspect_rank_0(waiting, now_s)
        for stall in self._coordinator.stalls(now_s):
            if stall.waited_s >= settings.stall_end_s:
                return f"{stall.sentence()}; that is the end (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS)."
            name = stall.request.name
            if stall.waited_s >= settings.stall_warn_s and now_s >= self._warned_at.get(name, 0.0):
                self._warned_at[name] = now_s + settings.stall_warn_s
                print(f"trainmaster.horovod: {stall.sentence()}.", file=sys.stderr, flush=True)
        return None

    def _inspect_rank_0(self, waiting: Sequence[Handle], now_s: float) -> Optional[str]:
        """Rank 0 ends a stall, unless it hangs itself: then this rank does, a little later."""
        patience_s = self._settings.stall_end_s * 1.5 + 5.0
        if all(now_s - handle.submitted_s <= patience_s for handle in waiting):
            return None
        shown = ", ".join(repr(handle.request.name) for handle in waiting[:3])
        return f"no answer from rank 0, which coordinates, for {patience_s:.0f} s ({shown})."
