"""Equivalence classes of waiting jobs, so that the walk through the queue treats equal jobs together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from scheduler.planning.model import QueuedGang

# Sort key: the policy's key (GPU-seconds or a level), whole turns taken, queueing time in seconds from now, id.
SortKey = tuple[float, int, float, str]


@dataclass(slots=True, eq=False)
class JobFamily:
    """Job classes that differ only in their run time: half of all jobs may state a time of their own."""

    refused_in: int = 0  # the walk in which jobs above ``refused_above_s`` were refused
    refused_above_s: float = 0.0
    refused_at: int = -1  # the project's change count then


@dataclass(slots=True, eq=False)
class JobClass:
    """Jobs of equal user, priority, shape and run time: whether one of them may start holds for all.

    Attributes:
        first: one of the jobs. job_family: classes of other run times. max_hold_s: longest time in seconds that one
        of the jobs holds its resources. is_aged: the jobs may starve, so each has a position of its own among other
        jobs. is_ineligible: no job of the class may start, whatever is free; stays so for the rest of the plan.
    """

    first: QueuedGang
    job_family: JobFamily
    max_hold_s: float
    is_aged: bool
    is_ineligible: bool = False
    checked_at: int = -1  # the project's change count when it was last found eligible
    refused_in: int = 0  # the walk
    refused_at: int = -1  # the project's change count at that refusal


QueueEntry = tuple[SortKey, QueuedGang, JobClass]
# Consecutive jobs: one, or several that are all known to wait.
Batch = Sequence[QueueEntry]


def job_batches(
    entries: Sequence[QueueEntry],
    is_ineligible: Callable[[JobClass], bool] | None,
    ineligible: list[QueueEntry],
    waits: Callable[[JobClass], bool],
) -> Iterator[Batch]:
    """Batches of one sorted queue: waiting classes together, other jobs singly.

    Ineligible jobs are moved to ``ineligible`` instead.
    """
    at, count = 0, len(entries)
    while at < count:
        job_class, begin = entries[at][2], at
        at = end_of_class(entries, at)
        if is_ineligible is not None and is_ineligible(job_class):
            ineligible += entries[begin:at]
        elif waits(job_class):
            # Nothing starts between them: waiting classes that follow join the batch.
            while at < count and (is_ineligible is None or not is_ineligible(entries[at][2])) and waits(entries[at][2]):
                at = end_of_class(entries, at)
            yield entries[begin:at]
        else:
            at = begin + 1
            yield entries[begin:at]


def end_of_class(entries: Sequence[QueueEntry], at: int) -> int:
    """The position where the run of entries of the same class as ``entries[at]`` ends."""
    job_class, end, count = entries[at][2], at + 1, len(entries)
    while end < count and entries[end][2] is job_class:
        end += 1
    return end
