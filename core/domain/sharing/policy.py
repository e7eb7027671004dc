"""The planner's policy, set by administrators: queue order, preemption, quarantine."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from itertools import pairwise
from math import isfinite
from typing import Any, Final

from core.domain.errors import InvalidRequest

# Each level is four times the previous one, from ten minutes of a GPU to 43,690 hours: the jobs of a cluster span as
# many orders of magnitude, and jobs on the last level are not distinguished.
_FIRST_LEVEL_GPU_S: Final = 600.0
# Node failures are stored for longer than this.
LONGEST_WINDOW_S: Final = 7 * 24 * 3600.0
_MOST_FAILURES: Final = 100
# Shorter rotations make no sense: each one ends with a plan.
_LEAST_ROTATION_S: Final = 1.0


class QueueOrder(StrEnum):
    """The order of jobs of equal priority and equal share."""

    FIFO = "fifo"
    SHORTEST_FIRST = "shortest-first"  # fewest remaining GPU-seconds; unknown ones by their Gittins index
    # Shortest remaining time, whatever the number of GPUs, so that waits are proportional to run times. A job that
    # would run longer than all others together on the whole cluster comes first: it determines the makespan.
    FAIR_FINISH = "fair-finish"
    ATTAINED_SERVICE = "attained-service"  # least attained service first, in levels


class Defragment(StrEnum):
    OFF = "off"
    PROPOSE = "propose"
    APPLY = "apply"


@dataclass(frozen=True, slots=True)
class Policy:
    """The planner's settings. Times in seconds.

    Attributes:
        is_fair: fair queueing among projects, and among users inside one; otherwise all jobs are in one queue.
        usage_weight: weight of past usage against current usage in a share, 0 to 1.
        usage_half_life_s: half-life of past usage.
        levels_gpu_s: upper bounds of the levels of attained service, in GPU-seconds; the last level has none.
        starvation_s: a job that has waited this long without resources counts as of the first level again (aging).
        preempts_priority: jobs of higher priority may preempt those of lower.
        reclaims: projects get back their guaranteed quota by preemption.
        preempts_shares: projects below their fair share may preempt those above theirs.
        time_slice_s: time slicing among jobs of one priority: a job with checkpoints that has run for at least so long
            may be preempted by the first job by ``order``. ``None``: off.
        rotation_s: round robin among jobs that ``order`` treats as equal: a job that has run for so long may be
            preempted by
            one with fewer whole turns, or as many and older. The first job by ``order`` gets the resources then at the
            latest. ``None``: off.
        min_run_time_s: no job is preempted, for whatever reason, before it has run for so long.
        grace_s: time for a preempted job's last checkpoint.
        shrinks: elastic jobs are shrunk before any job is preempted, and for faster ones.
        restart_cost_s: assumed cost of a preemption besides the work since the last checkpoint.
        quarantines: nodes on which jobs end for machine faults take no new work for a time.
        quarantine_failures: so many suspicious ends of different jobs on a node quarantine it; one certain fault does,
            too.
        quarantine_window_s: ends further apart are unrelated.
        quarantine_release_s: time until a node takes work again, doubled each time in a row. ``None``: until an
            administrator
            releases it.
        quarantine_share: the largest fraction of the nodes of one kind in quarantine at once; one node is always
            allowed.
        keeps_for_gpus: jobs without GPUs leave on every node the CPUs and memory that its free GPUs will need (GPU
            headroom),
            unless they could never run otherwise. If off, they only prefer other nodes.

    Raises:
        ValueError: a setting that makes no sense; it names the field.
    """

    order: QueueOrder = QueueOrder.SHORTEST_FIRST
    is_fair: bool = True
    usage_weight: float = 0.5
    usage_half_life_s: float = 7 * 24 * 3600.0
    levels_gpu_s: tuple[float, ...] = tuple(_FIRST_LEVEL_GPU_S * 4**level for level in range(10))
    starvation_s: float = 24 * 3600.0
    preempts_priority: bool = True
    reclaims: bool = True
    preempts_shares: bool = False
    time_slice_s: float | None = 600.0
    rotation_s: float | None = None
    min_run_time_s: float = 300.0
    grace_s: float = 30.0
    shrinks: bool = True
    restart_cost_s: float = 30.0
    defragment: Defragment = Defragment.PROPOSE
    quarantines: bool = True
    quarantine_failures: float = 3
    quarantine_window_s: float = 3600.0
    quarantine_release_s: float | None = 4 * 3600.0
    quarantine_share: float = 0.25
    keeps_for_gpus: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.usage_weight <= 1:
            raise ValueError("usage_weight: must be between 0 and 1")
        for name in ("usage_half_life_s", "starvation_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: must be more than 0 seconds")
        for name in ("min_run_time_s", "grace_s", "restart_cost_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}: must be 0 seconds or more")
        if self.time_slice_s is not None and not self.time_slice_s > 0:
            raise ValueError("time_slice_s: must be more than 0 seconds, or off")
        if self.quarantine_failures not in range(1, _MOST_FAILURES + 1):
            raise ValueError(f"quarantine_failures: must be a whole number from 1 to {_MOST_FAILURES}")
        if not 0 < self.quarantine_window_s <= LONGEST_WINDOW_S:
            raise ValueError("quarantine_window_s: must be more than 0 seconds and at most 7 days")
        if self.quarantine_release_s is not None and not self.quarantine_release_s > 0:
            raise ValueError("quarantine_release_s: must be more than 0 seconds, or off")
        if not 0 <= self.quarantine_share <= 1:
            raise ValueError("quarantine_share: must be between 0 and 1")
        if self.rotation_s is not None and not self.rotation_s >= _LEAST_ROTATION_S:
            raise ValueError(f"rotation_s: must be at least {_LEAST_ROTATION_S:g} second, or off")
        if not all(0 < a < b for a, b in pairwise((*self.levels_gpu_s, float("inf")))):
            raise ValueError("levels_gpu_s: must be times above 0, each longer than the one before, such as 1h,8h")

    @property
    def takes_turns(self) -> bool:
        """Whether running jobs may be preempted by jobs of the same priority and share."""
        return self.time_slice_s is not None or self.rotation_s is not None

    def level(self, attained_gpu_s: float) -> int:
        """The level of attained service, from 0."""
        return bisect_right(self.levels_gpu_s, attained_gpu_s)

    def to_json(self) -> dict[str, Any]:
        """All settings by their names, as :func:`parse_policy` takes them."""
        return {**asdict(self), "levels_gpu_s": list(self.levels_gpu_s)}


# Upper bounds that catch typing errors.
_LONGEST_S: Final = 10 * 365 * 24 * 3600.0
_MOST_GRACE_S: Final = 3600.0
_MOST_LEVELS: Final = 16
_NAMES: Final = tuple(field.name for field in fields(Policy))
_FLAGS: Final = frozenset(
    {"is_fair", "preempts_priority", "reclaims", "preempts_shares", "shrinks", "quarantines", "keeps_for_gpus"}
)
_CAN_BE_OFF: Final = frozenset({"time_slice_s", "rotation_s", "quarantine_release_s"})


def parse_policy(data: Mapping[str, Any], *, base: Policy | None = None) -> Policy:
    """The policy with ``data`` applied to ``base``, by default the default policy.

    Raises:
        InvalidRequest: an unknown setting, or an invalid value; ``field`` names it.
    """
    values: dict[str, Any] = {} if base is None else {name: getattr(base, name) for name in _NAMES}
    for name, value in data.items():
        values[name] = _value(name, value)
    try:
        return Policy(**values)
    except ValueError as wrong:
        field, _, what = str(wrong).partition(": ")
        raise InvalidRequest(f"{field} {what}.", field=field) from wrong


def readable_policy(data: Mapping[str, Any]) -> tuple[Policy, dict[str, str]]:
    """The policy of the readable settings, and the errors of the others, by name."""
    good: dict[str, Any] = {}
    wrong: dict[str, str] = {}
    for name, value in data.items():
        try:
            parse_policy({name: value})
        except InvalidRequest as mistake:
            wrong[name] = mistake.sentence
        else:
            good[name] = value
    return parse_policy(good), wrong


def _value(name: str, value: Any) -> Any:
    if name not in _NAMES:
        raise InvalidRequest(f"There is no setting {name!r}; the settings are {', '.join(_NAMES)}.", field=name)
    if name == "order":
        return _member(QueueOrder, name, value)
    if name == "defragment":
        return _member(Defragment, name, value)
    if name in _FLAGS:
        if not isinstance(value, bool):
            raise InvalidRequest(f"{name} is true or false.", field=name)
        return value
    if name == "levels_gpu_s":
        if not isinstance(value, list | tuple) or not 1 <= len(value) <= _MOST_LEVELS:
            raise InvalidRequest(
                f"{name} is a list of 1 to {_MOST_LEVELS} numbers of GPU-seconds, such as [3600, 28800].", field=name
            )
        return tuple(_number(name, entry) for entry in value)
    if name in _CAN_BE_OFF and value is None:
        return None
    number = _number(name, value)
    most = _MOST_GRACE_S if name == "grace_s" else _LONGEST_S
    if name.endswith("_s") and number > most:
        raise InvalidRequest(f"{name} is at most {most:g} seconds.", field=name)
    return number


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise InvalidRequest(f"{name} is a number.", field=name)
    return float(value)


def _member(kind: type[QueueOrder | Defragment], name: str, value: Any) -> QueueOrder | Defragment:
    try:
        return kind(value)
    except ValueError:
        raise InvalidRequest(f"{name} is one of {', '.join(kind)}.", field=name) from None
