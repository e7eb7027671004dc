"""What an administrator sets: in which order jobs are taken, and what may be taken from whom."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from itertools import pairwise
from math import isfinite
from typing import Any, Final

from core.domain.errors import InvalidRequest

# Each level is four times the one before, from ten minutes of a GPU to 43,690 hours: what a cluster is asked for spans as
# many orders of magnitude, and jobs on the last level are no longer told apart.
_FIRST_LEVEL_GPU_S: Final = 600.0
# Failures of nodes are kept for longer than this.
LONGEST_WINDOW_S: Final = 7 * 24 * 3600.0
_MOST_FAILURES: Final = 100
# Shorter turns than this nobody can mean: a plan is made at the end of each.
_LEAST_ROTATION_S: Final = 1.0


class QueueOrder(StrEnum):
    """Who comes first among jobs of equal priority and equal share."""

    FIFO = "fifo"
    SHORTEST_FIRST = (
        "shortest-first"  # the least GPU-seconds still to run; those that nobody knows as by attained service
    )
    # The least time still to run, however many GPUs it takes: nobody waits for much longer than it runs. Before all those
    # that would run for longer than all others together take the whole cluster: they tell when everything is done.
    FAIR_FINISH = "fair-finish"
    ATTAINED_SERVICE = "attained-service"  # those that have had the least, in levels


class Defragment(StrEnum):
    OFF = "off"
    PROPOSE = "propose"
    APPLY = "apply"


@dataclass(frozen=True, slots=True)
class Policy:
    """The planner's settings. Times in seconds.

    Attributes:
        is_fair: projects, and users inside one, take turns by their shares; otherwise all jobs are in one line.
        usage_weight: how much the past counts beside the present in a share, 0 to 1.
        usage_half_life_s: after this time past usage counts half.
        levels_gpu_s: where the levels of attained service end, in GPU-seconds; the last level has no end.
        starvation_s: who has waited for so long without resources counts as of the first level again.
        preempts_priority: a job of larger priority may take the place of smaller ones.
        reclaims: projects get back what is guaranteed to them.
        preempts_shares: projects below their share may take from those above theirs.
        time_slice_s: jobs of one priority take turns: who has run for at least so long gives place to who comes first by
            ``order``. ``None``: who runs stays.
        rotation_s: a turn of those that ``order`` treats as equal: who has run for so long gives place to who has had fewer
            whole turns in all, or as many and is older. Who comes first by ``order`` gets the place then at the latest.
            ``None``: equal jobs do not take turns.
        min_run_time_s: nobody is preempted, by whatever right, before having run for so long.
        grace_s: what a preempted job gets for its last checkpoint.
        shrinks: elastic jobs give back replicas before anybody is preempted.
        restart_cost_s: what a preemption is taken to cost the job besides the work since its last checkpoint.
        quarantines: nodes on which jobs end for reasons of the machine take no new work for a time.
        quarantine_failures: so many suspicious ends of different jobs on one node make it one; a certain fault alone does, too.
        quarantine_window_s: ends further apart have nothing to do with one another.
        quarantine_release_s: after this time a node takes work again, twice as long each time in a row. ``None``: when an
            administrator says so.
        quarantine_share: no more of the nodes of one kind are quarantined at once, but one may always be.
        keeps_for_gpus: jobs without GPUs leave of every node the CPUs and memory that its free GPUs will need, unless they could
            never run otherwise. If not, they only prefer other places.

    Raises:
        ValueError: a setting that makes no sense; it names the field.
    """

    order: QueueOrder = QueueOrder.ATTAINED_SERVICE
    is_fair: bool = True
    usage_weight: float = 0.5
    usage_half_life_s: float = 7 * 24 * 3600.0
    levels_gpu_s: tuple[float, ...] = tuple(_FIRST_LEVEL_GPU_S * 4**level for level in range(10))
    starvation_s: float = 24 * 3600.0
    preempts_priority: bool = True
    reclaims: bool = True
    preempts_shares: bool = False
    time_slice_s: float | None = None
    rotation_s: float | None = None
    min_run_time_s: float = 300.0
    grace_s: float = 30.0
    shrinks: bool = True
    restart_cost_s: float = 60.0
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
        """Whether who runs may have to give its place to one of the same priority and share."""
        return self.time_slice_s is not None or self.rotation_s is not None

    def level(self, attained_gpu_s: float) -> int:
        """The level of attained service, 0 for those that have had the least."""
        return bisect_right(self.levels_gpu_s, attained_gpu_s)

    def to_json(self) -> dict[str, Any]:
        """All settings by their names, as :func:`parse_policy` takes them."""
        return {**asdict(self), "levels_gpu_s": list(self.levels_gpu_s)}


# What a planner can work with: more than this is a slip of the pen.
_LONGEST_S: Final = 10 * 365 * 24 * 3600.0
_MOST_GRACE_S: Final = 3600.0
_MOST_LEVELS: Final = 16
_NAMES: Final = tuple(field.name for field in fields(Policy))
_FLAGS: Final = frozenset(
    {"is_fair", "preempts_priority", "reclaims", "preempts_shares", "shrinks", "quarantines", "keeps_for_gpus"}
)
_CAN_BE_OFF: Final = frozenset({"time_slice_s", "rotation_s", "quarantine_release_s"})


def parse_policy(data: Mapping[str, Any], *, base: Policy | None = None) -> Policy:
    """The policy that ``data`` says; what it does not name is as in ``base``, or as by default.

    Raises:
        InvalidRequest: an unknown setting, or a value that it cannot have; ``field`` names it.
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
    """The policy of those settings that can be read, and of the others, by name, why not."""
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
        return _one_of(QueueOrder, name, value)
    if name == "defragment":
        return _one_of(Defragment, name, value)
    if name in _FLAGS:
        if not isinstance(value, bool):
            raise InvalidRequest(f"{name} is true or false.", field=name)
        return value
    if name == "levels_gpu_s":
        if not isinstance(value, list | tuple) or not 1 <= len(value) <= _MOST_LEVELS:
            raise InvalidRequest(
                f"{name} is a list of 1 to {_MOST_LEVELS} numbers of GPU-seconds, such as [3600, 28800].", field=name
            )
        return tuple(_number(name, one) for one in value)
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


def _one_of(kind: type[QueueOrder | Defragment], name: str, value: Any) -> QueueOrder | Defragment:
    try:
        return kind(value)
    except ValueError:
        raise InvalidRequest(f"{name} is one of {', '.join(kind)}.", field=name) from None
