"""The waiting jobs as a walk through the queue sees them: those that are alike, and runs of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from scheduler.planning.model import QueuedGang

# What the policy compares: GPU-seconds or a level; whole turns that it had; when it queued, in seconds from now; the id.
SortKey = tuple[float, int, float, str]


@dataclass(slots=True, eq=False)
class JobFamily:
    """The job_classes that differ by their lengths alone: half of all jobs may state a length of their own."""

    refused_in: int = 0  # the walk in which nothing was left for those that run for longer than
    refused_above_s: float = 0.0
    refused_at: int = -1  # what their project had changed then


@dataclass(slots=True, eq=False)
class JobClass:
    """Jobs of one user, priority, shape and length: whether one of them may start is said of all.

    Attributes:
        first: one of them.
        job_family: those of other lengths, too.
        max_hold_s: for how long one of them holds its place at most.
        is_aged: they may have starved, and so each has a place of its own among others' jobs.
        is_idle: none may start, whatever is free; once so, for the rest of the plan.
    """

    first: QueuedGang
    job_family: JobFamily
    max_hold_s: float
    is_aged: bool
    is_idle: bool = False
    asked_at: int = -1  # what its project had changed when it was found not to be idle
    refused_in: int = 0  # the walk
    refused_at: int = -1  # what its project had changed when it was refused in that


QueueEntry = tuple[SortKey, QueuedGang, JobClass]
# Jobs that come one after another: one, or more of which it is known that all wait.
Batch = Sequence[QueueEntry]


def in_line(
    entries: Sequence[QueueEntry],
    is_idle: Callable[[JobClass], bool] | None,
    idle: list[QueueEntry],
    waits: Callable[[JobClass], bool],
) -> Iterator[Batch]:
    """One line, those together that wait; those for which ``is_idle`` are put into ``idle`` instead."""
    at, count = 0, len(entries)
    while at < count:
        job_class, begin = entries[at][2], at
        at = end_of_kind(entries, at)
        if is_idle is not None and is_idle(job_class):
            idle += entries[begin:at]
        elif waits(job_class):
            # Nothing starts between them: those that follow and wait, too, are told with them.
            while at < count and (is_idle is None or not is_idle(entries[at][2])) and waits(entries[at][2]):
                at = end_of_kind(entries, at)
            yield entries[begin:at]
        else:
            at = begin + 1
            yield entries[begin:at]


def end_of_kind(entries: Sequence[QueueEntry], at: int) -> int:
    """Where those end that are of one job_class with the one at ``at``."""
    job_class, end, count = entries[at][2], at + 1, len(entries)
    while end < count and entries[end][2] is job_class:
        end += 1
    return end
