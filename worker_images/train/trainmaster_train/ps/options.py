"""Options of training with parameter servers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional, Tuple

from trainmaster_train.ps.errors import ParameterServerError

MODES = ("async", "sync")
WIRES = ("full", "bf16", "fp16", "topk")


@dataclass(frozen=True)
class Options:
    """The same for all replicas; the defaults work for a first training.

    Updating:
        mode: ``async``: each gradient is applied when it arrives. ``sync``: a step applies the mean of the gradients of
            all workers, computed on the same values.
        backup_workers: ``sync`` only: a step applies the first N − ``backup_workers`` gradients of the N workers; later
            gradients of that step are dropped and counted.
        max_staleness: ``async`` only: the staleness bound. A gradient is dropped and counted when more updates than
            this lie between its pull and its push; ``None`` drops none.
        scale_by_staleness: ``async`` only: a gradient of staleness s > 1 is applied with lr / s (Zhang et al.,
            "Staleness-aware async-SGD for distributed deep learning", IJCAI 2016).
        warmup_updates: the chief trains alone for this many updates; the other workers wait for their first values.

    Sending:
        wire: ``full`` sends all values unchanged. ``bf16`` and ``fp16`` send half precision, ``topk`` the share
            ``topk_ratio`` of largest values; the residual is added to the next gradient (error feedback). All three
            compress the values of pulls, too: a ps then stores a copy of its shard for each worker.
        overlap: send gradients while the backward pass still computes others. Only for scripts that do not touch
            ``.grad`` between ``backward()`` and ``step()`` (no clipping, no accumulation).
        prefetch: ``async`` only: a step computes on values that were requested one step before, so that it never waits
            while computing takes longer than sending. Adds 1 to the own staleness.

        shared_memory: a ps and a worker on one machine exchange gradients and values in shared memory if the system
            supports it; only with ``wire="full"``.

    Checkpoints:
        checkpoint_every: updates between two checkpoints; ``None`` writes only the last one.
        keep_checkpoints: number of checkpoints to keep.

    Time-outs, all in seconds; the resulting error names the missing replica:
        join_timeout_s: for a ps to start (or to come back), and for the chief's first values.
        step_timeout_s: for the answer to a push.
        lost_timeout_s: ``sync`` only: how long a step waits for a worker that died or never came; then training
            continues without it until it is back.
        idle_timeout_s: a ps without any worker for this long ends with an error.
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
        """Validate the options. Not done in the constructor, so that :func:`ps.run` reports a mistake like any other
        error.

        Args:
            workers: the number of workers of the job, if known.

        Raises:
            ParameterServerError: an option has an invalid value, or contradicts another one.
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
            self._refuse("backup_workers", f"{have}, and a step must wait for at least one worker; give fewer")

    def _refuse(self, name: str, message: str) -> None:
        raise ParameterServerError(f"ps.Options: {name} is {getattr(self, name)!r}: {message}")


def _is_whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


_FLAG = (_is_flag, "True or False")
_SECONDS = (lambda value: _is_number(value) and math.isfinite(value), "seconds above 0")
_COUNT = (lambda value: _is_whole(value, 0), "0 or a whole number above it")
# For each option: a check of its value, and a description of the allowed values.
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
