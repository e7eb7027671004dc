"""How workers and parameter servers train together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

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

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode: {self.mode!r} is not one of {', '.join(MODES)}")
        if self.wire not in WIRES:
            raise ValueError(f"wire: {self.wire!r} is not one of {', '.join(WIRES)}")
        if not 0 < self.topk_ratio <= 1:
            raise ValueError(f"topk_ratio: {self.topk_ratio} is not a share above 0 and up to 1")
        for name in ("backup_workers", "warmup_updates"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: {getattr(self, name)} is negative")
        for name in ("max_staleness", "checkpoint_every"):
            value = getattr(self, name)
            if value is not None and value < (name == "checkpoint_every"):
                raise ValueError(f"{name}: {value} is too small")
        if self.keep_checkpoints < 1:
            raise ValueError(f"keep_checkpoints: {self.keep_checkpoints} would remove the newest one")
        for name in ("join_timeout_s", "step_timeout_s", "lost_timeout_s", "idle_timeout_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: {getattr(self, name)} is no time to wait")
        self._check_mode()

    def _check_mode(self) -> None:
        if self.mode == "sync":
            for name, plain in (("max_staleness", None), ("scale_by_staleness", False), ("prefetch", False)):
                if getattr(self, name) != plain:
                    raise ValueError(f"{name}: has no meaning with mode='sync', where no gradient is stale")
        elif self.backup_workers:
            raise ValueError("backup_workers: has no meaning with mode='async', where no worker waits for another")
