"""How workers and parameter servers train together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional, Tuple

from trainmaster_train.ps.errors import ParameterServerError

MODES = ("async", "sync")
WIRES = ("full", "bf16", "fp16", "topk")


@dataclass(frozen=True)
class Options:
    """One set for all replicas; each field has a default that trains.

    Updating:
        mode: ``async``: each gradient is applied when it arrives. ``sync``: a step takes the mean of the gradients of
            all workers, computed on the same values.
        backup_workers: ``sync`` only: a step takes the first N − ``backup_workers`` gradients of the N workers; later
            ones of that step are dropped and counted.
        max_staleness: ``async`` only: a gradient is dropped and counted when more updates than this lie between its
            pull and its push; ``None`` drops none.
        scale_by_staleness: ``async`` only: a gradient of staleness s > 1 is applied with lr / s (Zhang et al.,
            "Staleness-aware async-SGD for distributed deep learning", IJCAI 2016).
        warmup_updates: until this many updates the chief trains alone; the other workers wait for their first values.

    Sending:
        wire: ``full`` sends all values as they are. ``bf16`` and ``fp16`` send halves, ``topk`` the share
            ``topk_ratio`` of largest values, the rest is added to the next ones (error feedback). All three compress
            what comes back, too: a ps then keeps a copy of its shard for each worker.
        overlap: gradients leave while the backward pass still computes others. Only for scripts that do nothing with
            ``.grad`` between ``backward()`` and ``step()`` (no clipping, no accumulation).
        prefetch: ``async`` only: a step computes on values that were asked for one step before, so that it never waits
            while computing takes longer than sending. Adds 1 to the own staleness.

        shared_memory: a ps and a worker on one machine hand gradients and values over in memory that both see, as far
            as the system lets them; with ``wire="full"`` alone.

    Keeping:
        checkpoint_every: updates between two checkpoints; ``None`` makes only the last one.
        keep_checkpoints: as many stay.

    Waiting, all in seconds; every error that follows says who is missing:
        join_timeout_s: for a ps to be there (or to come back), and for the chief's first values.
        step_timeout_s: for the answer to a push.
        lost_timeout_s: ``sync`` only: a step waits as long for a worker that died or never came; then it goes on
            without it until it is back.
        idle_timeout_s: a ps that saw no worker for so long ends with an error.
    """

    mode: str = "async"
    backup_workers: int = 0
    max_staleness: Optional[int] = None
    scale_by_staleness: bool = False
    warmup_updates: int = 0
    wire: str = "full"
    topk_ratio: float = 0.01
    overlap: bool = False
    prefetch: bool = False
    shared_memory: bool = True
    checkpoint_every: Optional[int] = None
    keep_checkpoints: int = 3
    join_timeout_s: float = 120.0
    step_timeout_s: float = 600.0
    lost_timeout_s: float = 60.0
    idle_timeout_s: float = 3600.0

    def check(self, workers: Optional[int] = None) -> None:
        """Whether all replicas can train like this. Not done when it is made, so that a mistake ends :func:`ps.run` with one
        sentence as any other does.

        Args:
            workers: how many the job has, if that is known.

        Raises:
            ParameterServerError: an option has no such value, or contradicts another one.
        """
        for name, (is_allowed, allowed) in _ALLOWED.items():
            if not is_allowed(getattr(self, name)):
                self._refuse(name, f"give {allowed}")
        if self.mode == "sync":
            for name, plain in (("max_staleness", None), ("scale_by_staleness", False), ("prefetch", False)):
                if getattr(self, name) != plain:
                    self._refuse(name, "that has no meaning with mode='sync', where no gradient is stale; leave it out")
        elif self.backup_workers:
            self._refuse("backup_workers", "that has no meaning with mode='async', where no worker waits for another")
        if workers is not None and 0 < workers <= self.backup_workers:
            have = "the job has 1 worker" if workers == 1 else f"the job has {workers} workers"
            self._refuse("backup_workers", f"{have}, and a step needs at least one that it waits for; give fewer")

    def _refuse(self, name: str, what: str) -> None:
        raise ParameterServerError(f"ps.Options: {name} is {getattr(self, name)!r}: {what}")


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


_FLAG = (_is_flag, "True or False")
_SECONDS = (lambda value: _is_number(value) and math.isfinite(value), "seconds above 0")
_COUNT = (lambda value: _is_whole(value, 0), "0 or a whole number above it")
# For each option whether a value is one of its own, and which are.
_ALLOWED: Dict[str, Tuple[Callable[[Any], bool], str]] = {
    "mode": (lambda value: value in MODES, f"one of {', '.join(MODES)}"),
    "backup_workers": _COUNT,
    "max_staleness": (lambda value: value is None or _is_whole(value, 0), "None, 0 or a whole number above it"),
    "scale_by_staleness": _FLAG,
    "warmup_updates": _COUNT,
    "wire": (lambda value: value in WIRES, f"one of {', '.join(WIRES)}"),
    "topk_ratio": (lambda value: _is_number(value) and value <= 1, "a share above 0 and up to 1"),
    "overlap": _FLAG,
    "prefetch": _FLAG,
    "shared_memory": _FLAG,
    "checkpoint_every": (
        lambda value: value is None or _is_whole(value, 1),
        "None, or a whole number of updates from 1 on",
    ),
    "keep_checkpoints": (lambda value: _is_whole(value, 1), "a whole number from 1 on"),
    "join_timeout_s": _SECONDS,
    "step_timeout_s": _SECONDS,
    "lost_timeout_s": _SECONDS,
    "idle_timeout_s": _SECONDS,
}
